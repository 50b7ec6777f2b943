// Page selection of Quest on the CPU. Bounds: a task for each page in which rows lie. Selection: a
// task for each sequence and KV head, which scores all pages and partially sorts them.
#include "kernels/sparse/page_selection.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/common/cpu/e4m3_vector.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr float kAlways = std::numeric_limits<float>::infinity();

// Eight keys, or bounds of keys.
template <typename T>
__m256 load_keys(const T* from) {
  if constexpr (std::is_same_v<T, E4m3>) {
    return load8_e4m3(from);
  } else {
    return load8(from);
  }
}
template <typename T>
void store_keys(T* to, __m256 keys) {
  if constexpr (std::is_same_v<T, E4m3>) {
    store8_e4m3(to, keys);
  } else {
    store8(to, keys);
  }
}

// Updates the nth of the pages in which a sequence's rows lie, if there are as many.
template <typename T>
void bound(const UpdatePageBounds& args, std::int64_t sequence, std::int64_t nth) {
  const auto* starts = args.query_start.as<std::int32_t>() + sequence;
  const std::int64_t end = args.kv_length.as<std::int32_t>()[sequence];
  const std::int64_t begin = std::max<std::int64_t>(0, end - (starts[1] - starts[0]));
  const std::int64_t first = (begin / args.page_tokens + nth) * args.page_tokens;
  if (first >= end || begin == end) return;

  const KvView& kv = args.kv;
  const std::int64_t count = std::min(args.page_tokens, end - first);
  const auto [number, block, inside] = args.locate(sequence, first);
  const std::int64_t head_dim = kv.head_dim();
  for (std::int64_t head = 0; head < kv.kv_heads(); ++head) {
    const T* keys = kv.keys.as<T>() + kv.offset(block, inside, head);
    T* min_key = args.bounds.as<T>() + (number * kv.kv_heads() + head) * 2 * head_dim;
    for (std::int64_t d = 0; d < head_dim; d += kLanes) {
      __m256 low = _mm256_set1_ps(kAlways), high = _mm256_set1_ps(-kAlways);
      for (std::int64_t t = 0; t < count; ++t) {
        const __m256 key = load_keys(keys + t * kv.keys.stride[1] + d);
        low = _mm256_min_ps(low, key);
        high = _mm256_max_ps(high, key);
      }
      store_keys(min_key + d, low);
      store_keys(min_key + head_dim + d, high);
    }
  }
}

// Key: the type of bounds.
template <typename T, typename Key>
class Selection {
 public:
  Selection(const PageSelection& args, std::int64_t sequence, std::int64_t kv_head)
      : args_(args), sequence_(sequence), kv_head_(kv_head) {}

  void run(std::vector<std::int32_t>& order) const {
    const std::int64_t kv_heads = args_.bounds.shape[1];
    const std::int64_t length = args_.kv_length.as<std::int32_t>()[sequence_];
    const std::int64_t pages = (length + args_.page_tokens - 1) / args_.page_tokens;
    const std::int64_t count = std::min(pages, args_.budget);
    const std::int64_t at = sequence_ * kv_heads + kv_head_;
    auto* kept = args_.pages.as<std::int32_t>() + at * args_.budget;
    args_.page_counts.as<std::int32_t>()[at] = static_cast<std::int32_t>(count);
    float* scores = args_.workspace.as<float>() + at * args_.max_pages();
    if (count < pages) {
      for (std::int64_t page = 1; page + 1 < pages; ++page) scores[page] = score(page);
      scores[0] = scores[pages - 1] = kAlways;
    }
    top_k(scores, pages, count, order, kept);
  }

 private:
  float score(std::int64_t page) const {
    const std::int64_t head_dim = args_.q.shape[2], kv_heads = args_.bounds.shape[1];
    const std::int64_t number = args_.bounds_of(sequence_, page) * kv_heads + kv_head_;
    const Key* min_key = args_.bounds.as<Key>() + number * 2 * head_dim;
    const std::int64_t from = std::max<std::int64_t>(0, kv_head_ * args_.group - args_.first_head);
    const std::int64_t to =
        std::min(args_.q.shape[1], (kv_head_ + 1) * args_.group - args_.first_head);
    float max_score = -kAlways;
    for (std::int64_t head = from; head < to; ++head) {
      const T* q = args_.q.as<T>() + sequence_ * args_.q.stride[0] + head * head_dim;
      __m256 sum = _mm256_setzero_ps();
      for (std::int64_t d = 0; d < head_dim; d += kLanes) {
        const __m256 value = load8(q + d);
        const __m256 low = _mm256_mul_ps(value, load_keys(min_key + d));
        const __m256 high = _mm256_mul_ps(value, load_keys(min_key + head_dim + d));
        sum = _mm256_add_ps(sum, _mm256_max_ps(low, high));
      }
      max_score = std::max(max_score, sum8(sum));
    }
    return max_score;
  }

  const PageSelection& args_;
  std::int64_t sequence_, kv_head_;
};

template <typename T, typename Key>
void choose(const PageSelection& args, std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> order;
  const std::int64_t kv_heads = args.bounds.shape[1];
  for (std::int64_t at = begin; at < end; ++at) {
    Selection<T, Key>(args, at / kv_heads, at % kv_heads).run(order);
  }
}

}  // namespace

void update_page_bounds(const UpdatePageBounds& args, Stream& stream) {
  const std::int64_t pages = args.max_pages();
  submit_tasks(stream, args.kv_length.shape[0] * pages,
               [args, pages](std::int64_t begin, std::int64_t end) {
                 with_key_type(args.kv.keys.dtype, [&]<typename T>(T) {
                   for (std::int64_t i = begin; i < end; ++i) bound<T>(args, i / pages, i % pages);
                 });
               });
}

void page_selection(const PageSelection& args, Stream& stream) {
  submit_tasks(stream, args.page_counts.elements(), [args](std::int64_t begin, std::int64_t end) {
    with_element_type(args.q.dtype, [&]<typename T>(T) {
      args.bounds.dtype == DType::u8 ? choose<T, E4m3>(args, begin, end)
                                     : choose<T, T>(args, begin, end);
    });
  });
}

}  // namespace nvllm::kernels::cpu
