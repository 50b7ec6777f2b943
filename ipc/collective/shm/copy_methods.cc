#include "ipc/collective/shm/copy_methods.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/cache_line.h"

namespace nvllm::ipc {
namespace {

constexpr std::size_t kWhole = std::size_t{1} << 40;  // unlimited
// With chunks of this size, two ranks' staging memory and a tensor of 1 MiB fit in a second-level
// cache of 2 MiB.
constexpr std::size_t kInCache = std::size_t{256} << 10;

constexpr CopyMethod kCopyMethods[CopyTrials::kMethods] = {
    {Stores::streamed, kWhole, false},       {Stores::streamed, kWhole, true},
    {Stores::claimed, kInCache, false},      {Stores::claimed, kInCache, true},
    {Stores::string, kInCache, false},       {Stores::string, kInCache, true},
    {Stores::claimed, kWhole, false},        {Stores::string, kWhole, false},
    {Stores::claimed, kInCache, true, true}, {Stores::string, kWhole, false, true},
};

// Sanitizers do not recognize these special stores.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSpecialStores = false;
#else
constexpr bool kSpecialStores = true;
#endif

void store_string(std::byte* to, const std::byte* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

// Copies whole cache lines; `to` is aligned to a line.
void store_streamed(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) {
    const auto* in = reinterpret_cast<const __m256i*>(from + at);
    auto* out = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
  }
}

void store_claimed(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kAhead = 16 * kCacheLine;
  constexpr std::size_t kBehind = 16 * kCacheLine;  // by then the stores have left the store buffer
  for (std::size_t at = 0; at < std::min(bytes, kAhead); at += kCacheLine) {
    prefetch_cache_line_for_write(to + at);
  }
  for (std::size_t at = 0; at < bytes; at += kCacheLine) {
    const auto* in = reinterpret_cast<const __m256i*>(from + at);
    auto* out = reinterpret_cast<__m256i*>(to + at);
    if (at + kAhead < bytes) prefetch_cache_line_for_write(to + at + kAhead);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    _mm256_store_si256(out, a);
    _mm256_store_si256(out + 1, b);
    if (at >= kBehind) demote_cache_line(to + at - kBehind);
  }
  for (std::size_t at = bytes - std::min(bytes, kBehind); at < bytes; at += kCacheLine)
    demote_cache_line(to + at);
}

}  // namespace

void copy_for_others(void* to, const void* from, std::size_t bytes, Stores stores) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  std::size_t done = 0;
  if (kSpecialStores && reinterpret_cast<std::uintptr_t>(to) % kCacheLine == 0) {
    done = bytes / kCacheLine * kCacheLine;
    switch (stores) {
      case Stores::streamed: store_streamed(target, source, done); break;
      case Stores::claimed: store_claimed(target, source, done); break;
      case Stores::string: store_string(target, source, done); break;
    }
  }
  if (done < bytes) std::memcpy(target + done, source + done, bytes - done);
}

void fetch_ahead(const void* from, std::size_t bytes) {
  const auto* line = static_cast<const char*>(from);
  for (std::size_t at = 0; at < bytes; at += kCacheLine) _mm_prefetch(line + at, _MM_HINT_T0);
}

void finish_copies() {
  _mm_sfence();
}

const CopyMethod& CopyTrials::method() const {
  return kCopyMethods[trying() ? trial() : chosen_];
}

bool CopyTrials::count(std::int64_t ns) {
  if (trying()) {
    float& shortest = min_ns_[trial()];
    const auto time = static_cast<float>(ns);
    shortest = calls_ % kTrials == 0 ? time : std::min(shortest, time);
    ++calls_;
    return !trying();
  }
  if (++calls_ == kCallsPerChoice) calls_ = 0;
  return false;
}

void CopyTrials::choose(const std::array<float, kMethods>& sums) {
  chosen_ = static_cast<std::size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
}

}  // namespace nvllm::ipc
