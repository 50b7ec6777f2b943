#include "launcher/generate/batch_call.h"

#include <exception>
#include <utility>

#include "base/text.h"

namespace nvllm::launcher {

using runtime::FinishReason;

BatchCall::BatchCall(std::unique_ptr<ApiCall> call) : call_(std::move(call)) {
  for (const runtime::Request& request : call_->requests()) {
    parts_.push_back({.open = request.sampling.n});
    prompt_tokens_ += request.prompt.size();
    answers_ += static_cast<std::uint64_t>(request.sampling.n);
  }
  open_answers_ = answers_;
}

template <typename Work>
void BatchCall::guarded(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    error_ = str("the answer cannot be written: ", error.what());
  }
}

std::vector<std::size_t> BatchCall::apply(std::size_t index, const runtime::Update& update) {
  Part& part = parts_.at(index);
  const bool refused = !update.error.empty();
  std::int32_t ended = update.finish == FinishReason::none ? 0 : 1;
  if (refused) ended = part.open;  // the only update of a rejected request
  part.open -= ended;
  open_answers_ -= static_cast<std::uint64_t>(ended);
  if (refused && error_.empty()) error_ = update.error;
  if (!refused && error_.empty()) guarded([&] { call_->apply(index, update, ignored_); });
  ignored_.clear();

  // One rejected request fails the whole line, so the others can be aborted.
  std::vector<std::size_t> stopped;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].open == 0 || parts_[i].abandoned) continue;
    if (error_.empty() && (i != index || !call_->stopped(i))) continue;
    parts_[i].abandoned = true;
    stopped.push_back(i);
  }
  return stopped;
}

std::string BatchCall::body() {
  std::string out;
  if (error_.empty()) guarded([&] { call_->finish(out); });
  return error_.empty() ? out : "";
}

}  // namespace nvllm::launcher
