// What a forward pass runs on: its rows (Batch), memory that lives no longer than one layer
// (Scratch), and everything a layer is given (Context). Nothing here is global.
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

// A contiguous range of a batch's rows. Its first sequence may start in an earlier range, its last
// may continue in a later one.
struct MicroBatch {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_sequence = 0, sequences = 0;
  TensorView query_start{};  // [sequences + 1], int32: relative to this range
  TensorView kv_length{};    // [sequences], int32: tokens up to and including the last row here
  std::int64_t max_query_rows = 0, max_kv_length = 0;
  std::int64_t decode_sequences = 0;  // leading sequences with one row each in this part
};

// The rows of one forward pass: the newest tokens of some sequences, one sequence after the other.
// All tensors are device memory, so that a captured graph reads new values at every replay.
struct Batch {
  TensorView tokens;        // [rows], int32
  TensorView positions;     // [rows], int32: each token's position in its sequence
  TensorView slot_mapping;  // [rows], int64: KV cache slots to write (kernels/attention/kv_view.h)
  TensorView query_start;   // [sequences + 1], int32: the first row of each sequence
  TensorView kv_length;     // [sequences], int32: tokens including these rows
  TensorView block_table;   // [sequences, blocks], int32; data == nullptr: contiguous
  // The slots and block table of the cache's sliding-window layer group; data == nullptr: there is
  // no such group. Entries of blocks that precede the windows of all rows may name any valid block.
  TensorView window_slot_mapping{}, window_block_table{};
  // [sequences], int32: each sequence's linear-attention state slot; negative: padding. Only models
  // with linear attention read it.
  TensorView state_slots;
  // [any number], int32: the rows whose logits are needed; data == nullptr: all, in order
  TensorView logit_rows;

  // Upper bounds that hold for every replay of a captured graph.
  std::int64_t max_query_rows = 0;
  std::int64_t max_kv_length = 0;
  // The number of leading sequences with one row each; 0 is always valid.
  std::int64_t decode_sequences = 0;

  // Row ranges into which the layers split the batch; each layer processes all of them before the
  // next layer starts. Empty: all rows at once. The caller keeps the array alive until the pass is
  // enqueued.
  std::span<const MicroBatch> parts{};

  TensorView slot_mapping_in(bool window_group) const {
    return window_group ? window_slot_mapping : slot_mapping;
  }
  TensorView block_table_in(bool window_group) const {
    return window_group ? window_block_table : block_table;
  }
  std::int64_t rows() const { return tokens.shape[0]; }
  std::int64_t logits() const { return logit_rows.data == nullptr ? rows() : logit_rows.shape[0]; }
};

// A stack allocator over one piece of memory: the same sequence of calls yields the same addresses,
// as captured graphs need. Freed memory may be reused at once, since work on one stream runs in
// order. Not thread-safe.
//
//   const Scratch::Frame frame(scratch);  // at its end, frees what was allocated since
//   const TensorView gates = scratch.allocate(DType::bf16, rows, columns);
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 256;

  // Bytes of scratch memory that a tensor takes.
  static constexpr std::size_t bytes_of(DType dtype, std::int64_t rows, std::int64_t columns) {
    const std::size_t bytes = static_cast<std::size_t>(rows * columns) * size_of(dtype);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Scratch() = default;
  // `data` must be aligned to kAlignment.
  Scratch(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}

  // Allocates a dense tensor. Exhaustion aborts: the memory was sized from the layers'
  // scratch_bytes().
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

// Everything a layer is given to run on.
struct Context {
  Stream& stream;
  kernels::Gemm& gemm;
  Scratch& scratch;
  ipc::Communicator* communicator = nullptr;  // nullptr: a single rank
  // A row's bits do not depend on the number of rows (GemmOptions::invariant, with which `gemm` was
  // created, and Attention::invariant).
  bool invariant = false;

  int ranks() const { return communicator == nullptr ? 1 : communicator->size(); }
  bool alone() const { return ranks() == 1; }
};

// A view of `count` columns of a matrix; the row stride stays the same.
inline TensorView columns_of(TensorView matrix, std::int64_t first, std::int64_t count) {
  matrix.data = matrix.as<std::byte>() + static_cast<std::size_t>(first) * size_of(matrix.dtype);
  matrix.shape[1] = count;
  return matrix;
}

}  // namespace nvllm::layers
