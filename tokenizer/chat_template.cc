#include "tokenizer/chat_template.h"

#include <cstdint>
#include <utility>

#include "base/bounded_json.h"
#include "base/error.h"

namespace nvllm::tokenizer {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// "<s>", or {"content": "<s>", ...}; nothing for null.
const std::string* token_text(const Value& value) {
  if (value.string() != nullptr) return value.string();
  const Value* content = value.dict() == nullptr ? nullptr : value.dict()->get("content");
  return content == nullptr ? nullptr : content->string();
}

Dict special_tokens_of(const Dict& config) {
  Dict tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const Value* value = config.get(name);
    const std::string* text = value == nullptr ? nullptr : token_text(*value);
    if (text != nullptr) tokens.set(name, *text);
  }
  return tokens;
}

struct Sources {
  std::optional<std::string> standard, tool_use;
};

// A template, or a list of {"name": ..., "template": ...}.
Sources templates_of(const Dict& config) {
  const Value* value = config.get("chat_template");
  if (value == nullptr || value->none()) return {};
  if (value->string() != nullptr) return {.standard = *value->string(), .tool_use = {}};
  const List* several = value->list();
  if (several == nullptr)
    fail("tokenizer_config.json: chat_template is a ", value->type_name(),
         ", not a string or a list");
  Sources sources;
  std::string names;
  for (const Value& one : several->items) {
    const Dict* entry = one.dict();
    const Value* name = entry == nullptr ? nullptr : entry->get("name");
    const Value* text = entry == nullptr ? nullptr : entry->get("template");
    if (name == nullptr || text == nullptr || name->string() == nullptr ||
        text->string() == nullptr) {
      fail("tokenizer_config.json: an entry of chat_template has no name or no template");
    }
    if (*name->string() == "default") sources.standard = *text->string();
    if (*name->string() == "tool_use") sources.tool_use = *text->string();
    names += (names.empty() ? "" : ", ") + *name->string();
  }
  if (sources.standard) return sources;
  fail("tokenizer_config.json: chat_template has ", shown_text(names),
       " but no template named default; pass one with --chat-template");
}

// The variables of a template.
Dict context_of(const ChatTemplate::Request& request, const Dict& special_tokens) {
  Dict context = special_tokens;
  context.set("messages", request.messages);
  context.set("tools", request.tools);
  context.set("documents", Value());
  context.set("add_generation_prompt", false);
  for (const auto& [name, value] : request.options.items()) context.set(name, value);
  return context;
}

std::optional<jinja::Template> parse_tool_use(const std::optional<std::string>& source) {
  if (!source) return std::nullopt;
  return with_context("chat template tool_use", [&] { return jinja::Template::parse(*source); });
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const Dict& special_tokens,
                           const std::optional<std::string>& tool_use)
    : sources_(str(source, '\n', tool_use.value_or(""))),
      template_(with_context("chat template", [&] { return jinja::Template::parse(source); })),
      tool_use_(parse_tool_use(tool_use)),
      special_tokens_(special_tokens),
      takes_parts_(renders_parts(template_, {}) &&
                   (!tool_use_ || renders_parts(*tool_use_, List{}))) {}

std::optional<ChatTemplate> ChatTemplate::from_config(
    std::string_view tokenizer_config_json, const std::optional<std::string>& file,
    const std::optional<std::string>& tool_use_file) {
  const Value config = jinja::from_json(tokenizer_config_json, "tokenizer_config.json");
  if (config.dict() == nullptr)
    fail("tokenizer_config.json is a ", config.type_name(), ", not a dict");
  const Dict tokens = special_tokens_of(*config.dict());
  if (file) return ChatTemplate(*file, tokens, tool_use_file);
  const Sources sources = templates_of(*config.dict());
  if (!sources.standard) return std::nullopt;
  return ChatTemplate(*sources.standard, tokens, tool_use_file ? tool_use_file : sources.tool_use);
}

// Tests it: a template that supports parts renders both texts unchanged. One that does not prints
// the list (with escaped newlines), omits it, or fails.
bool ChatTemplate::renders_parts(const jinja::Template& source, const Value& tools) const {
  const std::string first = "nvllm\npart 1", second = "nvllm\npart 2";
  List parts;
  for (const std::string& text : {first, second}) {
    Dict part;
    part.set("type", "text");
    part.set("text", text);
    parts.items.emplace_back(std::move(part));
  }
  Dict message;
  message.set("role", "user");
  message.set("content", std::move(parts));
  const Request request{
      .messages = List{.items = {std::move(message)}}, .tools = tools, .options = {}};
  // Rendering one message is cheap; a template that needs more is aborted.
  const jinja::Limits limits{.work = std::int64_t{1} << 24};
  try {
    const std::string text = source.render(context_of(request, special_tokens_), limits);
    return text.find(first) < text.find(second) && text.find(second) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

bool ChatTemplate::mentions(std::string_view word) const {
  for (const char quote : {'"', '\''}) {
    if (sources_.find(str(quote, word, quote)) != std::string::npos) return true;
  }
  return false;
}

MarkedText ChatTemplate::render_marked(const Request& request) const {
  Request marked{.messages = jinja::from_outside(request.messages),
                 .tools = jinja::from_outside(request.tools),
                 .options = {}};
  for (const auto& [name, value] : request.options.items()) {
    marked.options.set(name, jinja::from_outside(value));
  }
  return render_values(marked);
}

MarkedText ChatTemplate::render_values(const Request& request) const {
  const List* messages = request.messages.list();
  if (messages == nullptr)
    fail("messages: a ", request.messages.type_name(), "; they must be a list");
  for (const Value& message : messages->items) {
    if (message.dict() == nullptr)
      fail("messages: one is a ", message.type_name(), "; each must be a dict");
  }
  const Dict context = context_of(request, special_tokens_);
  const bool uses_tools = tool_use_ && !request.tools.none();
  try {
    return (uses_tools ? *tool_use_ : template_).render_marked(context);
  } catch (const jinja::TemplateRaised& raised) {
    constexpr std::size_t kMaxShown = 200;
    fail("the chat template refuses the conversation: ", shown_text(raised.what(), kMaxShown));
  } catch (const Error& error) {
    fail("chat template: ", error.what());
  }
}

}  // namespace nvllm::tokenizer
