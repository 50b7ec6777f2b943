#include "launcher/session/text_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/regular_file.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf.h"
#include "tokenizer/loading/gguf_vocabulary.h"

namespace nvllm::launcher {

// --- Messages ---

namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// Types of text parts, and the key of the text. Clients of the Responses API name them by
// direction; a refusal is an earlier answer of the assistant.
struct TextPart {
  std::string_view type, key;
};
constexpr std::array kTextParts = {
    TextPart{"text", "text"},
    TextPart{"input_text", "text"},
    TextPart{"output_text", "text"},
    TextPart{"refusal", "refusal"},
};

const std::string* string_at(const Dict& dict, std::string_view key) {
  const Value* const value = dict.get(key);
  return value == nullptr ? nullptr : value->string();
}

// The text of a part, which may be a plain string.
const std::string& text_of(const Value& part) {
  if (part.string() != nullptr) return *part.string();
  if (part.dict() == nullptr) {
    fail("a ", part.type_name(), R"(; pass a part such as {"type": "text", "text": "Hi"})");
  }
  const std::string* const type = string_at(*part.dict(), "type");
  if (type == nullptr) fail(R"(a part without a type; pass {"type": "text", "text": "Hi"})");
  const auto* const known = std::ranges::find(kTextParts, *type, &TextPart::type);
  if (known == kTextParts.end()) {
    fail("a part of type ", *type, ": the model reads text only; pass parts of type text");
  }
  const std::string* const text = string_at(*part.dict(), known->key);
  if (text == nullptr) fail("a part of type ", *type, " without a string \"", known->key, "\"");
  return *text;
}

Value as_part(const std::string& text) {
  Dict part;
  part.set("type", "text");
  part.set("text", text);
  return part;
}

Value prepare_parts(const List& parts, bool template_takes_parts) {
  List list;
  std::string joined;
  for (std::size_t i = 0; i < parts.items.size(); ++i) {
    with_context(str("content[", i, "]"), [&] {
      const std::string& text = text_of(parts.items[i]);
      if (template_takes_parts) {
        list.items.push_back(as_part(text));
      } else {
        joined.append(i == 0 ? "" : "\n").append(text);
      }
    });
  }
  if (template_takes_parts) return list;
  return joined;
}

Value prepare_message(const Value& message, bool template_takes_parts) {
  if (message.dict() == nullptr) {
    fail("a ", message.type_name(),
         R"(; pass a message such as {"role": "user", "content": "Hi"})");
  }
  if (string_at(*message.dict(), "role") == nullptr) fail("a message without a string \"role\"");
  const Value* const content = message.dict()->get("content");
  if (content == nullptr || content->none() || content->string() != nullptr) return message;
  if (content->list() == nullptr) {
    fail("content: a ", content->type_name(), "; pass a string or a list of parts");
  }
  Dict prepared = *message.dict();
  prepared.set("content", prepare_parts(*content->list(), template_takes_parts));
  return prepared;
}

}  // namespace

Value prepare_messages(const Value& messages, bool template_takes_parts) {
  if (messages.list() == nullptr) {
    fail("messages: a ", messages.type_name(), "; they must be a list");
  }
  const auto& items = messages.list()->items;
  if (items.empty()) fail("messages: an empty list; pass at least one message");
  List prepared;
  for (std::size_t i = 0; i < items.size(); ++i) {
    with_context(str("messages[", i, "]"), [&] {
      prepared.items.push_back(prepare_message(items[i], template_takes_parts));
    });
  }
  return prepared;
}

void check_roles(const Value& messages, const tokenizer::ChatTemplate& chat_template) {
  constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                      "assistant", "tool",      "function"};
  constexpr std::size_t kMaxShown = 40;
  const auto& items = messages.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string& role = *string_at(*items[i].dict(), "role");
    if (std::ranges::find(kRoles, role) != kRoles.end()) continue;
    if (!role.empty() && chat_template.mentions(role)) continue;
    fail("messages[", i, "]: role '", role.substr(0, kMaxShown),
         "': neither the API nor the chat template knows it; pass system, user, assistant or tool");
  }
}

// --- TextModel ---

