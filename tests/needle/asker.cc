#include "tests/needle/asker.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "launcher/testing/program.h"

namespace nvllm::needle {
namespace {

using Json = nlohmann::json;

constexpr Nanoseconds kLimit = std::chrono::hours(2);

void write_questions(const std::string& path, const std::vector<Question>& questions) {
  std::ofstream file(path);
  for (const Question& question : questions) {
    file << Json{{"prompt_token_ids", question.prompt}, {"max_tokens", question.answer.size() + 2}}
         << '\n';
  }
  file.close();
  if (!file) fail(path, ": cannot be written");
}

Found found_of(const Json& line, const Question& question) {
  Found found{.tokens = line.at("token_ids"),
              .kv_mode = line.value("kv_mode", ""),
              .cached_tokens = line.value("cached_tokens", std::int64_t{0})};
  found.right = found.tokens == question.answer;
  return found;
}

}  // namespace

std::vector<Found> ask(const std::string& folder, const std::vector<Question>& questions,
                       const std::vector<std::string>& options) {
  const std::string input = folder + "/questions.jsonl";
  write_questions(input, questions);
  std::vector<std::string> words = {"generate",      "--model", folder,        "--input", input,
                                    "--temperature", "0",       "--log-level", "warning"};
  words.insert(words.end(), options.begin(), options.end());
  testing::Program program(words);
  const int exit_code = program.wait(kLimit);
  if (exit_code != 0) fail("nvllm-launch ended with ", exit_code, ":\n", program.errors());

  std::vector<Found> all;
  std::istringstream lines(program.output());
  for (std::string line; std::getline(lines, line);) {
    const Json json = parse_json(line);
    if (json.contains("error")) fail(json_text(json.at("error")));
    if (all.size() < questions.size()) all.push_back(found_of(json, questions[all.size()]));
  }
  if (all.size() != questions.size()) {
    fail(questions.size(), " questions got ", all.size(), " answers:\n", program.errors());
  }
  return all;
}

}  // namespace nvllm::needle
