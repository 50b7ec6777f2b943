// The prompt of a chat: its conversation rendered by the model's chat template.
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
  jinja::Dict template_options = {};  // other variables of the template
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
};

struct ChatPrompt {
  std::vector<std::int32_t> ids = {};
  std::string text = "";  // as it was rendered
};

// Throws an ApiError about "messages" if the template rejects them.
ChatPrompt make_chat_prompt(const ApiContext& context, const ChatPromptOptions& options);

// Throws an ApiError about "tools" if the server does not parse tool calls. none: the value of
// tool_choice with which the request would be accepted.
void check_finds_tool_calls(const ApiContext& context, std::string_view none);

}  // namespace nvllm::launcher
