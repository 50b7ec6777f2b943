// For tests of endpoints: a tiny model's texts, a server's context, and a mock engine whose output
// the test determines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::launcher {

// The error that a function throws: "400 [n] n: 0: must be ...", or "no error".
template <typename Function>
std::string api_error_of(Function&& function) {
  try {
    function();
  } catch (const ApiError& error) {
    return str(error.status(), " [", error.param(), "] ", error.what());
  }
  return "no error";
}

class ApiFixture {
 public:
  // chat_template: empty: ChatML.
  explicit ApiFixture(const std::string& chat_template = "") : folder_(chat_template) {
    context_.text = &text_;
    context_.max_model_len = 1000;
    context_.model_names = {"tiny", "tiny-alias"};
  }

  ApiContext& context() { return context_; }
  const tokenizer::Tokenizer& tokenizer() const { return text_.tokenizer(); }
  ApiRequestInfo info() const { return {.id = "7", .created_s = 1700000000}; }

  std::vector<std::int32_t> ids(std::string_view text) const {
    const auto ids = text_.tokenizer().encode(text, false);
    return {ids.begin(), ids.end()};
  }

  std::unique_ptr<ApiCall> call(ParseCall parse, std::string_view body) {
    return parse(context_, info(), body);
  }

  // An update with these tokens; the last one of an answer if it has a finish reason.
  static runtime::Update update(std::vector<std::int32_t> tokens,
                                runtime::FinishReason finish = runtime::FinishReason::none) {
    runtime::Update update;
    update.tokens = std::move(tokens);
    update.finish = finish;
    return update;
  }

  // The response to a request each of whose answers is this text, token by token, followed by EOS.
  std::string response(ParseCall parse, std::string_view body, std::string_view text) {
    const std::unique_ptr<ApiCall> call = this->call(parse, body);
    std::vector<std::int32_t> n;
    for (const runtime::Request& request : call->requests()) n.push_back(request.sampling.n);
    std::string out;
    call->begin(out);
    for (std::size_t i = 0; i < n.size(); ++i) {
      for (std::int32_t answer = 0; answer < n[i]; ++answer) say(*call, i, answer, text, out);
    }
    call->finish(out);
    return out;
  }

  // The prompt as the engine gets it.
  std::string prompt_text(ParseCall parse, std::string_view body) {
    const std::vector<std::int32_t> prompt = call(parse, body)->requests()[0].prompt;
    return text_.tokenizer().decode({prompt.begin(), prompt.end()}, false);
  }

  // The error for a body.
  std::string refusal(ParseCall parse, std::string_view body) {
    return api_error_of([&] { (void)call(parse, body); });
  }

 private:
  void say(ApiCall& call, std::size_t index, std::int32_t answer, std::string_view text,
           std::string& out) const {
    std::vector<runtime::Update> updates;
    for (const std::int32_t id : ids(text)) updates.push_back(update({id}));
    updates.push_back(update({kEnd}, runtime::FinishReason::stop));
    for (runtime::Update& each : updates) {
      each.index = answer;
      call.apply(index, each, out);
    }
  }

  static constexpr std::int32_t kEnd = 702;  // <|im_end|>

  struct Folder : testing::TextFolder {
    explicit Folder(const std::string& chat_template) {
      if (!chat_template.empty()) set_template(chat_template);
    }
  };
  Folder folder_;
  TextModel text_ = TextModel::open(folder_.path());
  ApiContext context_;
};

// The data of all events. An Error if the stream does not end with [DONE], or is malformed.
inline std::vector<nlohmann::json> events_of(const std::string& stream) {
  constexpr std::size_t kPrefix = 6;  // "data: "
  std::vector<nlohmann::json> all;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = stream.find("\n\n", at);
    if (end == std::string::npos) fail("an event does not end: ", stream.substr(at));
    const std::string event = stream.substr(at, end - at);
    if (!event.starts_with("data: ")) fail("no data: ", event);
    at = end + 2;
    if (event == "data: [DONE]") {
      if (at != stream.size()) fail("behind [DONE]: ", stream.substr(at));
      return all;
    }
    all.push_back(parse_json(event.substr(kPrefix)));
  }
  fail("no [DONE]");
}

}  // namespace nvllm::launcher
