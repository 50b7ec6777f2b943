// ChatTemplate: a conversation as the text that a model was trained on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/template.h"

namespace nvllm::tokenizer {

// Const after it has been made; may be used by several threads at once.
class ChatTemplate {
 public:
  // source: a Jinja template. The special tokens are what the template may call bos_token and so
  // on. Throws an Error that says where the template is wrong.
  ChatTemplate(std::string_view source, const jinja::Dict& special_tokens);

  // tokenizer_config.json: its chat_template (the one named "default" of several) and special
  // tokens. `file`: a template that stands beside it (chat_template.jinja), or was given by the
  // user; replaces the one inside. Nothing if there is none at all.
  static std::optional<ChatTemplate> from_config(std::string_view tokenizer_config_json,
                                                 const std::optional<std::string>& file);

  struct Request {
    jinja::Value messages;  // a list of {"role": ..., "content": ...}
    jinja::Value tools;     // a list, or none
    jinja::Dict
        options;  // add_generation_prompt, enable_thinking, anything else that templates know
  };
  // What Hugging Face's apply_chat_template gives. An Error for messages that are no list of dicts,
  // and for what the template itself refuses or stumbles over.
  std::string render(const Request& request) const;

 private:
  jinja::Template template_;
  jinja::Dict special_tokens_;
};

}  // namespace nvllm::tokenizer
