// Decode attention on Hopper with split-KV over warps and the blocks of a cluster.
//
// The blocks of a cluster split the tokens of a sequence and a KV head; each has all of its rows,
// up to 16 packed ones. Every warp has its own KV tiles of 16 tokens (E4m3: 32), with a fixed
// stride, and a private ring of tiles that it fills ahead of time (by TMA boxes, or by
// cp.async where a tile may cross cache blocks); no warp waits for another before the end. Each
// block then combines the partial results of its warps and sends every block of the cluster its
// share of them through distributed shared memory, signalled by an mbarrier. The order of all sums
// is fixed by the numbers of warps and blocks; neither depends on how tiles are copied. attend() is
// the work of a block; decode.cu launches it.
#pragma once

#include "kernels/attention/sm80/decode.cuh"
#include "kernels/attention/sm90/entry_points.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"

namespace nvllm::kernels::cuda::decode_sm90 {

using decode::kRows;
static_assert(kRows == kSm90DecodeRows);
inline constexpr int kBoxTokens = 16;  // of a box
// Tokens of a tile: the same number of bytes for each cache type.
template <typename T>
inline constexpr int kTokens = kIsE4m3<T> ? 32 : 16;
inline constexpr int kMaxBlocks = 16;  // of a cluster
// Tiles that a warp copies ahead. Those of long heads take so long to multiply that more warps with
// fewer tiles are faster.
template <int D>
inline constexpr int kStages = D <= 128 ? 3 : 2;

// How KV tiles are copied: as TMA boxes, each within one cache block; or in chunks of 16 bytes at
// any address.
enum class Copy { boxes, chunks };

template <typename T, int D, Copy kCopy>
struct Tile : DefaultTile<T, D> {};
// As a bulk copy with a 128-byte swizzle writes a tile: box after box, each with the first 128
// bytes of all its tokens, then the next 128.
template <typename T, int D>
struct BoxedRows {
  static __device__ __forceinline__ unsigned at(unsigned tile, int row, int chunk) {
    const int box = row / kBoxTokens * kBoxTokens * kHeadBytes<T, D>;
    return tile + box + (chunk / 8 * kBoxTokens + row % kBoxTokens) * 128 +
           ((chunk & 7) ^ (row & 7)) * 16;
  }
};
template <int D>
struct Tile<Bf16, D, Copy::boxes> : BoxedRows<Bf16, D> {};
template <int D>
struct Tile<F16, D, Copy::boxes> : BoxedRows<F16, D> {};
// Shorter heads of E4m3 have the usual layout, in boxes, too.
template <typename Row>
struct Tile<E4m3Cache<Row>, 256, Copy::boxes> : BoxedRows<E4m3Cache<Row>, 256> {};

// The partial result of a warp.
template <int D>
using WarpPartial = decode::WarpPartial<D, 8>;

// The layout of a block's shared memory, in bytes.
template <typename T, int D, int kWarps>
struct SharedLayout {
  static constexpr int kTile = kTokens<T> * kHeadBytes<T, D>;  // of keys; values take as much
  static constexpr int kRing = kStages<D> * 2 * kTile;  // of a warp, reused for its partial result
  static constexpr int kBarriers = kWarps * kRing;
  static constexpr int kReceived = kBarriers + (kWarps * kStages<D> + 2) / 2 * 16;
  static_assert(sizeof(WarpPartial<D>) <= kRing);
  // The size for this many rows. The rings and barriers are followed by memory for what the blocks
  // of the cluster send: quads of weighted values, rounded up per block, then a row maximum and a
  // sum per row.
  static int bytes(long long rows) {
    return kReceived + kMaxBlocks * 16 + static_cast<int>(rows) * (D * 4 + kMaxBlocks * 8);
  }
};

#if __CUDA_ARCH__ >= 900

// The tiles of a warp: every step-th one from `first` on. A tile is kBoxes boxes. With a window,
// the first one begins with the box in which the window of the first row begins.
template <typename T, bool kWindow>
class WarpTiles {
 public:
  static constexpr int kBoxes = kTokens<T> / kBoxTokens;

