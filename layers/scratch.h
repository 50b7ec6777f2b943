// Scratch: memory for activations that live no longer than a layer's forward pass. A stack in one piece
// of memory, so the same calls get the same addresses every time, as a captured graph needs.
//
//   const Scratch::Frame frame(scratch);                    // frees what was taken since, at its end
//   const TensorView gates = scratch.take(DType::bf16, rows, columns);
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/tensor_view.h"

namespace nvllm::layers {

// Freed memory may be taken again at once: work on one stream runs in order. Not thread-safe.
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 256;

  // What a tensor takes of it.
  static constexpr std::size_t bytes_of(DType dtype, std::int64_t rows, std::int64_t columns) {
    const std::size_t bytes = static_cast<std::size_t>(rows * columns) * size_of(dtype);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Scratch() = default;
  // `data`: aligned to kAlignment.
  Scratch(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}

  // Dense. More than there is aborts: who sizes the memory knows what the layers take.
  TensorView take(DType dtype, std::int64_t rows, std::int64_t columns);

  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Frame() { scratch_.used_ = used_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    std::size_t used_;
  };

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

}  // namespace nvllm::layers
