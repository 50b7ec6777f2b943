// Reads objects of a body whose keys must keep their order, and creates messages and tools in the
// form that chat templates expect. All functions throw an Error that describes invalid input.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::launcher {

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
