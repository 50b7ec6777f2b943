// Batches in the format of OpenAI's batch API: the lines of requests and responses, and BatchCall,
// a request that the engine is processing.
//   {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", ...}}
//   {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200,
//    "request_id": "req_1_HASH", "body": {...}}, "error": null}
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/generate/request_line.h"
#include "launcher/serve/api/api_call.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Whether a text that may not be valid JSON was meant to be such a line.
bool mentions_custom_id(std::string_view line);
bool is_batch_line(const nlohmann::json& object);

// Parses everything around the body. Throws an Error, with result.error_param set.
void read_batch_line(std::string_view line, const nlohmann::json& object, RequestLine& result);

// Lets the endpoint parse the body. Throws an ApiError.
std::unique_ptr<ApiCall> parse_batch_request(const ApiContext& context, std::uint64_t line,
                                             const BatchRequest& request);

// Appends an output line. custom_id: as JSON; empty: it could not be read. body: JSON.
// The request's hash is the end of "request_id", because the format has no field for it.
void append_batch_line(std::string& out, std::uint64_t line, std::string_view custom_id,
                       std::string_view request_hash, int status, std::string_view body);

// The part of such a line that --resume needs.
struct BatchAnswer {
  std::uint64_t line = 0;  // of the input
  std::string custom_id = "";
  std::string request_hash = "";
  bool failed = false;
};
// nullopt: the object is not a line of this format.
std::optional<BatchAnswer> read_batch_answer(const nlohmann::json& object);

// A batch line that the engine is processing. The endpoint's own call (api_call.h) converts the
// engine's updates to the response body, as it does in the server.
class BatchCall {
 public:
  explicit BatchCall(std::unique_ptr<ApiCall> call);

  // The requests for the engine; take them once.
  std::vector<runtime::Request> take_requests() { return std::move(call_->requests()); }

  // Applies the update of one of these requests. Returns those that the engine can abort, each
  // once. Never throws: failures are reported by error().
  std::vector<std::size_t> apply(std::size_t index, const runtime::Update& update);

  // Whether all updates have arrived.
  bool done() const { return open_answers_ == 0; }
  // Call once done: the body; empty: error() says why there is none.
  std::string body();
  const std::string& error() const { return error_; }

  std::uint64_t prompt_tokens() const { return prompt_tokens_; }
  std::uint64_t answers() const { return answers_; }

 private:
  struct Part {
    std::int32_t open = 0;   // unfinished answers
    bool abandoned = false;  // the engine can abort it
  };

  template <typename Work>
  void guarded(const Work& work);

  std::unique_ptr<ApiCall> call_;
  std::vector<Part> parts_;  // one per request
  std::uint64_t prompt_tokens_ = 0, answers_ = 0, open_answers_ = 0;
  std::string ignored_;  // one per request
  std::string error_;
};

}  // namespace nvllm::launcher
