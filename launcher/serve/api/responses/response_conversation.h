// Items of OpenAI's Responses API as chat templates know conversations.
#pragma once

#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

// Of a body with "input", and "instructions" perhaps. Throws an ApiError that blames one of them.
jinja::Value conversation_of_items(const jinja::Dict& body);

// {"type": "function", "name": ..., "parameters": ...} as {"type": "function", "function": {...}}.
jinja::Value tools_of_response(const jinja::Dict& body);

}  // namespace nvllm::launcher
