#include "testing/case_result.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "base/json_text.h"

namespace nvllm::testing {
namespace {

std::string xml_escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += (static_cast<unsigned char>(c) < ' ' && c != '\n') ? '?' : c;
    }
  }
  return out;
}

Verdict verdict_of(const std::string& name) {
  for (Verdict verdict : {Verdict::passed, Verdict::failed, Verdict::skipped}) {
    if (name == name_of(verdict)) return verdict;
  }
  throw std::runtime_error("no such verdict: " + name);
}

// Readers of the XML identify cases by name: duplicates get their source location appended.
std::vector<std::string> unique_names(const std::vector<CaseResult>& results) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const CaseResult& result : results) {
    names.push_back(seen.insert(result.name).second ? result.name
                                                    : result.name + " (" + result.file + ")");
  }
  return names;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed: return "passed";
    case Verdict::failed: return "failed";
    case Verdict::skipped: return "skipped";
  }
  return "unknown";
}

int count(const std::vector<CaseResult>& results, Verdict verdict) {
  return static_cast<int>(
      std::count_if(results.begin(), results.end(),
                    [verdict](const CaseResult& result) { return result.verdict == verdict; }));
}

std::string count_line(const std::vector<CaseResult>& results) {
  return std::to_string(count(results, Verdict::passed)) + " passed, " +
         std::to_string(count(results, Verdict::failed)) + " failed, " +
         std::to_string(count(results, Verdict::skipped)) + " skipped";
}

void write_xml(const std::string& path, const std::string& suite,
               const std::vector<CaseResult>& results) {
  std::ofstream xml(path);
  xml << "<testsuites><testsuite name=\"" << xml_escaped(suite) << "\" tests=\"" << results.size()
      << "\" failures=\"" << count(results, Verdict::failed) << "\" skipped=\""
      << count(results, Verdict::skipped) << "\">\n";
  const std::vector<std::string> names = unique_names(results);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const CaseResult& result = results[i];
    xml << "  <testcase name=\"" << xml_escaped(names[i]) << "\" classname=\""
        << xml_escaped(result.file) << "\" time=\"" << result.seconds << "\">";
    if (result.verdict != Verdict::passed) {
      xml << (result.verdict == Verdict::failed ? "<failure" : "<skipped") << " message=\""
          << xml_escaped(result.detail) << "\"/>";
    }
    xml << "</testcase>\n";
  }
  xml << "</testsuite></testsuites>\n";
}

void write_json(const std::string& path, const std::vector<CaseResult>& results) {
  nlohmann::ordered_json json;
  for (Verdict verdict : {Verdict::passed, Verdict::failed, Verdict::skipped}) {
    json[std::string(name_of(verdict))] = count(results, verdict);
  }
  json["cases"] = nlohmann::ordered_json::array();
  for (const CaseResult& result : results) {
    json["cases"].push_back({{"name", result.name},
                             {"file", result.file},
                             {"verdict", name_of(result.verdict)},
                             {"detail", result.detail},
                             {"seconds", result.seconds}});
  }
  // A test's output may contain any bytes; invalid UTF-8 becomes U+FFFD.
  std::ofstream(path) << json_text(json, 2) << '\n';
}

std::vector<CaseResult> read_json(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nvllm::read_json(file);
  std::vector<CaseResult> results;
  for (const auto& entry : json.at("cases")) {
    results.push_back({entry.at("name"), entry.at("file"), verdict_of(entry.at("verdict")),
                       entry.at("detail"), entry.at("seconds")});
  }
  return results;
}

}  // namespace nvllm::testing
