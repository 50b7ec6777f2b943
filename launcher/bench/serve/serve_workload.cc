#include "launcher/bench/serve/serve_workload.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

// Words that are, with the space before them, single tokens in most vocabularies.
constexpr std::array<std::string_view, 64> kWords = {
    "time",    "year",   "people", "way",    "day",   "man",    "thing",  "woman",
    "life",    "child",  "world",  "school", "state", "family", "group",  "country",
    "hand",    "part",   "place",  "case",   "week",  "system", "work",   "government",
    "point",   "number", "night",  "home",   "water", "room",   "mother", "area",
    "money",   "story",  "fact",   "month",  "lot",   "right",  "study",  "book",
    "eye",     "job",    "word",   "issue",  "side",  "kind",   "head",   "house",
    "service", "friend", "father", "power",  "hour",  "game",   "line",   "end",
    "member",  "law",    "car",    "city",   "name",  "team",   "minute", "idea"};

void append_ids(std::string& text, std::span<const std::int32_t> ids) {
  std::array<char, 16> digits;
  for (const std::int32_t id : ids) {
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), id).ptr;
    text.append(digits.data(), end);
    text += ',';
  }
  if (text.ends_with(',')) text.pop_back();
}

void append_words(std::string& text, std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    text += kWords[static_cast<std::size_t>(id) % kWords.size()];
    text += ' ';
  }
  if (text.ends_with(' ')) text.pop_back();
}

}  // namespace

Arrivals::Arrivals(double rate, double burstiness, std::uint64_t seed)
    : rate_(rate),
      burstiness_(burstiness),
      random_(seed),
      gamma_(burstiness, 1 / (rate * burstiness)) {}

double Arrivals::next_gap_s() {
  if (std::isinf(rate_)) return 0;
  if (burstiness_ != 1) return gamma_(random_);
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;  // in [0, 1)
  return -std::log1p(-uniform) / rate_;
}

const runtime::Request& WorkloadStream::next() {
  if (at_ == block_.requests.size()) {
    block_ = make_workload(options_);
    ++options_.seed;
    at_ = 0;
  }
  return block_.requests[at_++];
}

BodyWriter::BodyWriter(const BenchServeOptions& options, const std::string& model)
    : chat_(options.chat()) {
  nlohmann::ordered_json json = {{"model", model},
                                 {"stream", true},
                                 {"stream_options", {{"include_usage", true}}},
                                 {"temperature", options.temperature}};
  if (options.top_p) json["top_p"] = *options.top_p;
  if (options.top_k) json["top_k"] = *options.top_k;
  if (options.ignore_eos) json["ignore_eos"] = true;
  if (!options.extra_body.empty()) json.update(parse_ordered_json(options.extra_body));
  beginning_ = json_text(json);
  beginning_.back() = ',';
}

std::string BodyWriter::body(const runtime::Request& request) const {
  const std::span<const std::int32_t> ids = request.prompt;
  std::string body;
  body.reserve(beginning_.size() + 128 + 7 * ids.size());
  body += beginning_;
  body += chat_ ? "\"max_completion_tokens\":" : "\"max_tokens\":";
  body += std::to_string(request.sampling.max_tokens.value_or(1));
  body += chat_ ? R"(,"messages":[{"role":"user","content":")" : R"(,"prompt":[)";
  chat_ ? append_words(body, ids) : append_ids(body, ids);
  return body += chat_ ? "\"}]}" : "]}";
}

}  // namespace nvllm::launcher
