#include "model/staging.h"

#include <exception>

#include "base/check.h"
#include "base/logging.h"

namespace nvllm::model {

Staging::Staging(Backend& backend, std::size_t bytes)
    : backend_(backend), bytes_(bytes), stream_(backend.create_stream()) {}

Staging::~Staging() {
  try {
    stream_->synchronize();
  } catch (const std::exception& error) {
    log_debug("while loading ends: ",
              error.what());  // finish() reports; here something else failed
  }
}

std::byte* Staging::next() {
  Half& half = halves_[turn_];
  if (!half.buffer) {
    half.buffer = backend_.allocate(MemoryKind::pinned, bytes_, "staging of weights");
    half.copied = backend_.create_event();
  }
  half.copied->synchronize();
  return static_cast<std::byte*>(half.buffer.data());
}

void Staging::send(void* to, std::size_t bytes) {
  NVLLM_CHECK_LE(bytes, bytes_);
  Half& half = halves_[turn_];
  backend_.copy(to, half.buffer.data(), bytes, *stream_);
  half.copied->record(*stream_);
  turn_ = 1 - turn_;
}

void Staging::finish() {
  stream_->synchronize();
}

}  // namespace nvllm::model
