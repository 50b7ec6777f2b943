// ChatTemplate renders a conversation as the text format on which a model was trained.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/template.h"

namespace nvllm::tokenizer {

// Immutable; may be used by several threads at once.
class ChatTemplate {
 public:
  // `source` is a Jinja template. The special tokens are what the template may call bos_token and
  // so on. Throws an Error that says where the template is wrong.
  ChatTemplate(std::string_view source, const jinja::Dict& special_tokens);

  // Takes the chat template (the one named "default" if there are several) and the special tokens
  // from a tokenizer_config.json. `file`: a template that lies beside it (chat_template.jinja) or
  // that the user passed; it replaces the one inside. nullopt: there is no template.
  static std::optional<ChatTemplate> from_config(std::string_view tokenizer_config_json,
                                                 const std::optional<std::string>& file);

  struct Request {
    jinja::Value messages;  // a list of {"role": ..., "content": ...}
    jinja::Value tools;     // a list, or none
    // add_generation_prompt, enable_thinking, anything else that templates know.
    jinja::Dict options;
  };
  // The same text as Hugging Face's apply_chat_template. An Error for messages that are not a list
  // of dicts, and for what the template itself refuses or fails at.
  std::string render(const Request& request) const { return render_values(request).text; }
  // The same text, with marks on all that came from the request: messages, tools and options, not
  // from the template.
  MarkedText render_marked(const Request& request) const;

  // Whether the template reads content that is a list of parts, {"type": "text", "text": ...}, as
  // well as text (vLLM's content format "openai", else "string").
  bool takes_parts() const { return takes_parts_; }

  // Whether the template's source has this word in quotes, as it has the roles that it knows.
  bool mentions(std::string_view word) const;

 private:
  MarkedText render_values(const Request& request) const;
  bool renders_parts() const;

  std::string source_;
  jinja::Template template_;
  jinja::Dict special_tokens_;
  bool takes_parts_;
};

}  // namespace nvllm::tokenizer
