#include "kernels/pointwise/step_input.h"

#include <algorithm>
#include <cstring>

#include "device/cpu/stream.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {
namespace {

template <typename T>
void scale_row(T* out, const T* entry, std::int64_t columns, float scale) {
  for (std::int64_t i = 0; i < columns; ++i) out[i] = from_float<T>(to_float(entry[i]) * scale);
}

// Rows [begin, end) of an embedding.
void copy_rows(const Embedding& args, std::int64_t begin, std::int64_t end) {
  const std::size_t row_bytes = args.table.shape[1] * size_of(args.table.dtype);
  if (row_bytes == 0) return;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t entry = args.ids.as<std::int32_t>()[row] - args.first_id;
    char* out = args.out.as<char>() + row * row_bytes;
    if (entry < 0 || entry >= args.table.shape[0]) {
      std::memset(out, 0, row_bytes);
      continue;
    }
    const char* const from = args.table.as<char>() + entry * row_bytes;
    if (args.scale == 1) {
      std::memcpy(out, from, row_bytes);
    } else {
      with_element_type(args.table.dtype, [&]<typename T>(T) {
        scale_row(reinterpret_cast<T*>(out), reinterpret_cast<const T*>(from), args.table.shape[1],
                  args.scale);
      });
    }
  }
}

}  // namespace

void check_step_input(const StepInput& args) {
  constexpr Arguments check("step_input");
  const std::int64_t sequences = args.slots.shape[0], rows = args.tokens.shape[0];
  const std::int64_t slots = args.last_tokens.shape[0], blocks = args.table.shape[1];
  check.require_dense(args.slots, "slots", DType::i32, {sequences});
  check.require_dense(args.query_start, "query_start", DType::i32, {sequences + 1});
  check.require_dense(args.first_position, "first_position", DType::i32, {sequences});
  check.require_dense(args.first_token, "first_token", DType::i32, {sequences});
  check.require_dense(args.first_block, "first_block", DType::i32, {sequences});
  check.require_dense(args.block_start, "block_start", DType::i32, {sequences + 1});
  check.require_dense(args.new_tokens, "new_tokens", DType::i32, {args.new_tokens.shape[0]});
  check.require_dense(args.new_blocks, "new_blocks", DType::i32, {args.new_blocks.shape[0]});
  check.require_dense(args.last_tokens, "last_tokens", DType::i32, {slots});
  check.require_dense(args.table, "table", DType::i32, {slots, blocks});
  check.require_dense(args.history, "history", DType::i32,
                      {args.history.shape[0], args.history.shape[1]});
  if (args.block_map.data != nullptr) {
    check.require_dense(args.block_map, "block_map", DType::i32, {args.history.shape[0]});
  }
  check.require_dense(args.tokens, "tokens", DType::i32, {rows});
  check.require_dense(args.positions, "positions", DType::i32, {rows});
  check.require_dense(args.slot_mapping, "slot_mapping", DType::i64, {rows});
  check.require_dense(args.kv_length, "kv_length", DType::i32, {sequences});
  check.require_dense(args.block_table, "block_table", DType::i32, {sequences, blocks});
}

void step_input(const StepInput& args, Stream& stream) {
  check_step_input(args);
  if (args.slots.shape[0] == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::step_input(args, stream);
#endif
  // A few words per sequence and row: the plain definition is fast enough.
  nvllm::cpu::stream(stream).submit([args] { step_input_reference(args); });
}

void step_input_reference(const StepInput& args) {
  check_step_input(args);
  const std::int64_t block_size = args.history.shape[1];
  const auto* block_map = args.block_map.as<std::int32_t>();
  for (std::int64_t s = 0; s < args.slots.shape[0]; ++s) {
    const std::int64_t slot = args.slots.as<std::int32_t>()[s];
    const std::int32_t* query_start = args.query_start.as<std::int32_t>() + s;
    const std::int64_t begin = query_start[0], rows = query_start[1] - begin;
    const std::int64_t first_position = args.first_position.as<std::int32_t>()[s];
    const std::int32_t first_token = args.first_token.as<std::int32_t>()[s];
    if (slot < 0) {
      args.kv_length.as<std::int32_t>()[s] = 0;
      for (std::int64_t row = begin; row < begin + rows; ++row) {
        args.tokens.as<std::int32_t>()[row] = 0;
        args.positions.as<std::int32_t>()[row] = 0;
        args.slot_mapping.as<std::int64_t>()[row] = -1;
      }
      continue;
    }
    std::int32_t* table = args.table.as<std::int32_t>() + slot * args.table.shape[1];
    const std::int32_t* block_start = args.block_start.as<std::int32_t>() + s;
    std::copy(args.new_blocks.as<std::int32_t>() + block_start[0],
              args.new_blocks.as<std::int32_t>() + block_start[1],
              table + args.first_block.as<std::int32_t>()[s]);
    const std::int64_t length = first_position + rows;
    args.kv_length.as<std::int32_t>()[s] = static_cast<std::int32_t>(length);
    std::copy_n(table, (length + block_size - 1) / block_size,
                args.block_table.as<std::int32_t>() + s * args.block_table.shape[1]);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t position = first_position + row;
      const std::int32_t block = table[position / block_size];
      const std::int64_t within = position % block_size;
      const std::int64_t stored_in = block_map == nullptr ? block : block_map[block];
      const std::int32_t token = first_token < 0
                                     ? args.last_tokens.as<std::int32_t>()[slot]
                                     : args.new_tokens.as<std::int32_t>()[first_token + row];
      args.tokens.as<std::int32_t>()[begin + row] = token;
      args.positions.as<std::int32_t>()[begin + row] = static_cast<std::int32_t>(position);
      args.slot_mapping.as<std::int64_t>()[begin + row] =
          stored_in < 0 ? -1 : stored_in * block_size + within;
      args.history.as<std::int32_t>()[block * block_size + within] = token;
    }
  }
}

void check_embedding(const Embedding& args) {
  constexpr Arguments check("embedding");
  const TensorView& table = args.table;
  check.require_floats(table, "table", 2, "[entries, columns]");
  check.require_dense(table, "table");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  const std::int64_t rows = args.out.shape[0];
  check.require_dense(args.out, "out", table.dtype, {rows, table.shape[1]});
  check.require_dense(args.ids, "ids", DType::i32, {rows});
}

void embedding(const Embedding& args, Stream& stream) {
  check_embedding(args);
  if (args.out.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::embedding(args, stream);
#endif
  const auto row_bytes = static_cast<std::int64_t>(args.table.shape[1] * size_of(args.table.dtype));
  submit_rows(stream, args.out.shape[0], 2 * row_bytes,
              [args](std::int64_t begin, std::int64_t end) { copy_rows(args, begin, end); });
}

}  // namespace nvllm::kernels
