// OutputParser: finds reasoning and tool calls in the text that a model writes, while it comes.
//
// It reads text, so it needs to see the tags between which models put these things. Some tokenizers
// have them as special tokens, which a detokenizer skips ([TOOL_CALLS], <|python_tag|>). So the
// caller gives kept_tokens() to the detokenizer (StreamOptions::kept_special_tokens), which then
// skips all special tokens but those. The token that ends an answer is never among them, and so
// never in the text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// A part of a tool call. The first of a call has its id and name; the arguments' JSON text comes in
// any number of parts, as the model wrote it.
struct ToolCallDelta {
  std::int32_t index = 0;  // of the call within the answer
  std::string id = "";     // "call_..." (Mistral: nine characters); only with the first part
  std::string name = "";   // only with the first part
  std::string arguments = "";
};

// What is new of an answer. A call has one part in it at most.
struct OutputDelta {
  std::string reasoning = "";
  std::string content = "";
  std::vector<ToolCallDelta> tool_calls = {};

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// Used by one thread. All deltas together are the same, however the text was cut into pieces.
// The time is linear in the text.
//
// Reasoning and content keep their white space, as in vLLM: "<think>\nA\n</think>\n\nB" is the
// reasoning "\nA\n" and the content "\n\nB". White space before the first call, between calls and
// after the last one is dropped if there is no other content there.
//
// A call's name and id are sent when its arguments begin. Up to there, what turns out to be no call
// becomes content with its tag. After that, arguments that end early or are no JSON are sent as
// they are, and what follows them in vain is content.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // The text that came, and what it makes certain. Text is held back only while it may be the
  // beginning of a tag or of a call.
  virtual OutputDelta push(std::string_view text) = 0;
  // The answer has ended: what was held back.
  virtual OutputDelta finish() = 0;
  // Whether a tool call was found: then the answer's finish_reason is "tool_calls".
  virtual bool called_tools() const = 0;
};

// How an answer is to be read.
struct OutputParserOptions {
  std::string reasoning_parser = "";  // "qwen3", "deepseek_r1", "openai_gptoss"; empty: none
  bool thinking = false;              // the prompt ended inside <think>
  // "hermes", "llama3_json", "mistral", "openai"; empty: none
  std::string tool_call_parser = "";
  std::uint64_t seed = 0;  // of the ids of tool calls
};

// The names that exist, for messages and checks.
const std::vector<std::string>& reasoning_parser_names();
const std::vector<std::string>& tool_call_parser_names();

// Looks at how a prompt ends. After <think> the model goes on inside its reasoning: sets
// `thinking`. After </think> (the empty block that enable_thinking=false writes) it does not
// reason: clears reasoning_parser.
void apply_prompt_end(std::string_view rendered_prompt, OutputParserOptions& options);

// The special tokens that the parsers must see.
std::vector<tokenizer::TokenId> kept_tokens(const OutputParserOptions& options,
                                            const tokenizer::Tokenizer& tokenizer);

// Throws an Error for names that do not exist, or that are not of one format: openai_gptoss and
// openai read gpt-oss' harmony format together, or one of them alone, and tell reasoning apart in
// either case. Without any parser all text is content.
std::unique_ptr<OutputParser> make_output_parser(const OutputParserOptions& options);

}  // namespace nvllm::launcher
