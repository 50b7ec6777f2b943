#include "launcher/serve/api/dict_reading.h"

#include <algorithm>
#include <utility>

#include "launcher/session/request_fields.h"

namespace nvllm::launcher {

using jinja::Dict;
using jinja::Value;

void check_names(const Dict& object, std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : object.items()) {
    if (value.none() || std::ranges::find(names, *name.string()) != names.end()) continue;
    fail("'", name.string()->substr(0, 40), "': no such field");
  }
}

std::string need_string(const Dict& object, std::string_view name) {
  const Value* const value = object.get(name);
  if (value == nullptr) fail(name, ": missing");
  if (value->string() == nullptr) fail(name, ": a ", value->type_name(), "; must be a string");
  return *value->string();
}

void append_line(std::string& text, std::string_view line) {
  if (!text.empty()) text += '\n';
  text += line;
}

Dict make_message(std::string_view role, std::string content) {
  Dict message;
  message.set("role", role);
  message.set("content", std::move(content));
  return message;
}

Dict make_tool_call(std::string id, std::string name, Value arguments) {
  Dict function;
  function.set("name", std::move(name));
  function.set("arguments", std::move(arguments));
  Dict call;
  call.set("id", std::move(id));
  call.set("type", "function");
  call.set("function", std::move(function));
  return call;
}

Dict make_tool(std::string name, const Value* description, const Value* parameters) {
  Dict function;
  function.set("name", std::move(name));
  if (description != nullptr && !description->none()) function.set("description", *description);
  if (parameters != nullptr && !parameters->none()) function.set("parameters", *parameters);
  Dict tool;
  tool.set("type", "function");
  tool.set("function", std::move(function));
  return tool;
}

}  // namespace nvllm::launcher
