// KvPrefetch: keys and values that attention reads soon. GEMMs that leave the memory idle as they
// end prefetch some of them into the GPU's L2, so that attention, which is memory-bound, reads less
// from memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/attention/kv_view.h"
#include "kernels/common/host_device.h"

namespace nvllm::kernels {

struct KvPrefetch {
  KvView kv;               // with its table; keys.data == nullptr: unknown
  TensorView kv_length;    // [sequences], int32: tokens of each that are read
  std::int64_t share = 0;  // index of this GEMM's share among those that prefetch for one attention
};

// Throws an Error that names `operation` and what is wrong.
inline void check_kv_prefetch(const KvPrefetch& prefetch, const char* operation) {
  check_kv_view(prefetch.kv, operation);
  const TensorView& lengths = prefetch.kv_length;
  const bool listed = lengths.data != nullptr && lengths.rank == 1 && lengths.dtype == DType::i32;
  if (!listed) {
    fail(operation, ": kv_length of the KV prefetch is ", lengths.describe(),
         "; it must be int32 [sequences]");
  }
  require_contiguous(lengths, operation, "kv_length");
  const TensorView& table = prefetch.kv.block_table;
  const std::int64_t known = table.data == nullptr ? prefetch.kv.blocks() : table.shape[0];
  if (lengths.shape[0] > known) {
    fail(operation, ": kv_length of the KV prefetch is ", lengths.describe(), ", but there are ",
         known, table.data == nullptr ? " blocks" : " rows of block_table");
  }
  if (prefetch.share < 0)
    fail(operation, ": share is ", prefetch.share, "; it must not be negative");
}

// The pieces that one GEMM prefetches: equally many of each sequence, starting at a different token
// in each. Attention reads sequences in parallel: if all pieces began at the same token, all blocks
// would read from the L2 at the same time, with the memory idle.
struct KvPieces {
  static constexpr std::int64_t kMaxBytes = 12 << 20;   // of all pieces
  static constexpr std::int64_t kMaxPieceBytes = 4096;  // of one
  // Attention's blocks request the first tokens of sequences themselves as soon as they start.
  static constexpr int kFirstToken = 192;
  static constexpr int kTokensApart = 112;  // between the first pieces of consecutive sequences

  const char* keys = nullptr;
  const char* values = nullptr;
  const int* table = nullptr;
  const int* lengths = nullptr;
  long long block_bytes = 0;  // block stride
  int table_width = 0, block_size = 1;
  int token_bytes = 0, tokens = 1;          // of a piece
  int sequences = 0, first = 0, count = 0;  // key pieces per sequence: from `first` on

  KvPieces() = default;
  // Empty if tokens are not whole, contiguous lines. Takes a checked KvPrefetch.
  explicit KvPieces(const KvPrefetch& prefetch) {
    const TensorView& cache = prefetch.kv.keys;
    if (cache.data == nullptr) return;
    const std::int64_t element = size_of(cache.dtype), step = cache.stride[0] * element;
    const std::int64_t bytes = cache.shape[2] * cache.shape[3] * element;
    const bool dense = cache.stride[1] * element == bytes && cache.stride[2] == cache.shape[3];
    if (!dense || bytes == 0 || bytes > kMaxPieceBytes || bytes % 16 != 0 || step % 16 != 0) return;
    if (!cache.aligned(16) || !prefetch.kv.values.aligned(16)) return;
    keys = cache.as<char>(), values = prefetch.kv.values.as<char>();
    table = prefetch.kv.block_table.as<int>(), lengths = prefetch.kv_length.as<int>();
    block_bytes = step;
    table_width = table == nullptr ? 0 : static_cast<int>(prefetch.kv.block_table.shape[1]);
    block_size = static_cast<int>(cache.shape[1]);
    token_bytes = static_cast<int>(bytes);
    const auto fits = [&](int many) {
      return bytes * many <= kMaxPieceBytes && block_size % many == 0 && kFirstToken % many == 0;
    };
    while (fits(2 * tokens)) tokens *= 2;
    sequences = static_cast<int>(prefetch.kv_length.shape[0]);
    if (sequences == 0) return;
    count = static_cast<int>(kMaxBytes / (2 * piece_bytes() * sequences));
    first = static_cast<int>(prefetch.share) * count;
  }

  NVLLM_HOST_DEVICE int pieces() const { return 2 * count * sequences; }
  NVLLM_HOST_DEVICE int piece_bytes() const { return tokens * token_bytes; }

  // The address of piece i; nullptr: the sequence is too short.
  NVLLM_HOST_DEVICE const char* piece(int i) const {
    const char* const cache = i % 2 == 0 ? keys : values;
    const int sequence = i / 2 % sequences, number = first + i / 2 / sequences;
    const int pieces_of_sequence = (lengths[sequence] - kFirstToken) / tokens;
    if (number >= pieces_of_sequence) return nullptr;
    const int token =
        kFirstToken + (sequence * (kTokensApart / tokens) + number) % pieces_of_sequence * tokens;
    const int within = token % block_size;
    long long block = sequence;
    if (table != nullptr)
      block = table[static_cast<long long>(sequence) * table_width + token / block_size];
    return cache + block * block_bytes + static_cast<long long>(within) * token_bytes;
  }
};

}  // namespace nvllm::kernels
