// Embedding on the GPU: copies of rows. Element types do not matter, only how many bytes can be moved at
// once.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/sm80/embedding.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kUnits = 4;  // of a thread, all on their way together

template <typename Unit>
__global__ void __launch_bounds__(kTileBlockThreads)
    embedding_kernel(Unit* out, const int* ids, const Unit* table, long long first_id,
                     long long entries, const RowTiles tiles) {
  begin_after_previous_kernel();
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
    if (at < tiles.columns) to[at] = units[u];
  }
}

template <typename Unit>
void launch(const Embedding& args, std::int64_t row_bytes, Stream& stream) {
  const RowTiles tiles(args.out.shape[0], row_bytes / static_cast<std::int64_t>(sizeof(Unit)), 1,
                       kUnits);
  launch_early("launching embedding", embedding_kernel<Unit>, tiles.grid, tiles.block,
               nvllm::cuda::native(stream), args.out.as<Unit>(), args.ids.as<int>(),
               args.table.as<Unit>(), args.first_id, args.table.shape[0], tiles);
}

}  // namespace

void embedding(const Embedding& args, Stream& stream) {
  const std::size_t element = size_of(args.table.dtype);
  const auto row_bytes = args.table.shape[1] * static_cast<std::int64_t>(element);
  if (row_bytes % 16 == 0 && args.out.aligned(16) && args.table.aligned(16)) {
    launch<uint4>(args, row_bytes, stream);
  } else if (element == 4) {
    launch<unsigned>(args, row_bytes, stream);
  } else {
    launch<unsigned short>(args, row_bytes, stream);
  }
}

}  // namespace nvllm::kernels::cuda
