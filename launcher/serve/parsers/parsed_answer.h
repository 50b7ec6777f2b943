// ParsedAnswer: the concatenated deltas of an answer, for tests.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "launcher/serve/parsers/output_parser.h"

namespace nvllm::launcher {

struct ParsedAnswer {
  std::string reasoning = "", content = "";
  struct Call {
    std::string id, name, arguments;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls = {};
  bool called_tools = false;
  std::size_t deltas = 0;  // that were not empty

  bool same_as(const ParsedAnswer& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls &&
           called_tools == other.called_tools;
  }

  void add(const OutputDelta& delta) {
    if (!delta.empty()) ++deltas;
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallDelta& part : delta.tool_calls) {
      const auto index = static_cast<std::size_t>(part.index);
      // Only a call's first part has its id and name, and calls follow one another.
      const bool first = index == calls.size();
      NVLLM_CHECK(first || index + 1 == calls.size());
      NVLLM_CHECK(part.id.empty() != first);
      NVLLM_CHECK(part.name.empty() != first);
      if (first) calls.push_back({.id = part.id, .name = part.name, .arguments = ""});
      calls.back().arguments += part.arguments;
    }
  }
};

// piece_size(): size of the next piece, at least 1.
template <typename PieceSize>
ParsedAnswer parse_answer(const OutputParserOptions& options, std::string_view text,
                          PieceSize piece_size) {
  const auto parser = make_output_parser(options);
  ParsedAnswer answer;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, piece_size());
    answer.add(parser->push(piece));
    text.remove_prefix(piece.size());
  }
  answer.add(parser->finish());
  answer.called_tools = parser->called_tools();
  return answer;
}

// In one piece.
inline ParsedAnswer parse_answer(const OutputParserOptions& options, std::string_view text) {
  return parse_answer(options, text, [&] { return text.size(); });
}

}  // namespace nvllm::launcher
