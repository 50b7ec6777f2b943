// Conversations in the form that chat templates expect: read from the objects of a body whose keys
// must keep their order, and rendered as the prompt of a chat.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/serve/api/api_call.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

// --- The prompt of a chat: its conversation rendered by the model's chat template ---

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

// --- Reading objects of a body. All functions throw an Error that describes invalid input. ---

// Rejects other names. null is treated as absent.
void check_names(const jinja::Dict& object, std::initializer_list<std::string_view> names);
std::string need_string(const jinja::Dict& object, std::string_view name);

// Calls function(dict) for each item; an error names the item.
template <typename Function>
void for_each_dict(const jinja::Value& value, std::string_view what, Function function) {
  const jinja::List* const list = value.list();
  if (list == nullptr) fail("a ", value.type_name(), "; must be ", what);
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    with_context(str(i), [&] {
      const jinja::Dict* const dict = list->items[i].dict();
      if (dict == nullptr) fail("a ", list->items[i].type_name(), "; must be an object");
      function(*dict);
    });
  }
}

// Joins texts as lines.
void append_line(std::string& text, std::string_view line);

// {"role": ..., "content": ...}
jinja::Dict make_message(std::string_view role, std::string content);
// {"id": ..., "type": "function", "function": {"name": ..., "arguments": {...}}}
jinja::Dict make_tool_call(std::string id, std::string name, jinja::Value arguments);
// {"type": "function", "function": {...}}; description, parameters: nullptr: none.
jinja::Dict make_tool(std::string name, const jinja::Value* description,
                      const jinja::Value* parameters);

}  // namespace nvllm::launcher
