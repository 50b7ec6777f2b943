// Step input and embedding on the GPU.
//
// Step input: several blocks share the table and the rows of a sequence. They need not wait for
// each other: they read new entries from their source, never from the table that this kernel
// writes.
#include <algorithm>

#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/step_input.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMaxParts = 64;  // blocks that share a sequence

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
        slot_mapping(args.slot_mapping.as<long long>()),
        kv_length(args.kv_length.as<int>()),
        block_table(args.block_table.as<int>()),
        table_blocks(args.table.shape[1]),
        block_size(static_cast<int>(args.history.shape[1])) {}

  const int *slots, *query_start, *first_position, *first_token, *first_block, *block_start;
  const int *new_tokens, *new_blocks, *last_tokens;
  int *table, *history;
  const int* block_map;  // nullptr: none
  int *tokens, *positions;
  long long* slot_mapping;
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
      p.slot_mapping[row] = -1;
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
    const long long stored_in = p.block_map == nullptr ? block : p.block_map[block];
    const int token = first_token < 0 ? p.last_tokens[slot] : p.new_tokens[first_token + row];
    p.tokens[begin + row] = token;
    p.positions[begin + row] = position;
    p.slot_mapping[begin + row] = stored_in < 0 ? -1 : stored_in * p.block_size + within;
    p.history[block * p.block_size + within] = token;
  }
}

// --- embedding: rows, copied or scaled, in the widest units that address and length allow

constexpr int kUnits = 4;  // per thread, all in flight together

// Transforms a unit: copies it, or multiplies its elements by a factor.
struct Copied {
  template <typename Unit>
  __device__ __forceinline__ Unit operator()(const Unit& unit) const {
    return unit;
  }
};
struct Scaled {
  float factor;

  template <typename T>
  __device__ __forceinline__ Vector<T> operator()(const Vector<T>& vector) const {
    Floats<T> x = widen(vector);
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; ++i) x.element[i] *= factor;
    return narrow(x);
  }
  template <typename T>
  __device__ __forceinline__ T operator()(const T& element) const {
    return narrow<T>(widen(element) * factor);
  }
};

template <typename Unit, typename Change>
__global__ void __launch_bounds__(kTileBlockThreads)
    embedding_kernel(Unit* out, const int* ids, const Unit* table, long long first_id,
                     long long entries, const RowTiles tiles, const Change change) {
  pdl_begin();
  const TilePlace place = tile_place<kUnits>(tiles.tiles);
  if (place.row >= tiles.rows) return;
  const long long entry = ids[place.row] - first_id;
  const bool mine = entry >= 0 && entry < entries;
  const Unit* from = table + (mine ? entry : 0) * tiles.columns;
  Unit* to = out + place.row * tiles.columns;
  Unit units[kUnits] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const long long at = place.vector + u * blockDim.x;
    if (mine && at < tiles.columns) units[u] = from[at];
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const long long at = place.vector + u * blockDim.x;
    if (at < tiles.columns) to[at] = change(units[u]);
  }
}

template <typename Unit, typename Change = Copied>
void launch_embedding(const Embedding& args, std::int64_t row_bytes, Stream& stream,
                      const Change& change = {}) {
  const RowTiles tiles(args.out.shape[0], row_bytes / static_cast<std::int64_t>(sizeof(Unit)), 1,
                       kUnits);
  launch_with_pdl("launching embedding", embedding_kernel<Unit, Change>, tiles.grid, tiles.block,
                  nvllm::cuda::native(stream), args.out.as<Unit>(), args.ids.as<int>(),
                  args.table.as<Unit>(), args.first_id, args.table.shape[0], tiles, change);
}

}  // namespace

void step_input(const StepInput& args, Stream& stream) {
  const std::int64_t parts =
      std::clamp<std::int64_t>((args.max_query_rows + kThreads - 1) / kThreads, 1, kMaxParts);
  const dim3 grid(static_cast<unsigned>(args.slots.shape[0]), static_cast<unsigned>(parts));
  step_input_kernel<<<grid, kThreads, 0, nvllm::cuda::native(stream)>>>(Params(args));
  nvllm::cuda::check(cudaGetLastError(), "launching step_input");
}

void embedding(const Embedding& args, Stream& stream) {
  const std::size_t element = size_of(args.table.dtype);
  const auto row_bytes = args.table.shape[1] * static_cast<std::int64_t>(element);
  const bool vectors = row_bytes % 16 == 0 && args.out.aligned(16) && args.table.aligned(16);
  if (args.scale != 1) {
    const Scaled scaled{args.scale};
    with_element_type(args.table.dtype, [&]<typename T>(T) {
      vectors ? launch_embedding<Vector<T>>(args, row_bytes, stream, scaled)
              : launch_embedding<T>(args, row_bytes, stream, scaled);
    });
  } else if (vectors) {
    launch_embedding<uint4>(args, row_bytes, stream);
  } else if (element == 4) {
    launch_embedding<unsigned>(args, row_bytes, stream);
  } else {
    launch_embedding<unsigned short>(args, row_bytes, stream);
  }
}

}  // namespace nvllm::kernels::cuda
