// The prompt of a chat: its conversation as the model's template writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/api/api_call.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

struct ChatPromptOptions {
  jinja::Value messages = {};
  jinja::Value tools = {};            // none, or a list
  jinja::Dict template_options = {};  // what the template knows beside them
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
};

struct ChatPrompt {
  std::vector<std::int32_t> ids = {};
  std::string text = "";  // as it was rendered
};

// Throws an ApiError that blames "messages" for what the template refuses.
ChatPrompt make_chat_prompt(const ApiContext& context, const ChatPromptOptions& options);

// Throws an ApiError that blames "tools" if the server finds no tool calls in answers. none: the
// value of tool_choice with which the request would be taken.
void check_finds_tool_calls(const ApiContext& context, std::string_view none);

}  // namespace nvllm::launcher
