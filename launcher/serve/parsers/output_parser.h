// OutputParser: finds reasoning and tool calls in generated text while it is streamed.
//
// It parses text, so it needs the tags around these parts. In some tokenizers they are special
// tokens, which a detokenizer skips ([TOOL_CALLS], <|python_tag|>). So the caller passes
// kept_tokens() to the detokenizer (StreamOptions::kept_special_tokens), which then skips all
// special tokens but those. The token that ends an answer is never among them, and so never in the
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// A part of a tool call. The first part has its id and name; the arguments' JSON text is split into
// any number of parts, as the model wrote it.
struct ToolCallDelta {
  std::int32_t index = 0;  // of the call within the answer
  std::string id = "";     // "call_..." (Mistral: nine characters); only with the first part
  std::string name = "";   // only with the first part
  std::string arguments = "";
};

// New output of an answer. It contains at most one part of a call.
struct OutputDelta {
  std::string reasoning = "";
  std::string content = "";
  std::vector<ToolCallDelta> tool_calls = {};

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// Used by one thread. The concatenated deltas are the same, however the text was split. The time is
// linear in the text.
//
// Reasoning and content keep their white space, as in vLLM: "<think>\nA\n</think>\n\nB" is the
// reasoning "\nA\n" and the content "\n\nB". White space before the first call, between calls and
// after the last one is dropped if there is no other content there.
//
// A call's name and id are sent when its arguments start. Until then, text that turns out not to be
// a call becomes content, including its tag. After that, arguments that are truncated or invalid
// JSON are sent as they are, and invalid text after them is content.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Adds text; returns what is certain now. Text is held back only while it may be the start of a
  // tag or a call.
  virtual OutputDelta push(std::string_view text) = 0;
  // The answer has ended: returns what was held back.
  virtual OutputDelta finish() = 0;
  // Whether a tool call was found: then the answer's finish_reason is "tool_calls".
  virtual bool called_tools() const = 0;
};

// How to parse an answer.
struct OutputParserOptions {
  std::string reasoning_parser = "";  // "qwen3", "deepseek_r1", "openai_gptoss"; empty: none
  bool thinking = false;              // the prompt ended inside <think>
  // "hermes", "llama3_json", "mistral", "openai"; empty: none
  std::string tool_call_parser = "";
  std::uint64_t seed = 0;  // of the ids of tool calls
};

// The names of all parsers.
const std::vector<std::string>& reasoning_parser_names();
const std::vector<std::string>& tool_call_parser_names();

// Checks the end of a prompt. After <think> the model continues inside its reasoning: sets
// `thinking`. After </think> (the empty block that enable_thinking=false writes) it does not
// reason: clears reasoning_parser.
void apply_prompt_end(std::string_view rendered_prompt, OutputParserOptions& options);

// The special tokens that the parsers need.
std::vector<tokenizer::TokenId> kept_tokens(const OutputParserOptions& options,
                                            const tokenizer::Tokenizer& tokenizer);

// Throws an Error for unknown names, or ones of different formats: openai_gptoss and openai parse
// gpt-oss' harmony format, together or alone, and separate reasoning in either case. Without any
// parser all text is content.
std::unique_ptr<OutputParser> make_output_parser(const OutputParserOptions& options);

}  // namespace nvllm::launcher
