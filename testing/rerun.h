// Runs one case of this test program again, in a separate process: for checks that end a process,
// such as sanitizer findings.
#pragma once

#include <chrono>
#include <string>

namespace nvllm::testing {

struct Rerun {
  int status = 0;      // as of waitpid()
  bool hung = false;   // killed after the limit
  std::string output;  // standard output and error

  bool passed() const { return !hung && status == 0; }
  // Whether ThreadSanitizer reported a race, even in a process forked by this one.
  bool raced() const { return output.find("ThreadSanitizer: data race") != std::string::npos; }
};

// case_name, here and below: in the syntax of doctest's --test-case. The case finds the value in
// its environment.
Rerun rerun_case(const std::string& case_name, const std::string& variable,
                 const std::string& value, std::chrono::seconds limit = std::chrono::seconds(100));
// Repeats until ThreadSanitizer reports a race, which depends on timing; at most a few times.
Rerun rerun_until_race(const std::string& case_name, const std::string& variable,
                       const std::string& value);

}  // namespace nvllm::testing
