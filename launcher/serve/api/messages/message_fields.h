// The body of a request to /v1/messages in the format of Anthropic's API, plus those sampling
// fields of vLLM that have no equivalent there.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/conversation.h"
#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

struct MessageFields : GenerationFields {
  bool has_messages = false;
  bool has_tools = false;
  bool uses_tools = true;  // tool_choice is not "none"
  bool parallel_tool_calls = true;
  std::optional<bool> thinking = std::nullopt;  // absent: as the template does by itself
};

// Both throw an ApiError for invalid bodies.
MessageFields read_message_fields(const ApiContext& context, std::string_view body);

// The conversation in the form for the model's chat template: system, user, assistant and tool
// messages.
ChatPrompt message_prompt_of(const ApiContext& context, const MessageFields& fields,
                             std::string_view body);

}  // namespace nvllm::launcher
