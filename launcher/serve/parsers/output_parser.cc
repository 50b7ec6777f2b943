#include "launcher/serve/parsers/output_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "launcher/serve/parsers/stream_matcher.h"
#include "launcher/serve/parsers/tool_call_parser.h"

namespace nvllm::launcher {

namespace {

// Separates a model's reasoning, <think>...</think>, from its answer. There is at most one block of
// reasoning, at the start of the answer. White space before <think> is dropped; later tags are
// text.
class ReasoningSplitter {
 public:
  // inside: the answer starts inside the reasoning; a repeated <think> is dropped.
  explicit ReasoningSplitter(bool inside) : inside_(inside) {}

  void push(char byte, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);

 private:
  enum class State { start, reasoning, content };
  void leave_start(State next, std::string& reasoning, std::string& content);

  static constexpr int kOpen = 0, kClose = 1;
  bool inside_;
  State state_ = State::start;
  TagMatcher tags_{"<think>", "</think>"};
  std::string text_;  // text released by the tags; at the start, pending white space
};

void ReasoningSplitter::leave_start(State next, std::string& reasoning, std::string& content) {
  (inside_ ? reasoning : content) += std::exchange(text_, {});
  state_ = next;
}

void ReasoningSplitter::push(char byte, std::string& reasoning, std::string& content) {
  if (state_ == State::content) {
    content += byte;
    return;
  }
  const std::size_t waiting = text_.size();
  const int tag = tags_.push(byte, text_);
  if (state_ == State::start) {
    if (tag == kOpen) {
      text_.clear();
      state_ = State::reasoning;
    } else if (tag == kClose) {
      if (!inside_) text_ += tags_.tag(tag);
      leave_start(State::content, reasoning, content);
    } else if (!is_space(std::string_view(text_).substr(waiting))) {
      leave_start(inside_ ? State::reasoning : State::content, reasoning, content);
      // The content from here on may still contain the start of a tag.
      if (!inside_) tags_.finish(content);
    }
    return;
  }
  if (tag == kOpen) text_ += tags_.tag(tag);
  reasoning += std::exchange(text_, {});
  if (tag == kClose) state_ = State::content;
}

void ReasoningSplitter::finish(std::string& reasoning, std::string& content) {
  tags_.finish(text_);
  const bool to_reasoning = state_ == State::reasoning || (state_ == State::start && inside_);
  (to_reasoning ? reasoning : content) += std::exchange(text_, {});
}

struct ToolFormat {
  std::string_view name;
  std::unique_ptr<ToolCallParser> (*make)(std::uint64_t seed);
  std::vector<std::string_view> tags;
};

const std::vector<ToolFormat>& tool_formats() {
  static const std::vector<ToolFormat> formats = {
      {"hermes", make_hermes_parser, {"<tool_call>", "</tool_call>"}},
      {"llama3_json", make_llama3_json_parser, {"<|python_tag|>"}},
      {"mistral", make_mistral_parser, {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}},
  };
  return formats;
}

// Names of harmony, whose messages are separated by one parser.
constexpr std::string_view kHarmonyReasoning = "openai_gptoss", kHarmonyTools = "openai";

bool is_harmony(const OutputParserOptions& options) {
  return options.reasoning_parser == kHarmonyReasoning || options.tool_call_parser == kHarmonyTools;
}

void check_harmony(const OutputParserOptions& options) {
  const bool reasoning =
      options.reasoning_parser.empty() || options.reasoning_parser == kHarmonyReasoning;
  const bool tools = options.tool_call_parser.empty() || options.tool_call_parser == kHarmonyTools;
  if (reasoning && tools) return;
  fail("--reasoning-parser ", options.reasoning_parser, " with --tool-call-parser ",
       options.tool_call_parser, ": ", kHarmonyReasoning, " and ", kHarmonyTools,
       " go with each other alone");
}

const ToolFormat* find_tool_format(std::string_view name) {
  for (const ToolFormat& format : tool_formats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

[[noreturn]] void refuse(std::string_view option, std::string_view name,
                         const std::vector<std::string>& names) {
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  fail(option, " ", name, ": there is no such parser; pass one of ", known);
}

// Passes content from the reasoning's splitter to the tool-call parser; either may be absent.
class Parser final : public OutputParser {
 public:
  Parser(std::optional<ReasoningSplitter> reasoning, std::unique_ptr<ToolCallParser> tools)
      : reasoning_(std::move(reasoning)), tools_(std::move(tools)) {}

  OutputDelta push(std::string_view text) override {
    OutputDelta out;
    if (!reasoning_) {
      add_content(text, out);
      return out;
    }
    std::string content;
    for (const char byte : text) reasoning_->push(byte, out.reasoning, content);
    add_content(content, out);
    return out;
  }

  OutputDelta finish() override {
    OutputDelta out;
    if (reasoning_) {
      std::string content;
      reasoning_->finish(out.reasoning, content);
      add_content(content, out);
    }
    if (tools_) tools_->finish(out);
    return out;
  }

  bool called_tools() const override { return tools_ && tools_->called(); }

 private:
  void add_content(std::string_view text, OutputDelta& out) {
    if (!tools_) {
      out.content += text;
      return;
    }
    for (const char byte : text) tools_->push(byte, out);
  }

  std::optional<ReasoningSplitter> reasoning_;
  std::unique_ptr<ToolCallParser> tools_;
};

}  // namespace

const std::vector<std::string>& reasoning_parser_names() {
  static const std::vector<std::string> names = {"qwen3", "deepseek_r1",
                                                 std::string(kHarmonyReasoning)};
  return names;
}

const std::vector<std::string>& tool_call_parser_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const ToolFormat& format : tool_formats()) result.emplace_back(format.name);
    result.emplace_back(kHarmonyTools);
    return result;
  }();
  return names;
}

