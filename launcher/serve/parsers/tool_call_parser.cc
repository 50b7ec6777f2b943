#include "launcher/serve/parsers/tool_call_parser.h"

#include <utility>

#include "launcher/serve/parsers/stream_matcher.h"

namespace nvllm::launcher {

// SplitMix64, six bits at a time; those that stand for no letter are skipped.
std::string CallIds::next() {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id(prefix_);
  while (id.size() < prefix_.size() + static_cast<std::size_t>(length_)) {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t bits = (state_ ^ (state_ >> 30U)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
    const std::uint64_t letter = bits >> 58U;
    if (letter < kLetters.size()) id += kLetters[letter];
  }
  return id;
}

void ToolCallParser::finish(OutputDelta& out) {
  end(out);
  if (!called()) out.content += std::exchange(white_space_, {});
}

void ToolCallParser::add_content(std::string_view text, OutputDelta& out) {
  if (!at_edge_) {
    out.content += text;
  } else if (is_space(text)) {
    white_space_ += text;
  } else {
    at_edge_ = false;
    out.content += std::exchange(white_space_, {});
    out.content += text;
  }
}

void ToolCallParser::begin_call(const std::string& name, OutputDelta& out, std::string id) {
  white_space_.clear();
  at_edge_ = true;
  if (id.empty()) id = ids_.next();
  out.tool_calls.push_back({.index = calls_++, .id = std::move(id), .name = name});
}

void ToolCallParser::add_arguments(std::string_view text, OutputDelta& out) {
  if (text.empty()) return;
  const std::int32_t index = calls_ - 1;
  if (out.tool_calls.empty() || out.tool_calls.back().index != index) {
    out.tool_calls.push_back({.index = index});
  }
  out.tool_calls.back().arguments += text;
}

CallObject::Step ToolCallParser::push_object(CallObject& object, char byte, OutputDelta& out) {
  const bool was_certain = object.certain();
  const CallObject::Step step = object.push(byte);
  if (!object.certain()) return step;
  if (!was_certain) begin_call(object.name(), out);
  add_arguments(object.take_arguments(), out);
  return step;
}

}  // namespace nvllm::launcher
