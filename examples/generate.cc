// The engine as a library: answers prompts, given as token ids, and prints the answers' token ids.
// docs/cpp.md says how it is built outside of this folder.
//
//   generate MODEL 1,2,3 4,5
#include <nvllm/nvllm.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) ids.push_back(std::stoi(word));
  return ids;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    // The workers are forked here: before this process has threads, or has used a GPU.
    nvllm::Session session({.model = argc > 1 ? argv[1] : ""});

    std::vector<nvllm::Request> requests;
    for (int i = 2; i < argc; ++i) {
      requests.push_back(
          {.prompt = parse_ids(argv[i]), .sampling = {.temperature = 0, .max_tokens = 16}});
    }
    for (const auto& answers : session.generate(requests)) {
      for (const std::int32_t token : answers.front().tokens) std::printf("%d ", token);
      std::printf("\n");
    }
    return session.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}
