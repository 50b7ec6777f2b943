// The result of one test case, and the two report files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::testing {

enum class Verdict { passed, failed, skipped };

struct CaseResult {
  std::string name;
  std::string file;  // file:line
  Verdict verdict = Verdict::passed;
  std::string detail;  // why it failed or was skipped
  double seconds = 0;
};

std::string_view name_of(Verdict verdict);
int count(const std::vector<CaseResult>& results, Verdict verdict);
std::string count_line(const std::vector<CaseResult>& results);  // "3 passed, 0 failed, 1 skipped"

// The test.xml that Bazel and tools/summarize read.
void write_xml(const std::string& path, const std::string& suite,
               const std::vector<CaseResult>& results);

// {"passed": 1, "failed": 0, "skipped": 0,
//  "cases": [{"name", "file", "verdict", "detail", "seconds"}]}
void write_json(const std::string& path, const std::vector<CaseResult>& results);
std::vector<CaseResult> read_json(const std::string& path);  // throws if the file is malformed

}  // namespace nvllm::testing
