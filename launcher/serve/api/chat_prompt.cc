#include "launcher/serve/api/chat_prompt.h"

#include "launcher/serve/api/field_values.h"
#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

std::string_view final_content(const jinja::Value& messages) {
  const jinja::List* const list = messages.list();
  const jinja::Dict* const last =
      list == nullptr || list->items.empty() ? nullptr : list->items.back().dict();
  const jinja::Value* const content = last == nullptr ? nullptr : last->get("content");
  if (content == nullptr || content->string() == nullptr) {
    fail("continue_final_message: the last message has no text");
  }
  return *content->string();
}

// Cuts off what the template wrote behind the last message, as transformers does.
void cut_after_final_message(const jinja::Value& messages, std::string& text) {
  const std::string_view content = final_content(messages);
  const std::string_view core = stripped(content);
  const std::size_t at = text.rfind(core);
  if (core.empty() || at == std::string::npos) {
    fail("continue_final_message: the chat template does not write the last message as it is");
  }
  const std::string_view rest = content.substr(content.find_first_not_of(kSpace));
  // A template may strip the space at the message's end.
  const bool keeps_space = std::string_view(text).substr(at).starts_with(rest);
  text.resize(at + (keeps_space ? rest.size() : core.size()));
}

std::string render(const ApiContext& context, const ChatPromptOptions& options) {
  tokenizer::ChatTemplate::Request request;
  request.messages = options.messages;
  request.tools = options.tools;
  request.options = options.template_options;
  request.options.set("add_generation_prompt", options.add_generation_prompt);
  std::string text = context.text->render_conversation(request);
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
  prompt.text = with_field("messages", [&] { return render(context, options); });
  prompt.ids = encode_text(context, "messages", prompt.text, options.add_special_tokens);
  return prompt;
}

}  // namespace nvllm::launcher
