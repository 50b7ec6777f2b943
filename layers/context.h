// What a forward pass works with: its rows (Batch), memory for what lives no longer than a layer
// (Scratch), and what every layer is given to run on (Context). Nothing of it is global.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "device/backend.h"
#include "device/tensor_view.h"
#include "ipc/collective/communicator.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::layers {

// Some of a batch's rows, one after the other. The first sequence may start before them, the last
// may go on after them.
struct BatchPart {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_sequence = 0, sequences = 0;
  TensorView query_start{};  // [sequences + 1], int32: among these rows
  TensorView kv_length{};    // [sequences], int32: tokens of each, up to the last of these rows
  std::int64_t max_query_rows = 0, max_kv_length = 0;
};

// The rows of one forward pass: the newest tokens of some sequences, one sequence after the other.
// All tensors are device memory, so that a captured graph reads other values in every replay.
struct Batch {
  TensorView tokens;       // [rows], int32
  TensorView positions;    // [rows], int32: where in its sequence each token is
  TensorView slots;        // [rows], int64: where keys and values go (kernels/attention/kv_view.h)
  TensorView query_start;  // [sequences + 1], int32: the first row of each sequence
  TensorView kv_length;    // [sequences], int32: tokens of each, these rows included
  TensorView block_table;  // [sequences, blocks], int32; data == nullptr: contiguous
  // The same two of layers in the cache's group of those with a window; data == nullptr: there is
  // no such group. Entries of blocks before the windows of all rows name any block there is.
  TensorView window_slots{}, window_block_table{};
  // [sequences], int32: where linear attention keeps the state of each; negative: padding. Only
  // models that have some read it.
  TensorView state_slots;
  // [any number], int32: the rows whose logits are wanted; data == nullptr: all, in order
  TensorView logit_rows;

  // Bounds that hold for every value that a captured graph will see.
  std::int64_t max_query_rows = 0;
  std::int64_t max_kv_length = 0;

  // Parts that the layers take the rows in, each layer all of them before the next layer; empty:
  // all rows at once. Whoever made them keeps them until the pass is enqueued.
  std::span<const BatchPart> parts{};

  TensorView slots_in(bool window_group) const { return window_group ? window_slots : slots; }
  TensorView block_table_in(bool window_group) const {
    return window_group ? window_block_table : block_table;
  }
  std::int64_t rows() const { return tokens.shape[0]; }
  std::int64_t logits() const { return logit_rows.data == nullptr ? rows() : logit_rows.shape[0]; }
};

// A stack in one piece of memory, so the same calls get the same addresses every time, as a
// captured graph needs. Freed memory may be taken again at once: work on one stream runs in order.
// Not thread-safe.
//
//   const Scratch::Frame frame(scratch);  // frees what was taken since, at its end
//   const TensorView gates = scratch.allocate(DType::bf16, rows, columns);
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
  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t columns) {
    const std::size_t bytes = bytes_of(dtype, rows, columns);
    NVLLM_CHECK(bytes <= bytes_ - used_, bytes, " bytes of scratch memory; ", bytes_ - used_,
                " of ", bytes_, " are left");
    const TensorView tensor(data_ + used_, dtype, {rows, columns});
    used_ += bytes;
    return tensor;
  }

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

// Passed to every layer.
struct Context {
  Stream& stream;
  kernels::Gemm& gemm;
  Scratch& scratch;
  ipc::Communicator* communicator = nullptr;  // nullptr: there is one rank
  // A row's bits do not depend on how many rows there are (GemmOptions::invariant, which `gemm`
  // was made with, and Attention::invariant).
  bool invariant = false;

  int ranks() const { return communicator == nullptr ? 1 : communicator->size(); }
  bool alone() const { return ranks() == 1; }
};

// Some columns of a matrix, whose rows stay where they are.
inline TensorView columns_of(TensorView matrix, std::int64_t first, std::int64_t count) {
  matrix.data = matrix.as<std::byte>() + static_cast<std::size_t>(first) * size_of(matrix.dtype);
  matrix.shape[1] = count;
  return matrix;
}

}  // namespace nvllm::layers
