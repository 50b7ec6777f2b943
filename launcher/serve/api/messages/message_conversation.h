// Anthropic's conversations as chat templates know them: content blocks become texts, tool calls
// and messages of tools.
#pragma once

#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

// Of a body with "messages", and "system" perhaps. Throws an ApiError that blames one of them.
jinja::Value conversation_of_messages(const jinja::Dict& body);

// {"name": ..., "input_schema": ...} as {"type": "function", "function": {...}}.
jinja::Value tools_of_message(const jinja::Dict& body);

// Whether the last message is the assistant's.
bool ends_with_assistant(const jinja::Dict& body);

}  // namespace nvllm::launcher
