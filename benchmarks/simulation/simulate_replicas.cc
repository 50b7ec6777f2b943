// simulate_replicas: reads scenarios (JSON, see README.md) from standard input, one per line, and
// prints the result of each on a line.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "benchmarks/simulation/scenario.h"

int main(int argc, char** /*argv*/) {
  if (argc > 1) {
    std::fputs("usage: simulate_replicas < SCENARIOS.jsonl; benchmarks/simulation/README.md\n",
               stderr);
    return 2;
  }
  try {
    for (std::string line; std::getline(std::cin, line);) {
      if (line.empty()) continue;
      std::cout << nvllm::json_text(nvllm::simulation::run_scenario(line)) << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulate_replicas: %s\n", error.what());
    return 1;
  }
  return 0;
}
