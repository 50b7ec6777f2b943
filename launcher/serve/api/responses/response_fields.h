// The body of a request to /v1/responses, as OpenAI's Responses API has it, beside those sampling
// fields of vLLM's that have no name there. The server keeps nothing: a client sends the whole
// conversation each time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/chat_prompt.h"
#include "launcher/serve/api/generation_fields.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

struct ResponseFields : GenerationFields {
  bool has_input = false;
  bool has_tools = false;
  std::string tool_choice = "auto";
  bool parallel_tool_calls = true;
  std::string reasoning_effort = "";
  // What the response repeats, as JSON.
  std::string instructions = "null", tools = "[]", metadata = "{}", user = "null";
};

// Both throw an ApiError for what is wrong with them.
ResponseFields read_response_fields(const ApiContext& context, std::string_view body);
ChatPrompt response_prompt_of(const ApiContext& context, const ResponseFields& fields,
                              std::string_view body);

// --- response_conversation.cc ---
// Items of OpenAI's Responses API as chat templates know conversations. The body has "input", and
// "instructions" perhaps; throws an ApiError that blames one of them.
jinja::Value conversation_of_items(const jinja::Dict& body);

// {"type": "function", "name": ..., "parameters": ...} as {"type": "function", "function": {...}}.
jinja::Value tools_of_response(const jinja::Dict& body);

}  // namespace nvllm::launcher
