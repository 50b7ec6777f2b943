// Any text as an answer. The first byte selects the parsers, the second one how the text is split,
// which must not matter; and no text may be invented.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "launcher/serve/parsers/output_parser.h"
#include "launcher/serve/parsers/parsed_answer.h"

namespace {

using namespace nvllm::launcher;

void require(bool condition) {
  if (!condition) std::abort();
}

// A name of the list, or none.
std::string choose(const std::vector<std::string>& names, unsigned choice) {
  choice %= static_cast<unsigned>(names.size()) + 1;
  return choice == names.size() ? "" : names[choice];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const OutputParserOptions options = {
      .reasoning_parser = choose(reasoning_parser_names(), data[0] / 8U),
      .thinking = data[0] >= 128,
      .tool_call_parser = choose(tool_call_parser_names(), data[0] % 8U),
      .seed = data[1],
  };
  const bool harmony =
      options.reasoning_parser == "openai_gptoss" || options.tool_call_parser == "openai";
  const bool others =
      (!options.reasoning_parser.empty() && options.reasoning_parser != "openai_gptoss") ||
      (!options.tool_call_parser.empty() && options.tool_call_parser != "openai");
  if (harmony && others) return 0;  // refused
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const ParsedAnswer whole = parse_answer(options, text);
  require(whole.same_as(parse_answer(options, text, [] { return 1; })));
  std::minstd_rand random(data[1] + 1U);
  require(whole.same_as(parse_answer(options, text, [&] { return 1 + random() % 16; })));
  std::size_t sum = whole.reasoning.size() + whole.content.size();
  for (const ParsedAnswer::Call& call : whole.calls) sum += call.arguments.size();
  require(sum <= text.size());
  return 0;
}
