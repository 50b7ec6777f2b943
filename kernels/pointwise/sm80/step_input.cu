// Step input on the GPU. The blocks of threads of a sequence share its table and its rows, and need not
// wait for each other: entries that are new are read where they came from, and nobody reads them in the
// table that this kernel writes.
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/pointwise/sm80/step_input.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMaxParts = 64;  // that share the work of a sequence

struct Params {
  explicit Params(const StepInput& args)
      : slots(args.slots.as<int>()),
        query_start(args.query_start.as<int>()),
        first_position(args.first_position.as<int>()),
        first_token(args.first_token.as<int>()),
        first_block(args.first_block.as<int>()),
        block_start(args.block_start.as<int>()),
        new_tokens(args.new_tokens.as<int>()),
        new_blocks(args.new_blocks.as<int>()),
        last_tokens(args.last_tokens.as<int>()),
        table(args.table.as<int>()),
        history(args.history.as<int>()),
        block_map(args.block_map.as<int>()),
        tokens(args.tokens.as<int>()),
        positions(args.positions.as<int>()),
        places(args.places.as<long long>()),
        kv_length(args.kv_length.as<int>()),
        block_table(args.block_table.as<int>()),
        table_blocks(args.table.shape[1]),
        block_size(static_cast<int>(args.history.shape[1])) {}

  const int *slots, *query_start, *first_position, *first_token, *first_block, *block_start;
  const int *new_tokens, *new_blocks, *last_tokens;
  int *table, *history;
  const int* block_map;  // nullptr: none
  int *tokens, *positions;
  long long* places;
  int *kv_length, *block_table;
  long long table_blocks;
  int block_size;
};

// gridDim: (sequences, parts)
__global__ void __launch_bounds__(kThreads) step_input_kernel(const Params p) {
  const int s = blockIdx.x;
  const int thread = blockIdx.y * kThreads + threadIdx.x, threads = gridDim.y * kThreads;
  const int slot = p.slots[s], begin = p.query_start[s], rows = p.query_start[s + 1] - begin;
  if (slot < 0) {
    for (int row = begin + thread; row < begin + rows; row += threads) {
      p.tokens[row] = p.positions[row] = 0;
      p.places[row] = -1;
    }
    if (thread == 0) p.kv_length[s] = 0;
    return;
  }
  const int first_position = p.first_position[s], length = first_position + rows;
  const int first_token = p.first_token[s], first_block = p.first_block[s];
  const int* new_blocks = p.new_blocks + p.block_start[s];
  const int blocks_added = p.block_start[s + 1] - p.block_start[s];
  int* table = p.table + slot * p.table_blocks;
  const auto block_of = [&](int index) {
    return index < first_block ? table[index] : new_blocks[index - first_block];
  };

  if (thread == 0) p.kv_length[s] = length;
  for (int i = thread; i < blocks_added; i += threads) table[first_block + i] = new_blocks[i];
  int* block_table = p.block_table + s * p.table_blocks;
  const int blocks = (length + p.block_size - 1) / p.block_size;
  for (int i = thread; i < blocks; i += threads) block_table[i] = block_of(i);
  for (int row = thread; row < rows; row += threads) {
    const int position = first_position + row;
    const long long block = block_of(position / p.block_size), within = position % p.block_size;
    const long long home = p.block_map == nullptr ? block : p.block_map[block];
    const int token = first_token < 0 ? p.last_tokens[slot] : p.new_tokens[first_token + row];
    p.tokens[begin + row] = token;
    p.positions[begin + row] = position;
    p.places[begin + row] = home < 0 ? -1 : home * p.block_size + within;
    p.history[block * p.block_size + within] = token;
  }
}

}  // namespace

void step_input(const StepInput& args, Stream& stream) {
  const std::int64_t parts =
      std::clamp<std::int64_t>((args.max_query_rows + kThreads - 1) / kThreads, 1, kMaxParts);
  const dim3 grid(static_cast<unsigned>(args.slots.shape[0]), static_cast<unsigned>(parts));
  step_input_kernel<<<grid, kThreads, 0, nvllm::cuda::native(stream)>>>(Params(args));
  nvllm::cuda::check(cudaGetLastError(), "launching step_input");
}

}  // namespace nvllm::kernels::cuda