  __device__ __forceinline__ WarpTiles(const AttentionPart<T, kWindow>& part, int first, int step,
                                       int lane)
      : part_(part),
        begin_(part.first_seen(0) / kBoxTokens * kBoxTokens),
        first_(first),
        step_(step),
        lane_(lane),
        blocks_(find_block(lane)) {
    const int tiles = (part.tokens - begin_ + kTokens<T> - 1) / kTokens<T>;
    count_ = tiles > first ? (tiles - first + step - 1) / step : 0;
  }

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int token(int i) const {
    return begin_ + (first_ + i * step_) * kTokens<T>;
  }
  // How many boxes of tile i contain tokens of the sequence.
  __device__ __forceinline__ int boxes(int i) const {
    return kBoxes == 1 ? 1 : min(kBoxes, (part_.tokens - token(i) + kBoxTokens - 1) / kBoxTokens);
  }

  // The cache block of a box of tile i. The warp must request its tiles in order.
  __device__ __forceinline__ int block(int i, int box) {
    const int number = i * kBoxes + box;
    if (number % 32 == 0 && number > 0) blocks_ = find_block(number + lane_);
    return __shfl_sync(~0u, blocks_, number % 32);
  }
  // The index of the box's first token in its cache block.
  __device__ __forceinline__ int within(int i, int box) const {
    const auto& p = part_.p;
    const int first = token(i) + box * kBoxTokens;
    if (p.block_table == nullptr) return first;
    return p.block_shift >= 0 ? first & (p.block_size - 1) : first % p.block_size;
  }

 private:
  // Looks up a box in the block table. It may lie beyond the sequence, whose length may not be
  // known yet.
  __device__ __forceinline__ int find_block(int number) const {
    const auto& p = part_.p;
    if (p.block_table == nullptr) return part_.sequence;
    const int first = token(number / kBoxes) + number % kBoxes * kBoxTokens;
    const int block = p.block_shift >= 0 ? first >> p.block_shift : first / p.block_size;
    if (block >= p.table_width) return 0;
    return p.block_table[static_cast<long long>(part_.sequence) * p.table_width + block];
  }

  const AttentionPart<T, kWindow>& part_;
  int begin_, first_, step_, lane_, count_;
  int blocks_;  // of box lane + a multiple of 32
};

// The ring of a warp: shared memory for some of its tiles.
template <typename T, int D, Copy kCopy>
class Ring {
 public:
  using Layout = Tile<T, D, kCopy>;

  __device__ __forceinline__ Ring(unsigned tiles, unsigned barriers, int lane)
      : tiles_(tiles), barriers_(barriers), lane_(lane) {
    if constexpr (kCopy == Copy::boxes) {
      if (lane == 0) {
        for (int stage = 0; stage < kStages<D>; ++stage) arrived(stage).init(1);
      }
    }
  }

  __device__ __forceinline__ unsigned keys(int stage) const { return tiles_ + stage * 2 * kTile; }
  __device__ __forceinline__ unsigned values(int stage) const { return keys(stage) + kTile; }

  // Starts to copy the warp's tile i. Past the last tile it copies nothing but keeps the wait
  // counts uniform.
  template <bool kWindow>
  __device__ __forceinline__ void copy(const AttentionPart<T, kWindow>& part,
                                       WarpTiles<T, kWindow>& tiles, int i, int stage,
                                       const CUtensorMap& all_keys,
                                       const CUtensorMap& all_values) const {
    if constexpr (kCopy == Copy::chunks) {
      if (i < tiles.count()) {
        copy_tokens<T, D, kTokens<T>>(part, tiles.token(i), keys(stage), values(stage), 0, lane_,
                                      part.first_seen(0));
      }
      commit_copies();
    } else if (i < tiles.count()) {
      const int boxes = tiles.boxes(i);
      if (lane_ == 0) arrived(stage).arrive_and_expect(boxes * 2 * kBox);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const int block = tiles.block(i, box), within = tiles.within(i, box);
        if (lane_ > 0 || box >= boxes) continue;
        const unsigned to = box * kBox;
        copy_box_of(keys(stage) + to, all_keys, within, part.kv_head, block, arrived(stage));
        copy_box_of(values(stage) + to, all_values, within, part.kv_head, block, arrived(stage));
      }
    }
  }

