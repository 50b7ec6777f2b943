#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "testing/error_of.h"

namespace {

using nvllm::testing::has;

struct Run {
  int status = 0;
  std::string output;
  nlohmann::json report;
};

std::string scratch(const std::string& name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  return std::string(folder != nullptr ? folder : "/tmp") + '/' + name;
}

// Runs misbehaving_cases in TEST_TMPDIR. ThreadSanitizer would report doctest's own signal handler,
// which allocates.
Run run_misbehaving(const std::string& options) {
  const std::string report = scratch("report.json");
  std::array<char, 4096> here{};
  REQUIRE(getcwd(here.data(), here.size()) != nullptr);
  const std::string command = "cd '" + scratch("") + "' && TSAN_OPTIONS=report_signal_unsafe=0 '" +
                              here.data() + "/testing/misbehaving_cases' --json='" + report + "' " +
                              options + " 2>&1";
  Run run;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (int c; (c = std::fgetc(pipe)) != EOF;) run.output += static_cast<char>(c);
  run.status = pclose(pipe);
  std::ifstream file(report);
  run.report = nvllm::read_json(file);
  return run;
}

std::string verdict(const Run& run, const std::string& name) {
  for (const auto& entry : run.report.at("cases")) {
    if (entry.at("name") == name) {
      return entry.at("verdict").get<std::string>() + ": " + entry.at("detail").get<std::string>();
    }
  }
  return "no such case";
}

bool is_running(pid_t pid) {
  return kill(pid, 0) == 0;
}

}  // namespace

void check_isolated(const std::string& more) {
  const Run run = run_misbehaving("--isolate --case-timeout=2" + more);
  CHECK(WEXITSTATUS(run.status) == 1);
  CHECK(verdict(run, "passes") == "passed: ");
  CHECK(has(verdict(run, "fails, with a comma and a * in its name"), "2 == 3"));
  CHECK(verdict(run, "skips itself") == "skipped: needs <2> GPUs & more");
  CHECK(has(verdict(run, "throws"), "failed: exception: out of patience"));
  CHECK(has(verdict(run, "crashes"), "failed: "));
  CHECK(has(verdict(run, "crashes"), "SIGSEGV"));
  CHECK(verdict(run, "is killed") == "failed: ended by SIGKILL");
  CHECK(verdict(run, "leaves early") == "failed: exit code 0 without a result");
  CHECK(verdict(run, "hangs, and so do the processes that it started") ==
        "failed: no end after 2 s: killed");
  CHECK(verdict(run, "last: passes") == "passed: ");

  CHECK(has(run.output, "output of the failing case"));
  const std::string last_line = "2 passed, 6 failed, 1 skipped\n";
  CHECK(run.output.ends_with(last_line));
}

TEST_CASE("isolated cases neither stop nor touch each other") {
  check_isolated("");
}

TEST_CASE("several jobs run every case once") {
  check_isolated(" --jobs=4");
}

TEST_CASE("the processes of a case that hangs go with it") {
  std::remove(scratch("orphans").c_str());
  run_misbehaving("--isolate --case-timeout=1 --test-case=hangs*");
  std::ifstream orphans(scratch("orphans"));
  int count = 0;
  for (pid_t pid; orphans >> pid; ++count) CHECK_FALSE(is_running(pid));
  CHECK(count >= 2);
}

TEST_CASE("doctest's filters choose what is isolated") {
  const Run run = run_misbehaving("--isolate --test-case='skips*,passes'");
  CHECK(run.status == 0);
  CHECK(run.report.at("cases").size() == 3);
  CHECK(run.report.at("passed") == 2);
  CHECK(run.report.at("skipped") == 1);
}

TEST_CASE("without isolation a crash is still reported, for the case that crashed") {
  const Run run = run_misbehaving("--test-case=passes,crashes");
  CHECK(run.status != 0);
  CHECK(has(verdict(run, "crashes"), "SIGSEGV"));
}
