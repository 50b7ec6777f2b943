// BatchCall: a batch line that the engine is processing. The endpoint's own call (api_call.h)
// converts the engine's updates to the response body, as it does in the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/api/api_call.h"
#include "runtime/request.h"

namespace nvllm::launcher {

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