  // Waits until a tile has arrived. Rows of its values from `tokens` on are zeroed: their memory
  // may hold anything, and a weight of zero times NaN is NaN. With kWindow, so are the rows before
  // `first`.
  template <bool kWindow>
  __device__ __forceinline__ void wait(int stage, int parity, int first, int tokens) const {
    if constexpr (kCopy == Copy::chunks) {
      wait_for_copies<kStages<D> - 1>();
    } else {
      arrived(stage).wait(parity);
      clear(stage, max(0, tokens), kTokens<T>);
      if (kWindow) clear(stage, 0, first);
    }
    __syncwarp();
  }

 private:
  static constexpr int kTile = SharedLayout<T, D, 1>::kTile;
  static constexpr int kBoxes = kTokens<T> / kBoxTokens;
  static constexpr int kBox = kTile / kBoxes;

  // Sets rows [from, to) of a tile's values to zero.
  __device__ __forceinline__ void clear(int stage, int from, int to) const {
    constexpr int kChunks = kHeadBytes<T, D> / 16;
    for (int at = from * kChunks + lane_; at < to * kChunks; at += 32) {
      const unsigned chunk = Layout::at(values(stage), at / kChunks, at % kChunks);
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(chunk), "r"(0) : "memory");
    }
  }

  __device__ __forceinline__ Barrier arrived(int stage) const {
    return {barriers_ + stage * 8};
  }

  __device__ __forceinline__ void copy_box_of(unsigned to, const CUtensorMap& from, int within,
                                              int kv_head, int block,
                                              const Barrier& arrived) const {
    copy_box(to, from, 0, within, 0, kv_head, block, arrived, evict_first_);
  }

  unsigned tiles_, barriers_;
  int lane_;
  EvictFirst evict_first_;  // the L2 cache: no other block reads the tiles
};

// Combines the partial results of a block's warps and of a cluster's blocks. Quads of neighbouring
// floats of the rows are numbered; block i % blocks finishes quad i as its quad i / blocks.
template <typename T, int D, int kWarps>
class Combine {
 public:
  // Must be constructed before any block sends to this one.
  __device__ __forceinline__ Combine(unsigned char* memory, unsigned received)
      : memory_(memory),
        received_{received},
        blocks_(gridDim.x),
        rank_(blockIdx.x),
        inverse_((65536 + blocks_ - 1) / blocks_) {
    if (threadIdx.x == 0) received_.init(1);
  }

  __device__ __forceinline__ WarpPartial<D>& partial_of(int warp) const {
    return *reinterpret_cast<WarpPartial<D>*>(memory_ + warp * SharedLayout<T, D, kWarps>::kRing);
  }

  // All threads call it together, once all partial results are stored.
  __device__ __forceinline__ void run(const AttentionRows<T>& part) {
    const int rows = part.packed_rows;
    if (blocks_ == 1) return combine_warps(part);
    share_ = by_blocks(rows * kQuads + blocks_ - 1);
    const int own = by_blocks(rows * kQuads - rank_ + blocks_ - 1);
    if (threadIdx.x == 0) received_.arrive_and_expect(blocks_ * (own * 16 + rows * 8));
    send_sums(rows);
    combine_warps(part);
    received_.wait(0);
    finish(part, own);
  }

 private:
  static constexpr int kQuads = D / 4;  // of a row
  static_assert(kRows * kQuads * kMaxBlocks < 65536);

  // i / blocks_ for the numbers of quads, without a division.
  __device__ __forceinline__ int by_blocks(int i) const { return i * inverse_ >> 16; }

