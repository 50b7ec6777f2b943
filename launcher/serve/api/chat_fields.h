// The fields of a chat besides those of generation_fields.h.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/conversation.h"
#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

struct ChatFields : GenerationFields {
  std::optional<std::int32_t> max_completion_tokens = std::nullopt;
  bool wants_logprobs = false;
  std::optional<std::int32_t> top_logprobs = std::nullopt;
  // The prompt.
  bool has_messages = false;
  bool has_tools = false;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string reasoning_effort = "";
  // The answer.
  bool include_reasoning = true;
  std::string tool_choice = "";  // "auto", "none"; empty: auto if there are tools
  bool parallel_tool_calls = true;
};

// Throws an ApiError for invalid fields.
ChatFields read_chat_fields(const ApiContext& context, const nlohmann::json& body);

// Accepts "auto" or "none"; throws an Error for values that force a call, or others.
void read_tool_choice(const nlohmann::json& value, std::string& to);

// "low", "high"; an Error if there is no such effort.
void read_reasoning_effort(const nlohmann::json& value, std::string& to);

// The body's conversation as a prompt.
ChatPrompt chat_prompt_of(const ApiContext& context, const ChatFields& fields,
                          std::string_view body);

}  // namespace nvllm::launcher
