// Runs one case of this test program again, in a process of its own: for what ends a process, such
// as what a sanitizer finds.
#pragma once

#include <chrono>
#include <string>

namespace nvllm::testing {

struct Rerun {
  int status = 0;      // as of waitpid()
  bool hung = false;   // it was killed after the limit
  std::string output;  // standard output and error

  bool passed() const { return !hung && status == 0; }
  // ThreadSanitizer reported a race, be it in a process that this one had forked.
  bool raced() const { return output.find("ThreadSanitizer: data race") != std::string::npos; }
};

// case_name, here and below: as doctest's --test-case takes it. The case finds the value in its
// environment.
Rerun rerun_case(const std::string& case_name, const std::string& variable,
                 const std::string& value, std::chrono::seconds limit = std::chrono::seconds(100));
// Until ThreadSanitizer reports a race, which is a matter of who is late; at most a few times.
Rerun rerun_until_race(const std::string& case_name, const std::string& variable,
                       const std::string& value);

}  // namespace nvllm::testing