  // Where a block's data arrive: the quads that this block finishes, and row maxima and sums.
  __device__ __forceinline__ int quads_from(int block) const {
    return SharedLayout<T, D, kWarps>::kReceived + block * share_ * 16;
  }
  __device__ __forceinline__ int sums_from(int block, int rows) const {
    return quads_from(blocks_) + block * rows * 8;
  }
  template <typename Value>
  __device__ __forceinline__ void send_to(int block, int offset, Value value) const {
    send(address_in(shared_address(memory_) + offset, block), value,
         address_in(received_.address, block));
  }

  // The weights of the warps' partial results of a row, relative to the row maximum, which is
  // returned, and the sum.
  __device__ __forceinline__ float weigh(int row, float (&weight)[kWarps], float& sum) const {
    const float row_max = decode::combine_weights(
        kWarps, [&](int warp) { return partial_of(warp).row_max[row]; }, weight);
    sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += weight[warp] * partial_of(warp).sum[row];
    return row_max;
  }

  __device__ __forceinline__ void send_sums(int rows) const {
    for (int i = threadIdx.x; i < rows * blocks_; i += kWarps * 32) {
      const int row = by_blocks(i), to = i - row * blocks_;
      float weight[kWarps], sum;
      const float row_max = weigh(row, weight, sum);
      send_to(to, sums_from(rank_, rows) + row * 8, make_float2(row_max, sum));
    }
  }

  __device__ __forceinline__ void combine_warps(const AttentionRows<T>& part) const {
    for (int i = threadIdx.x; i < part.packed_rows * kQuads; i += kWarps * 32) {
      const int row = i / kQuads, column = i % kQuads * 4;
      float weight[kWarps], sum;
      float row_max = weigh(row, weight, sum);
      float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        const auto& more = *reinterpret_cast<const float4*>(&partial_of(warp).out[row][column]);
        out.x += weight[warp] * more.x, out.y += weight[warp] * more.y;
        out.z += weight[warp] * more.z, out.w += weight[warp] * more.w;
      }
      if (blocks_ > 1) {
        const int number = by_blocks(i);
        send_to(i - number * blocks_, quads_from(rank_) + number * 16, out);
        continue;
      }
      const long long index = part.index(row);
      part.p.add_sink(index, row_max, sum);
      const float scale = sum == 0 ? 0 : 1 / sum;
      part.p.store(index * D + column, out.x * scale, out.y * scale);
      part.p.store(index * D + column + 2, out.z * scale, out.w * scale);
      if (part.p.lse != nullptr && column == 0) part.p.lse[index] = log_sum_exp(row_max, sum);
    }
  }

  // Finishes the quads of this block, a thread for each of their floats.
  __device__ __forceinline__ void finish(const AttentionRows<T>& part, int quads) const {
    const int rows = part.packed_rows;
    const auto* outs = reinterpret_cast<const float*>(memory_ + quads_from(0));
    const auto* sums = reinterpret_cast<const float2*>(memory_ + sums_from(0, rows));
    for (int j = threadIdx.x; j < quads * 4; j += kWarps * 32) {
      const int i = j / 4 * blocks_ + rank_;
      const int row = i / kQuads, column = i % kQuads * 4 + j % 4;
      float weight[kMaxBlocks], sum = 0, out = 0;
      float row_max = decode::combine_weights(
          blocks_, [&](int block) { return sums[block * rows + row].x; }, weight);
#pragma unroll
      for (int block = 0; block < kMaxBlocks; ++block) {
        if (block >= blocks_) break;
        out += weight[block] * outs[block * share_ * 4 + j];
        sum += weight[block] * sums[block * rows + row].y;
      }
      const long long index = part.index(row);
      part.p.add_sink(index, row_max, sum);
      part.p.store(index * D + column, sum == 0 ? 0.0f : out / sum);
      if (part.p.lse != nullptr && column == 0) part.p.lse[index] = log_sum_exp(row_max, sum);
    }
  }

  unsigned char* memory_;
  Barrier received_;
  int blocks_, rank_, inverse_;
  int share_ = 0;  // quads that a block finishes, at most
};

