// The commands tokenize, detokenize and template. They start no worker.
#include <cstdio>
#include <exception>
#include <functional>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/session/text_io.h"
#include "launcher/session/text_model.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using tokenizer::TokenId;

std::string dump(const Json& json) {
  return json_text(json) + "\n";
}

// Writes one line for every input line. An invalid line is answered by its error, and then the exit
// code reports a failure.
int answer_lines(const std::string& input, const std::function<Json(std::string_view)>& answer) {
  ResultWriter out;
  LineReader lines(input);
  std::size_t wrong = 0;
  while (true) {
    LineReader::Found found = lines.next(Nanoseconds(0));
    if (found == LineReader::Found::end) break;
    if (found == LineReader::Found::nothing_yet) {
      out.flush();  // the other end of a pipe may be waiting for it
      found = lines.next(std::chrono::seconds(1));
      if (found == LineReader::Found::end) break;
      if (found == LineReader::Found::nothing_yet) continue;
    }
    std::string text;
    try {
      if (lines.too_long()) fail("longer than ", LineReader::kMaxLine >> 20, " MiB");
      text = dump(answer(lines.line()));
    } catch (const std::exception& error) {  // an invalid line does not affect others
      ++wrong;
      text = dump({{"error", str("line ", lines.number(), ": ", error.what())}});
    }
    out.write(text);
  }
  out.flush();
  if (wrong == 0) return kExitFine;
  std::fprintf(stderr, "nvllm-launch: %zu of %zu lines could not be answered; theirs say why\n",
               wrong, static_cast<std::size_t>(lines.number()));
  return kExitFailed;
}

Json parse_object(std::string_view line) {
  Json json = read_bounded_json(line, {.position = "column"});
  if (!json.is_object()) fail("expected a JSON object, found ", json.type_name());
  return json;
}

const Json& member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) fail("\"", key, "\" is missing");
  return *found;
}

bool flag(const Json& json, const char* key, bool otherwise) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  if (!found->is_boolean())
    fail("\"", key, "\": expected true or false, found ", shown_text(json_text(*found)));
  return found->get<bool>();
}

std::string text_of(const Json& json) {
  const Json& text = member(json, "text");
  if (!text.is_string()) fail("\"text\": expected a string, found ", text.type_name());
  return text.get<std::string>();
}

std::vector<TokenId> ids_of(const Json& json, const tokenizer::Tokenizer& tokenizer) {
  const Json& list = member(json, "ids");
  if (!list.is_array()) fail("\"ids\": expected a list, found ", list.type_name());
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    if (!item.is_number_integer() || item < 0 || item >= tokenizer.end_id()) {
      fail("\"ids\": ", shown_text(json_text(item)), " is no token id; they are 0 to ",
           tokenizer.end_id() - 1);
    }
    ids.push_back(item.get<TokenId>());
  }
  return ids;
}

// Readable output: each token, and the text that is complete with it.
std::string show_pieces(const tokenizer::Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::ostringstream out;
  tokenizer::StreamDetokenizer stream(tokenizer, {.skip_special_tokens = false});
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::string piece = stream.push(ids[i]);
    if (i + 1 == ids.size()) piece += stream.finish();
    out << std::setw(8) << ids[i] << "  "
        << (piece.empty() ? "(a part of what follows)" : json_text(Json(piece))) << '\n';
  }
  out << ids.size() << (ids.size() == 1 ? " token\n" : " tokens\n");
  return out.str();
}

jinja::Value parse_template_line(std::string_view line) {
  jinja::Value value = jinja::from_json(line, "the line");
  if (value.dict() == nullptr) fail("expected a JSON object, found a ", value.type_name());
  if (value.dict()->get("messages") == nullptr) fail("\"messages\" is missing");
  return value;
}

tokenizer::ChatTemplate::Request request_of(const jinja::Dict& line) {
  tokenizer::ChatTemplate::Request request;
  request.messages = *line.get("messages");
  if (const jinja::Value* tools = line.get("tools")) request.tools = *tools;
  const jinja::Value* options = line.get("options");
  if (options == nullptr || options->none()) return request;
  if (options->dict() == nullptr) {
    fail("\"options\": expected an object, found a ", options->type_name());
  }
  request.options = *options->dict();
  return request;
}

tokenizer::ChatTemplate::Request one_message(const std::string& text) {
  jinja::Dict message;
  message.set("role", "user");
  message.set("content", text);
  tokenizer::ChatTemplate::Request request;
  request.messages = jinja::List{.items = {std::move(message)}};
  request.options.set("add_generation_prompt", true);
  return request;
}

}  // namespace

int run_tokenize(const Options& options, std::int64_t) {
  const TextModel model = TextModel::open(options.model.path);
  const TextOptions& text = options.text;
  for (const std::string& word : text.words) {
    write_results(
        show_pieces(model.tokenizer(), model.tokenizer().encode(word, text.add_special_tokens)));
  }
  if (text.input.empty()) return kExitFine;
  return answer_lines(text.input, [&](std::string_view line) -> Json {
    const Json json = parse_object(line);
    const bool special = flag(json, "add_special_tokens", text.add_special_tokens);
    return {{"ids", model.tokenizer().encode(text_of(json), special)}};
  });
}

int run_detokenize(const Options& options, std::int64_t) {
  const TextOptions& text = options.text;
  const TextModel model = TextModel::open(options.model.path);
  std::vector<TokenId> ids;
  for (const std::string& word : text.words) {
    for (const std::int32_t id : OptionValue("detokenize", word).ids()) {
      if (static_cast<TokenId>(id) >= model.tokenizer().end_id()) {
        refuse("detokenize ", id, ": no token id; they are 0 to ", model.tokenizer().end_id() - 1);
      }
      ids.push_back(static_cast<TokenId>(id));
    }
  }
  if (text.input.empty()) {
    write_results(model.tokenizer().decode(ids, text.skip_special_tokens) + "\n");
    return kExitFine;
  }
  return answer_lines(text.input, [&](std::string_view line) -> Json {
    const Json json = parse_object(line);
    const bool skip = flag(json, "skip_special_tokens", text.skip_special_tokens);
    return {{"text", model.tokenizer().decode(ids_of(json, model.tokenizer()), skip)}};
  });
}

int run_template(const Options& options, std::int64_t) {
  const TextOptions& text = options.text;
  const TextModel model =
      TextModel::open(options.model.path, text.chat_template, text.special_tokens_in_messages);
  (void)model.chat_template();  // an Error if there is none
  for (const std::string& word : text.words) {
    write_results(model.render_conversation(one_message(word)).text + "\n");
  }
  if (text.input.empty()) return kExitFine;
  return answer_lines(text.input, [&](std::string_view line) -> Json {
    const jinja::Value value = parse_template_line(line);
    const tokenizer::MarkedText rendered = model.render_conversation(request_of(*value.dict()));
    Json answer = {{"text", rendered.text}};
    answer["ids"] = model.encode_conversation(rendered);
    return answer;
  });
}

}  // namespace nvllm::launcher