namespace {

namespace fs = std::filesystem;
using tokenizer::ChatTemplate;
using tokenizer::MarkedText;
using tokenizer::TokenId;

constexpr std::uint64_t kMaxTemplateBytes = jinja::Template::kMaxBytes;

std::vector<std::int64_t> read_token_types(const model::GgufMetadata& metadata) {
  constexpr double kMaxType = 255;  // there are six
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  std::vector<std::int64_t> types;
  for (const double type : metadata.numbers(kKey).value_or(std::vector<double>())) {
    if (!(type >= 0 && type <= kMaxType) || type != std::floor(type)) {
      fail(metadata.where(), ": ", kKey, ": that of token ", types.size(), " is ", type);
    }
    types.push_back(static_cast<std::int64_t>(type));
  }
  return types;
}

tokenizer::GgufVocabulary read_vocabulary(const std::string& file) {
  const model::GgufMetadata metadata = model::read_gguf_metadata(file);
  const auto id = [&](const char* name) {
    return metadata.integer(str("tokenizer.ggml.", name, "_token_id"));
  };
  tokenizer::GgufVocabulary out;
  out.model = metadata.required_text("tokenizer.ggml.model");
  out.pre = metadata.text("tokenizer.ggml.pre");
  out.tokens = metadata.texts("tokenizer.ggml.tokens").value_or(std::vector<std::string>());
  out.scores = metadata.numbers("tokenizer.ggml.scores").value_or(std::vector<double>());
  out.token_types = read_token_types(metadata);
  out.merges = metadata.texts("tokenizer.ggml.merges").value_or(std::vector<std::string>());
  out.bos_id = id("bos");
  out.eos_id = id("eos");
  out.unk_id = id("unknown");
  out.pad_id = id("padding");
  out.add_bos = metadata.flag("tokenizer.ggml.add_bos_token");
  out.add_eos = metadata.flag("tokenizer.ggml.add_eos_token");
  out.add_space_prefix = metadata.flag("tokenizer.ggml.add_space_prefix");
  out.chat_template = metadata.text("tokenizer.chat_template");
  out.tool_use_template = metadata.text("tokenizer.chat_template.tool_use");
  return out;
}

// The variables bos_token and so on of a chat template.
jinja::Dict special_tokens(const tokenizer::TokenizerConfig& config) {
  jinja::Dict tokens;
  const auto set = [&](const char* name, const std::optional<std::string>& text) {
    if (text) tokens.set(name, *text);
  };
  set("bos_token", config.bos_token);
  set("eos_token", config.eos_token);
  set("unk_token", config.unk_token);
  set("pad_token", config.pad_token);
  return tokens;
}

// The folder of a path, which may be the path of its config.json.
fs::path folder_of(const std::string& path) {
  fs::path folder = path;
  // A configuration may have another name; its other files are next to it.
  if (folder.extension() == ".json" && !fs::is_directory(folder)) folder = folder.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// Whether a value of --chat-template is the template itself; otherwise it is a file.
bool is_template(std::string_view option) {
  return option.find("{{") != option.npos || option.find("{%") != option.npos;
}

std::string shown_option(const std::string& option) {
  return is_template(option) ? str('\'', shown_text(option), '\'') : option;
}

}  // namespace

std::string read_chat_template(const std::string& option) {
  if (is_template(option)) return option;
  constexpr const char* kFix = "; pass a file with a Jinja template, or the template itself";
  std::string text;
  try {
    text = read_regular_file(option, kMaxTemplateBytes);
  } catch (const Error& error) {
    fail("--chat-template ", error.what(), kFix);
  }
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    fail("--chat-template ", option, ": the file is empty", kFix);
  }
  return text;
}

TextModel TextModel::open(const std::string& path, const std::string& chat_template_option,
                          bool special_tokens_in_messages) {
  std::optional<std::string> given_template;
  if (!chat_template_option.empty()) given_template = read_chat_template(chat_template_option);
  TextModel text;
  text.special_tokens_in_messages_ = special_tokens_in_messages;
  if (path.ends_with(".gguf")) {
    text.open_gguf(path, given_template);
  } else {
    text.open_place(path, given_template);
  }
  if (given_template && !text.chat_template_) {
    fail("--chat-template ", shown_option(chat_template_option), ": ", text.no_template_);
  }
  return text;
}

