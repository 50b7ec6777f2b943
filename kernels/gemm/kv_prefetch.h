// KvPrefetch: keys and values that attention reads soon. GEMMs that leave the memory idle while
// they end fetch some of them into the GPU's L2, so that attention, which is bound by the memory,
// has less to read from it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/kv_view.h"
#include "kernels/common/host_device.h"

namespace nvllm::kernels {

struct KvPrefetch {
  KvView kv;               // with its table; keys.data == nullptr: nothing is known
  TensorView kv_length;    // [sequences], int32: so many tokens of each are read
  std::int64_t share = 0;  // of the GEMMs that fetch for one attention each has its own share
};

// An Error that names `operation` and what is wrong.
void check_kv_prefetch(const KvPrefetch& prefetch, const char* operation);

// The pieces that one GEMM fetches: equally many of each sequence, which begin at another token in
// each. Attention reads sequences side by side: if all pieces began at the same token, all blocks
// would read from the L2 at one time, and the memory would be idle then.
struct KvPieces {
  static constexpr std::int64_t kMaxBytes = 12 << 20;   // of all pieces
  static constexpr std::int64_t kMaxPieceBytes = 4096;  // of one
  // Attention's blocks fetch the first tokens of sequences themselves, as soon as they can run.
  static constexpr int kFirstToken = 192;
  static constexpr int kTokensApart = 112;  // from one sequence's first piece to the next one's

  const char* keys = nullptr;
  const char* values = nullptr;
  const int* table = nullptr;
  const int* lengths = nullptr;
  long long block_bytes = 0;  // from one block to the next
  int table_width = 0, block_size = 1;
  int token_bytes = 0, tokens = 1;          // of a piece
  int sequences = 0, first = 0, count = 0;  // pieces of keys of a sequence: from which on, how many

  KvPieces() = default;
  // None if tokens are not whole lines one after the other. Takes a checked one.
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

  // Where piece i lies; nullptr: the sequence is too short to have it.
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