// The work of block blockIdx.x of a cluster for KV head blockIdx.y of sequence blockIdx.z.
// history_is_visible: see Attention.
template <int D, int kWarps, Copy kCopy, bool kWindow, typename T>
__device__ __forceinline__ void attend(const AttentionParams<T>& p, const CUtensorMap& keys,
                                       const CUtensorMap& values, bool history_is_visible,
                                       unsigned char* memory) {
  using Here = SharedLayout<T, D, kWarps>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int blocks = gridDim.x, rank = blockIdx.x;
  const unsigned base = shared_address(memory);
  if (kCopy == Copy::boxes && threadIdx.x == 0) prefetch(keys), prefetch(values);
  const Ring<T, D, kCopy> ring(base + warp * Here::kRing,
                               base + Here::kBarriers + warp * kStages<D> * 8, lane);
  Combine<T, D, kWarps> combine(memory, base + Here::kBarriers + kWarps * kStages<D> * 8);
  if (lane == 0) fence_barrier_init();
  __syncwarp();
  if (blocks > 1) arrive_at_cluster();  // the wait is before the first send
  if (!history_is_visible) pdl_begin();

  const AttentionPart<T, kWindow> part(p, blockIdx.z, blockIdx.y);
  WarpTiles<T, kWindow> tiles(part, rank * kWarps + warp, blocks * kWarps, lane);
  if (part.packed_rows == 0) {  // all blocks of the cluster return here
    if (history_is_visible) pdl_begin();
    return;
  }
  const int old_tokens = history_is_visible ? part.first_visible - 1 : 0;
  const auto is_old = [&](int i) { return tiles.token(i) + kTokens<T> <= old_tokens; };
  const auto copy = [&](int i, int stage) { ring.copy(part, tiles, i, stage, keys, values); };
  if (history_is_visible) {
#pragma unroll
    for (int stage = 0; stage < kStages<D>; ++stage) {
      if (is_old(stage)) copy(stage, stage);
    }
    pdl_begin();
  }
#pragma unroll
  for (int stage = 0; stage < kStages<D>; ++stage) {
    if (!is_old(stage)) copy(stage, stage);
  }

  WarpRows<T, D, kTokens<T>, typename Ring<T, D, kCopy>::Layout, true> sums(
      0, 0, lane, p.score_scale(part.kv_head));
  sums.start(part, 0);
  const int visible[2] = {part.visible(lane / 4), part.visible(lane / 4 + 8)};
  const int first_seen[2] = {part.first_seen(lane / 4), part.first_seen(lane / 4 + 8)};
  const int min_visible = part.visible(0), begin = part.first_seen(0);
  const int max_first_seen = part.first_seen(kRows - 1);
  int stage = 0, parity = 0;
  for (int i = 0; i < tiles.count(); ++i) {
    const int token = tiles.token(i);
    ring.template wait<kWindow>(stage, parity, begin - token, part.tokens - token);
    const bool masked = token + kTokens<T> > min_visible || (kWindow && token < max_first_seen);
    sums.template add<kWindow>(ring.keys(stage), ring.values(stage), token, masked, visible,
                               first_seen);
    __syncwarp();
    copy(i + kStages<D>, stage);
    if (++stage == kStages<D>) stage = 0, parity ^= 1;
  }
  sums.finish(p.value_scale(part.kv_head));
  if (kCopy == Copy::chunks) wait_for_copies<0>();
  __syncwarp();  // the warp's partial result overwrites its tiles
  decode::store_part(sums, part.packed_rows, lane, combine.partial_of(warp));
  if (blocks > 1) wait_for_cluster();
  __syncthreads();
  combine.run(part);
}

#endif

}  // namespace nvllm::kernels::cuda::decode_sm90
