#include "launcher/hub/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nvllm::launcher {
namespace {

constexpr std::size_t kBlock = 64;
using State = std::array<std::uint32_t, 8>;

alignas(16) constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const char* bytes) {
  std::uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return __builtin_bswap32(word);
}

void add_block_portable(State& state, const char* block) {
  std::array<std::uint32_t, 64> words;
  for (std::size_t i = 0; i < 16; ++i) words[i] = big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + words[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                              ((e & f) ^ (~e & g)) + kRoundConstants[i] + words[i];
    const std::uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

#if defined(__x86_64__)

// The instructions keep the state in two vectors: a b e f and c d g h, from the highest word down.
__attribute__((target("sha,sse4.1"))) void add_blocks_sha(State& state, const char* block,
                                                          std::size_t count) {
  const auto word = [](std::uint32_t value) { return static_cast<int>(value); };
  __m128i abef = _mm_set_epi32(word(state[0]), word(state[1]), word(state[4]), word(state[5]));
  __m128i cdgh = _mm_set_epi32(word(state[2]), word(state[3]), word(state[6]), word(state[7]));
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  for (; count > 0; --count, block += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (int i = 0; i < 4; ++i) {
      const auto* const from = reinterpret_cast<const __m128i*>(block + 16 * i);
      words[i] = _mm_shuffle_epi8(_mm_loadu_si128(from), swap);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds each
      const auto* const constants =
          reinterpret_cast<const __m128i*>(kRoundConstants.data() + 4 * i);
      const __m128i sum = _mm_add_epi32(words[i & 3], _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      const __m128i last = words[(i + 3) & 3];
      const __m128i started = _mm_sha256msg1_epu32(words[i & 3], words[(i + 1) & 3]);
      const __m128i middle = _mm_alignr_epi8(last, words[(i + 2) & 3], 4);
      words[i & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(started, middle), last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::array<std::uint32_t, 4> high, low;
  _mm_store_si128(reinterpret_cast<__m128i*>(high.data()), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(low.data()), cdgh);
  state = {high[3], high[2], low[3], low[2], high[1], high[0], low[1], low[0]};
}

bool has_sha() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    return (b >> 29 & 1) != 0;
  }();
  return has;
}

#endif

}  // namespace

void Sha256::add_blocks(const char* block, std::size_t count) {
#if defined(__x86_64__)
  if (!portable_ && has_sha()) return add_blocks_sha(state_, block, count);
#endif
  for (; count > 0; --count, block += kBlock) add_block_portable(state_, block);
}

void Sha256::add(std::string_view bytes) {
  total_ += bytes.size();
  if (waiting_ > 0) {
    const std::size_t taken = std::min(kBlock - waiting_, bytes.size());
    std::memcpy(block_.data() + waiting_, bytes.data(), taken);
    waiting_ += taken;
    bytes.remove_prefix(taken);
    if (waiting_ < kBlock) return;
    add_blocks(block_.data(), 1);
  }
  add_blocks(bytes.data(), bytes.size() / kBlock);
  bytes.remove_prefix(bytes.size() / kBlock * kBlock);
  waiting_ = bytes.size();
  if (waiting_ > 0) std::memcpy(block_.data(), bytes.data(), waiting_);
}

std::string Sha256::finish() {
  const std::uint64_t bits = total_ * 8;
  std::string end(1, '\x80');
  while ((total_ + end.size()) % kBlock != kBlock - 8) end += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) end += static_cast<char>(bits >> shift & 0xff);
  add(end);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
  }
  return text;
}

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

}  // namespace nvllm::launcher