std::optional<TextModel> TextModel::open_if_there(const std::string& path,
                                                  const std::string& chat_template_option,
                                                  bool special_tokens_in_messages) {
  fs::path place = folder_of(path);
  std::error_code error;
  if (fs::is_directory(place, error) && !model::is_there((place / "tokenizer.json").string())) {
    place = model::find_gguf(place.string());
    if (place.empty()) return std::nullopt;
  }
  if (place.extension() == ".gguf" &&
      !model::read_gguf_metadata(place.string()).text("tokenizer.ggml.model")) {
    return std::nullopt;
  }
  return open(path, chat_template_option, special_tokens_in_messages);
}

void TextModel::open_place(const std::string& path,
                           const std::optional<std::string>& given_template) {
  const fs::path folder = folder_of(path);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail("--model ", path,
         ": no such folder; pass a model's folder, its config.json or a .gguf file");
  }
  const std::string gguf = model::is_there((folder / "tokenizer.json").string())
                               ? ""
                               : model::find_gguf(folder.string());
  if (gguf.empty()) {
    open_folder(folder.string(), given_template);
  } else {
    open_gguf(gguf, given_template);
  }
}

void TextModel::open_folder(const std::string& folder,
                            const std::optional<std::string>& given_template) {
  tokenizer::LoadedTokenizer loaded = tokenizer::load_tokenizer(folder);
  tokenizer_ = std::move(loaded.tokenizer);
  if (loaded.config.bos_token) bos_ = tokenizer_->token_id(*loaded.config.bos_token);
  std::optional<std::string> source = given_template, tool_use;
  if (!source) {
    const auto read = [&](const char* name) {
      return read_regular_file_if_there((fs::path(folder) / name).string(), kMaxTemplateBytes);
    };
    source = read("chat_template.jinja");
    tool_use = read("additional_chat_templates/tool_use.jinja");
  }
  no_template_ = folder + " has no chat template; pass one with --chat-template FILE";
  try {
    chat_template_ = ChatTemplate::from_config(loaded.config_json, source, tool_use);
  } catch (const Error& error) {
    // The tokenizer works without a template; chat_template() throws this error.
    no_template_ = given_template ? error.what() : str(folder, ": ", error.what());
  }
}

void TextModel::open_gguf(const std::string& file,
                          const std::optional<std::string>& given_template) {
  const tokenizer::GgufVocabulary vocabulary = read_vocabulary(file);
  tokenizer::LoadedTokenizer loaded =
      with_context(file, [&] { return tokenizer::make_tokenizer(vocabulary); });
  tokenizer_ = std::move(loaded.tokenizer);
  if (vocabulary.bos_id && *vocabulary.bos_id >= 0) {
    bos_ = static_cast<TokenId>(*vocabulary.bos_id);
  }
  const std::optional<std::string>& source =
      given_template ? given_template : vocabulary.chat_template;
  const std::optional<std::string> tool_use =
      given_template ? std::nullopt : vocabulary.tool_use_template;
  no_template_ = file + " has no chat template; pass one with --chat-template FILE";
  if (!source) return;
  try {
    chat_template_.emplace(*source, special_tokens(loaded.config), tool_use);
  } catch (const Error& error) {
    no_template_ = given_template ? error.what() : str(file, ": ", error.what());
  }
}

std::vector<TokenId> TextModel::encode_prompt(std::string_view text) const {
  return without_second_bos(tokenizer_->encode(text, true));
}

std::vector<TokenId> TextModel::encode_prompt(const MarkedText& text) const {
  return without_second_bos(tokenizer_->encode(text, true));
}

// The text may start with the BOS that the tokenizer also adds.
std::vector<TokenId> TextModel::without_second_bos(std::vector<TokenId> ids) const {
  if (bos_ && ids.size() >= 2 && ids[0] == *bos_ && ids[1] == *bos_) ids.erase(ids.begin());
  return ids;
}

const ChatTemplate& TextModel::chat_template() const {
  if (!chat_template_) fail(no_template_);
  return *chat_template_;
}

MarkedText TextModel::render_conversation(ChatTemplate::Request request) const {
  request.messages = prepare_messages(request.messages, chat_template().takes_parts());
  check_roles(request.messages, chat_template());
  if (special_tokens_in_messages_) return {chat_template().render(request)};
  return chat_template().render_marked(request);
}

std::vector<TokenId> TextModel::encode_conversation(const MarkedText& rendered) const {
  return tokenizer_->encode(rendered, false);
}

}  // namespace nvllm::launcher
