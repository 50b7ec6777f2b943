// TextModel: a model's tokenizer and chat template, which convert text to token ids and back, and
// conversations to text. It needs no weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/loading/tokenizer_json.h"

namespace nvllm::launcher {

// Immutable once opened; thread-safe.
class TextModel {
 public:
  // path: a folder with tokenizer.json (and optionally tokenizer_config.json and
  // chat_template.jinja) or with one .gguf file; a .gguf file; or a config.json, of any name, next
  // to either. chat_template_option: the value of --chat-template (read_chat_template()), which
  // replaces the model's own template, unless empty.
  // special_tokens_in_messages: special tokens written in messages are parsed as such.
  static TextModel open(const std::string& path, const std::string& chat_template_option = "",
                        bool special_tokens_in_messages = false);

  // The same, but nullopt if the model has no tokenizer at all.
  static std::optional<TextModel> open_if_there(const std::string& path,
                                                const std::string& chat_template_option = "",
                                                bool special_tokens_in_messages = false);

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

  // The ids of a text to continue, with the tokens that the model expects around it; never two BOS.
  std::vector<tokenizer::TokenId> encode_prompt(std::string_view text) const;
  std::vector<tokenizer::TokenId> encode_prompt(const tokenizer::MarkedText& text) const;

  // Throws an Error with the fix if the model has no chat template, or an invalid one.
  const tokenizer::ChatTemplate& chat_template() const;
  // The text of a conversation. Messages may have content in parts (see below). Text from the
  // request is marked, so that it yields no special tokens, unless these are allowed.
  tokenizer::MarkedText render_conversation(tokenizer::ChatTemplate::Request request) const;
  // The ids of a rendered conversation. The text already has its special tokens, so none are added.
  std::vector<tokenizer::TokenId> encode_conversation(const tokenizer::MarkedText& rendered) const;

 private:
  TextModel() = default;
  std::vector<tokenizer::TokenId> without_second_bos(std::vector<tokenizer::TokenId> ids) const;
  void open_place(const std::string& path, const std::optional<std::string>& given_template);
  void open_folder(const std::string& folder, const std::optional<std::string>& given_template);
  void open_gguf(const std::string& file, const std::optional<std::string>& given_template);

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::optional<tokenizer::TokenId> bos_;
  std::optional<tokenizer::ChatTemplate> chat_template_;
  std::string no_template_;  // why there is none
  bool special_tokens_in_messages_ = false;
};

// The template that --chat-template gives: the option's value itself if it has "{{" or "{%",
// otherwise the text of that file. Throws an Error with the fix if there is none, or an empty one.
std::string read_chat_template(const std::string& option);

// --- Messages of a conversation, in the format of OpenAI's API, for a chat template ---

// A message's content is a string, null, or a list of text parts: {"type": "text", "text": ...}.
// template_takes_parts: the template supports such lists, and gets them; otherwise it gets their
// texts joined by newlines, as in vLLM. Throws an Error if messages is not such a list, or empty,
// and for parts of other types, since models here support text only.
jinja::Value prepare_messages(const jinja::Value& messages, bool template_takes_parts);

// Throws an Error for a message whose role is neither one that all APIs have nor one that the
// template supports: most templates omit such a message, or render it in a way that the model has
// never seen. messages: the result of prepare_messages().
void check_roles(const jinja::Value& messages, const tokenizer::ChatTemplate& chat_template);

}  // namespace nvllm::launcher
