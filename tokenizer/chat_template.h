// ChatTemplate renders a conversation in the text format on which a model was trained.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/template.h"

namespace nvllm::tokenizer {

// Immutable; thread-safe.
class ChatTemplate {
 public:
  // `source` is a Jinja template. special_tokens: its variables bos_token and so on. tool_use: a
  // template to use instead for requests with tools. Throws an Error with the position of a syntax
  // error.
  ChatTemplate(std::string_view source, const jinja::Dict& special_tokens,
               const std::optional<std::string>& tool_use = std::nullopt);

  // Takes the chat template (those named "default" and "tool_use" if there are several) and the
  // special tokens from a tokenizer_config.json. `file`: a separate template (chat_template.jinja,
  // or one given by the user), which replaces all that are inside; tool_use_file: the same for
  // requests with tools. nullopt: there is no template.
  static std::optional<ChatTemplate> from_config(
      std::string_view tokenizer_config_json, const std::optional<std::string>& file,
      const std::optional<std::string>& tool_use_file = std::nullopt);

  struct Request {
    jinja::Value messages;  // a list of {"role": ..., "content": ...}
    jinja::Value tools;     // a list, or none
    // add_generation_prompt, enable_thinking, and other variables of templates.
    jinja::Dict options;
  };
  // The same text as Hugging Face's apply_chat_template. An Error if messages are not a list of
  // dicts, or the template raises an error or fails.
  std::string render(const Request& request) const { return render_values(request).text; }
  // The same text, with marks on everything that comes from the request (messages, tools and
  // options), not from the template.
  MarkedText render_marked(const Request& request) const;

  // Whether the template, and the one for tools, support content that is a list of parts, {"type":
  // "text", "text": ...}, as well as text (vLLM's content format "openai", otherwise "string").
  bool takes_parts() const { return takes_parts_; }

  // Whether a template's source contains this word in quotes, as it does for the roles that it
  // supports.
  bool mentions(std::string_view word) const;

 private:
  MarkedText render_values(const Request& request) const;
  bool renders_parts(const jinja::Template& source, const jinja::Value& tools) const;

  std::string sources_;  // of all templates
  jinja::Template template_;
  std::optional<jinja::Template> tool_use_;
  jinja::Dict special_tokens_;
  bool takes_parts_;
};

}  // namespace nvllm::tokenizer
