// The body of a request to /v1/messages, as Anthropic's API has it, beside those sampling fields of
// vLLM's that have no name there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/chat_prompt.h"
#include "launcher/serve/api/generation_fields.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

struct MessageFields : GenerationFields {
  bool has_messages = false;
  bool has_tools = false;
  bool uses_tools = true;  // tool_choice is not "none"
  bool parallel_tool_calls = true;
  std::optional<bool> thinking = std::nullopt;  // absent: as the template does by itself
};

// Both throw an ApiError for what is wrong with them.
MessageFields read_message_fields(const ApiContext& context, std::string_view body);

// The conversation as the model's chat template has it: system, user, assistant and tool messages.
ChatPrompt message_prompt_of(const ApiContext& context, const MessageFields& fields,
                             std::string_view body);

// --- message_conversation.cc ---
// Anthropic's conversations as chat templates know them: content blocks become texts, tool calls
// and messages of tools. The body has "messages", and "system" perhaps; throws an ApiError that
// blames one of them.
jinja::Value conversation_of_messages(const jinja::Dict& body);

// {"name": ..., "input_schema": ...} as {"type": "function", "function": {...}}.
jinja::Value tools_of_message(const jinja::Dict& body);

// Whether the last message is the assistant's.
bool ends_with_assistant(const jinja::Dict& body);

}  // namespace nvllm::launcher
