// ApiCall: one request of a client while the engine is processing it. An endpoint's parse function
// creates it from the request's body; then it converts the engine's updates to the bytes of the
// response.
//
//   std::unique_ptr<ApiCall> call = parse_chat_completion(context, info, body);  // in the pool
//   for (i...) client.submit(first_id + i, call->requests()[i]);
//   std::string out;
//   call->begin(out);                       // from here on in the engine's thread
//   call->apply(i, update, out);            // for each update; `out` is what a stream sends now
//   if (call->stopped(i)) client.abort(first_id + i);
//   if (call->done()) call->finish(out);    // the end of a stream, or the whole body
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/session/text_model.h"
#include "runtime/request.h"

namespace nvllm::launcher {

struct Options;
struct ServeOptions;

// An error of the API: a status and an error object.
class ApiError : public Error {
 public:
  // param: the invalid field, or "".
  ApiError(int status, const std::string& message, std::string param = "")
      : Error(message), status_(status), param_(std::move(param)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }

 private:
  int status_;
  std::string param_;
};

// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}; the type follows from the
// status (400 BadRequestError, 401 AuthenticationError, 404 NotFoundError, ...).
std::string error_body(int status, std::string_view message, std::string_view param = "");
// The same in the format of Anthropic's API, for /v1/messages: {"type": "error", "error": {"type":
// "invalid_request_error", "message": ...}}
std::string message_error_body(int status, std::string_view message, std::string_view param = "");

// The endpoints' view of the server. Immutable while it serves; used by several threads.
struct ApiContext {
  const TextModel* text = nullptr;  // null: the model has no tokenizer
  // For requests that do not set them. The default of max_tokens depends on the endpoint, unless
  // has_max_tokens is true.
  runtime::SamplingParams defaults = {};
  bool has_max_tokens = false;
  std::vector<std::string> stop = {};
  std::int64_t max_model_len = 0;
  std::vector<std::string> model_names = {};  // responses contain the first
  std::string model_root = "";                // origin of the model
  std::int64_t created_s = 0;                 // when the server started
  std::string reasoning_parser = "";          // "qwen3", "deepseek_r1"; empty: none
  std::string tool_call_parser = "";          // "hermes", "llama3_json", "mistral"; empty: none
  bool auto_tool_choice = false;
  jinja::Dict chat_template_kwargs = {};  // for requests that do not set them
  bool return_tokens_as_token_ids = false;
};

// What a model's generation_config.json sets for requests; max_tokens counts only if it does.
struct ModelDefaults {
  runtime::SamplingParams sampling = {};
  bool has_max_tokens = false;
};

// The context of a command line. text: nullptr: the model has no tokenizer; it must outlive the
// context. Throws an Error if --default-chat-template-kwargs is not an object.
ApiContext api_context(const Options& options, const TextModel* text,
                       const ModelDefaults& model_defaults, std::int64_t max_model_len);

// Throws a UsageError for unknown parsers, with which every request would be rejected.
void check_parsers(const ServeOptions& serve);

// Properties of a request besides its body.
struct ApiRequestInfo {
  std::string id = "";         // X-Request-Id, or one that the server made; without a prefix
  std::int64_t created_s = 0;  // seconds since 1970
};

// Created in one thread, then used by another.
class ApiCall {
 public:
  ApiCall() = default;
  ApiCall(const ApiCall&) = delete;
  ApiCall& operator=(const ApiCall&) = delete;
  virtual ~ApiCall() = default;

  // The engine requests: one for each prompt. They may be moved away once submitted.
  std::vector<runtime::Request>& requests() { return requests_; }
  // Whether the response is a stream of server-sent events.
  bool stream() const { return stream_; }

  // Appends what a stream sends before the first token.
  virtual void begin(std::string& out) = 0;
  // Applies an update (not an error) of requests()[index].
  virtual void apply(std::size_t index, const runtime::Update& update, std::string& out) = 0;
  // Whether all unfinished answers of that request have reached a stop string: the engine can abort
  // it. Its remaining updates still arrive.
  virtual bool stopped(std::size_t index) const = 0;
  // Whether all answers have ended.
  virtual bool done() const = 0;
  // Appends the end of a stream (the last chunks, "data: [DONE]"), or the whole body.
  virtual void finish(std::string& out) = 0;
  // The engine has rejected or lost the request: appends what a stream sends instead of its end: an
  // error event and the end. (Without a stream the response is error_body().)
  virtual void fail(int status, std::string_view message, std::string& out) = 0;

 protected:
  std::vector<runtime::Request> requests_;
  bool stream_ = false;
};

// --- Endpoints. All throw ApiError for invalid bodies. ---

using ParseCall = std::unique_ptr<ApiCall> (*)(const ApiContext& context,
                                               const ApiRequestInfo& info, std::string_view body);

std::unique_ptr<ApiCall> parse_chat_completion(const ApiContext& context,
                                               const ApiRequestInfo& info, std::string_view body);
std::unique_ptr<ApiCall> parse_completion(const ApiContext& context, const ApiRequestInfo& info,
                                          std::string_view body);
std::unique_ptr<ApiCall> parse_message(const ApiContext& context, const ApiRequestInfo& info,
                                       std::string_view body);
std::unique_ptr<ApiCall> parse_response(const ApiContext& context, const ApiRequestInfo& info,
                                        std::string_view body);

// Endpoints that do not need the engine; they return the response's body.
using Respond = std::string (*)(const ApiContext& context, std::string_view body);

std::string respond_models(const ApiContext& context, std::string_view body);
// One of them; its name is in the path, and comes as the body.
std::string respond_model(const ApiContext& context, std::string_view name);
std::string respond_tokenize(const ApiContext& context, std::string_view body);
std::string respond_detokenize(const ApiContext& context, std::string_view body);
std::string respond_count_tokens(const ApiContext& context, std::string_view body);
std::string respond_openapi(const ApiContext& context, std::string_view body);

}  // namespace nvllm::launcher