void apply_prompt_end(std::string_view rendered_prompt, OutputParserOptions& options) {
  while (!rendered_prompt.empty() && is_space(rendered_prompt.back())) {
    rendered_prompt.remove_suffix(1);
  }
  options.thinking = rendered_prompt.ends_with("<think>");
  if (rendered_prompt.ends_with("</think>")) options.reasoning_parser.clear();
}

std::vector<tokenizer::TokenId> kept_tokens(const OutputParserOptions& options,
                                            const tokenizer::Tokenizer& tokenizer) {
  std::vector<std::string_view> tags;
  if (is_harmony(options)) {
    tags = harmony_tags();
  } else if (!options.reasoning_parser.empty()) {
    tags = {"<think>", "</think>"};
  }
  if (const ToolFormat* format = find_tool_format(options.tool_call_parser)) {
    tags.insert(tags.end(), format->tags.begin(), format->tags.end());
  }
  std::vector<tokenizer::TokenId> tokens;
  for (const std::string_view tag : tags) {
    const auto id = tokenizer.token_id(tag);
    if (id && tokenizer.is_special(*id)) tokens.push_back(*id);
  }
  return tokens;
}

std::unique_ptr<OutputParser> make_output_parser(const OutputParserOptions& options) {
  if (is_harmony(options)) {
    check_harmony(options);
    return make_harmony_parser(options.tool_call_parser == kHarmonyTools, options.seed);
  }
  std::optional<ReasoningSplitter> reasoning;
  const std::vector<std::string>& names = reasoning_parser_names();
  if (!options.reasoning_parser.empty()) {
    if (std::ranges::find(names, options.reasoning_parser) == names.end()) {
      refuse("--reasoning-parser", options.reasoning_parser, names);
    }
    reasoning.emplace(options.thinking || options.reasoning_parser == "deepseek_r1");
  }
  std::unique_ptr<ToolCallParser> tools;
  if (!options.tool_call_parser.empty()) {
    const ToolFormat* format = find_tool_format(options.tool_call_parser);
    if (format == nullptr) {
      refuse("--tool-call-parser", options.tool_call_parser, tool_call_parser_names());
    }
    tools = format->make(options.seed);
  }
  return std::make_unique<Parser>(std::move(reasoning), std::move(tools));
}

}  // namespace nvllm::launcher
