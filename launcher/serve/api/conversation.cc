#include "launcher/serve/api/conversation.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

// --- The prompt of a chat ---

namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// Converts the arguments of a call, which clients send back as JSON text, to the object that
// templates expect; none, and a blank text, to an empty one. Anything else but an object is kept.
jinja::Value as_object(const jinja::Value& arguments) {
  if (arguments.none()) return jinja::Dict{};
  if (arguments.string() == nullptr) return arguments;
  if (stripped(*arguments.string()).empty()) return jinja::Dict{};
  try {
    jinja::Value parsed = jinja::from_json(*arguments.string(), "arguments");
    return parsed.dict() == nullptr ? arguments : parsed;
  } catch (const Error&) {
    return arguments;
  }
}

jinja::Value prepare_call(const jinja::Value& call) {
  const jinja::Value* const function =
      call.dict() == nullptr ? nullptr : call.dict()->get("function");
  const jinja::Value* const arguments = function == nullptr || function->dict() == nullptr
                                            ? nullptr
                                            : function->dict()->get("arguments");
  if (arguments == nullptr) return call;
  jinja::Dict prepared_function = *function->dict();
  prepared_function.set("arguments", as_object(*arguments));
  jinja::Dict prepared = *call.dict();
  prepared.set("function", std::move(prepared_function));
  return prepared;
}

// Converts an assistant's earlier message for templates: its calls, and its reasoning under the old
// and the new name. gpt-oss' template reads the reasoning before a call as "thinking", if there is
// no content. A message without content, as that of a call, has an empty one, as in vLLM: templates
// add it to other texts.
jinja::Value prepare_history(const jinja::Value& message) {
  const jinja::Dict* const dict = message.dict();
  if (dict == nullptr) return message;
  const jinja::Value* const calls = dict->get("tool_calls");
  const jinja::Value* const reasoning = dict->get("reasoning");
  const jinja::Value* const old_reasoning = dict->get("reasoning_content");
  jinja::Dict prepared = *dict;
  if (reasoning != nullptr && old_reasoning == nullptr) {
    prepared.set("reasoning_content", *reasoning);
  } else if (reasoning == nullptr && old_reasoning != nullptr) {
    prepared.set("reasoning", *old_reasoning);
  }
  const jinja::Value* const thought = reasoning != nullptr ? reasoning : old_reasoning;
  const jinja::Value* const content = dict->get("content");
  const bool speaks =
      content != nullptr && content->string() != nullptr && !content->string()->empty();
  if (calls != nullptr && thought != nullptr && thought->string() != nullptr && !speaks &&
      dict->get("thinking") == nullptr) {
    prepared.set("thinking", *thought);
  }
  if (content == nullptr || content->none()) prepared.set("content", std::string());
  if (calls != nullptr && calls->list() != nullptr) {
    jinja::List list;
    for (const jinja::Value& call : calls->list()->items) list.items.push_back(prepare_call(call));
    prepared.set("tool_calls", std::move(list));
  }
  return prepared;
}

jinja::Value prepare_history_of(const jinja::Value& messages) {
  if (messages.list() == nullptr) return messages;
  jinja::List list;
  for (const jinja::Value& each : messages.list()->items)
    list.items.push_back(prepare_history(each));
  return list;
}

// The text of the last message, or of its last part.
std::string_view final_content(const jinja::Value& messages) {
  const jinja::List* const list = messages.list();
  const jinja::Dict* const last =
      list == nullptr || list->items.empty() ? nullptr : list->items.back().dict();
  const jinja::Value* content = last == nullptr ? nullptr : last->get("content");
  if (content != nullptr && content->list() != nullptr && !content->list()->items.empty()) {
    const jinja::Dict* const part = content->list()->items.back().dict();
    if (part != nullptr) content = part->get("text");
  }
  if (content == nullptr || content->string() == nullptr) {
    fail("continue_final_message: the last message has no text");
  }
  return *content->string();
}

// Removes what the template wrote after the last message, as transformers does.
void cut_after_final_message(const jinja::Value& messages, tokenizer::MarkedText& text) {
  const std::string_view content = final_content(messages);
  const std::string_view core = stripped(content);
  const std::size_t at = text.text.rfind(core);
  if (core.empty() || at == std::string::npos) {
    fail("continue_final_message: the chat template does not write the last message as it is");
  }
  const std::string_view rest = content.substr(content.find_first_not_of(kSpace));
  // A template may strip white space at the message's end.
  const bool keeps_space = std::string_view(text.text).substr(at).starts_with(rest);
  text.cut(at + (keeps_space ? rest.size() : core.size()));
}

tokenizer::MarkedText render(const ApiContext& context, const ChatPromptOptions& options) {
  tokenizer::ChatTemplate::Request request;
  request.messages = prepare_history_of(options.messages);
  request.tools = options.tools;
  request.options = options.template_options;
  request.options.set("add_generation_prompt", options.add_generation_prompt);
  tokenizer::MarkedText text = context.text->render_conversation(std::move(request));
  if (options.continue_final_message) cut_after_final_message(options.messages, text);
  return text;
}

}  // namespace

ChatPrompt make_chat_prompt(const ApiContext& context, const ChatPromptOptions& options) {
  if (context.text == nullptr) {
    throw ApiError(400, "messages: the model has no tokenizer; pass token ids to /v1/completions",
                   "messages");
  }
  ChatPrompt prompt;
  tokenizer::MarkedText rendered;
  try {
    rendered = render(context, options);
  } catch (const Error& error) {
    // Most errors start with the invalid message: "messages[2]: ...".
    const std::string_view message = error.what();
    const char* const field = message.starts_with("messages") ? "" : "messages: ";
    throw ApiError(400, str(field, message), "messages");
  }
  prompt.ids = encode_text(context, "messages", rendered, options.add_special_tokens);
  prompt.text = std::move(rendered.text);
  return prompt;
}

void check_finds_tool_calls(const ApiContext& context, std::string_view none) {
  if (context.auto_tool_choice && !context.tool_call_parser.empty()) return;
  throw ApiError(400,
                 str("tools: the server was started without --enable-auto-tool-choice and "
                     "--tool-call-parser; pass \"tool_choice\": ",
                     none),
                 "tools");
}

// --- Reading objects of a body ---

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
