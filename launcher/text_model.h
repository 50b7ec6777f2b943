// TextModel: what the front end needs of a model: text to ids and back, and conversations as text. No
// weights; it does not ask whether there are any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/loading/tokenizer_json.h"

namespace nvllm::launcher {

// Const after it has been opened; may be used by several threads at once.
class TextModel {
 public:
  // `path`: a folder with tokenizer.json (tokenizer_config.json and chat_template.jinja are read if they are
  // there) or with one .gguf file, such a file, or a config.json beside them. chat_template_file: replaces the
  // model's own, if it is not empty.
  static TextModel open(const std::string& path, const std::string& chat_template_file = "");

  // Nothing if the model has no tokenizer at all.
  static std::optional<TextModel> open_if_there(const std::string& path,
                                                const std::string& chat_template_file = "");

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

  // Ids of a text to be continued: with the tokens that the model wants around it, and never two BOS.
  std::vector<tokenizer::TokenId> encode_prompt(std::string_view text) const;

  // An Error that says what to do if the model has no chat template, or a broken one.
  const tokenizer::ChatTemplate& chat_template() const;
  // The ids of what it renders: special tokens are in the text itself, so none are added.
  std::vector<tokenizer::TokenId> encode_conversation(std::string_view rendered) const;

 private:
  TextModel() = default;
  void open_place(const std::string& path, const std::optional<std::string>& given_template);
  void open_folder(const std::string& folder, const std::optional<std::string>& given_template);
  void open_gguf(const std::string& file, const std::optional<std::string>& given_template);

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::optional<tokenizer::TokenId> bos_;
  std::optional<tokenizer::ChatTemplate> chat_template_;
  std::string no_template_;  // why there is none
};

}  // namespace nvllm::launcher
