#include "launcher/session/text_input.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {

namespace {

std::vector<std::int32_t> as_request_ids(const std::vector<tokenizer::TokenId>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

std::vector<std::int32_t> TextInput::encode_prompt(std::string_view text) const {
  return as_request_ids(model_.encode_prompt(text));
}

std::vector<std::int32_t> TextInput::encode_messages(std::string_view line) const {
  const jinja::Value value = jinja::from_json(line, "the line");
  const jinja::Dict& object = *value.dict();
  tokenizer::ChatTemplate::Request request;
  request.messages = *object.get("messages");
  if (const jinja::Value* tools = object.get("tools")) request.tools = *tools;
  request.options.set("add_generation_prompt", true);
  const jinja::Value* options = object.get("chat_template_kwargs");
  if (options != nullptr && !options->none()) {
    if (options->dict() == nullptr) {
      fail("chat_template_kwargs: a ", options->type_name(), ", not an object");
    }
    for (const auto& [name, option] : options->dict()->items()) request.options.set(name, option);
  }
  return as_request_ids(model_.encode_conversation(model_.render_conversation(std::move(request))));
}

std::vector<std::vector<std::int32_t>> TextInput::encode_bad_word(std::string_view word) const {
  const auto encode = [&](const std::string& text) {
    return as_request_ids(model_.tokenizer().encode(text, false));
  };
  word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
  std::vector<std::vector<std::int32_t>> spellings = {encode(std::string(word))};
  if (spellings[0].empty()) fail("\"\": an empty word");
  // If the space is a token of its own, the first spelling is sufficient.
  std::vector<std::int32_t> spaced = encode(str(" ", word));
  if (spaced.size() == spellings[0].size() && spaced[0] != spellings[0][0]) {
    spellings.push_back(std::move(spaced));
  }
  return spellings;
}

}  // namespace nvllm::launcher
