// KvAhead: keys and values that attention reads soon. Products that leave the memory idle while they end fetch some of
// them into the GPU's L2, so that attention, which is bound by the memory, has less to read from it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/kv_view.h"
#include "kernels/common/host_device.h"

namespace nvllm::kernels {

struct KvAhead {
  KvView kv;              // with its table; keys.data == nullptr: nothing is known
  TensorView kv_length;   // [sequences], int32: so many tokens of each are read
  std::int64_t turn = 0;  // of those who fetch for one attention: each fetches others
};

// An Error that names `operation` and what is wrong.
void check_kv_ahead(const KvAhead& ahead, const char* operation);

// The pieces that one of them fetches: of each sequence as many as of any other, each from a place of its own on. Sequences
// are read side by side: were all at the same place, everybody would read from the L2 at one time, and the memory rest.
struct KvPieces {
  static constexpr std::int64_t kAllBytes = 12 << 20;  // at most
  static constexpr std::int64_t kMostBytes = 4096;     // of a piece
  // Attention's blocks ask for the first tokens of sequences themselves, as soon as there is room for them.
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
  // None if tokens are not whole lines one after the other. Of a checked one.
  explicit KvPieces(const KvAhead& ahead) {
    const TensorView& cache = ahead.kv.keys;
    if (cache.data == nullptr) return;
    const std::int64_t element = size_of(cache.dtype), step = cache.stride[0] * element;
    const std::int64_t bytes = cache.shape[2] * cache.shape[3] * element;
    const bool dense = cache.stride[1] * element == bytes && cache.stride[2] == cache.shape[3];
    if (!dense || bytes == 0 || bytes > kMostBytes || bytes % 16 != 0 || step % 16 != 0) return;
    if (!cache.aligned(16) || !ahead.kv.values.aligned(16)) return;
    keys = cache.as<char>(), values = ahead.kv.values.as<char>();
    table = ahead.kv.block_table.as<int>(), lengths = ahead.kv_length.as<int>();
    block_bytes = step;
    table_width = table == nullptr ? 0 : static_cast<int>(ahead.kv.block_table.shape[1]);
    block_size = static_cast<int>(cache.shape[1]);
    token_bytes = static_cast<int>(bytes);
    const auto fits = [&](int many) {
      return bytes * many <= kMostBytes && block_size % many == 0 && kFirstToken % many == 0;
    };
    while (fits(2 * tokens)) tokens *= 2;
    sequences = static_cast<int>(ahead.kv_length.shape[0]);
    if (sequences == 0) return;
    count = static_cast<int>(kAllBytes / (2 * piece_bytes() * sequences));
    first = static_cast<int>(ahead.turn) * count;
  }

  NVLLM_HOST_DEVICE int pieces() const { return 2 * count * sequences; }
  NVLLM_HOST_DEVICE int piece_bytes() const { return tokens * token_bytes; }

  // Where piece i lies; nullptr: the sequence is too short to have it.
  NVLLM_HOST_DEVICE const char* piece(int i) const {
    const char* const cache = i % 2 == 0 ? keys : values;
    const int sequence = i / 2 % sequences, number = first + i / 2 / sequences;
    const int room = (lengths[sequence] - kFirstToken) / tokens;
    if (number >= room) return nullptr;
    const int token = kFirstToken + (sequence * (kTokensApart / tokens) + number) % room * tokens;
    const int within = token % block_size;
    long long block = sequence;
    if (table != nullptr)
      block = table[static_cast<long long>(sequence) * table_width + token / block_size];
    return cache + block * block_bytes + static_cast<long long>(within) * token_bytes;
  }
};

}  // namespace nvllm::kernels
