// Page selection of Quest on the CPU. Bounds: a task for each page in which rows lie. Selection: a
// task for each sequence and KV head, which scores all pages and partially sorts them. Launchers:
// update_page_bounds() and page_selection(), at the end.
#include "kernels/sparse/page_selection.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr float kAlways = std::numeric_limits<float>::infinity();

std::int64_t block_of(const TensorView& table, std::int64_t sequence, std::int64_t index) {
  if (table.data == nullptr) return sequence;
  return table.as<std::int32_t>()[sequence * table.shape[1] + index];
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
  const auto& stride = kv.keys.stride;
  const std::int64_t count = std::min(args.page_tokens, end - first);
  const std::int64_t index = first / kv.block_size(), inside = first % kv.block_size();
  const std::int64_t table_block = block_of(kv.block_table, sequence, index);
  const std::int64_t block =
      args.block_map.data == nullptr ? table_block : args.block_map.as<std::int32_t>()[table_block];
  const std::int64_t number = (table_block * kv.block_size() + inside) / args.page_tokens;
  const std::int64_t head_dim = kv.head_dim();
  for (std::int64_t head = 0; head < kv.kv_heads(); ++head) {
    const T* keys = kv.keys.as<T>() + block * stride[0] + inside * stride[1] + head * stride[2];
    T* min_key = args.bounds.as<T>() + (number * kv.kv_heads() + head) * 2 * head_dim;
    for (std::int64_t d = 0; d < head_dim; d += kLanes) {
      __m256 low = _mm256_set1_ps(kAlways), high = _mm256_set1_ps(-kAlways);
      for (std::int64_t t = 0; t < count; ++t) {
        const __m256 key = load8(keys + t * stride[1] + d);
        low = _mm256_min_ps(low, key);
        high = _mm256_max_ps(high, key);
      }
      store8(min_key + d, low);
      store8(min_key + head_dim + d, high);
    }
  }
}

template <typename T>
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
    order.resize(pages);
    for (std::int64_t page = 0; page < pages; ++page) order[page] = static_cast<std::int32_t>(page);
    if (count < pages) {
      float* scores = args_.workspace.as<float>() + at * args_.max_pages();
      for (std::int64_t page = 1; page + 1 < pages; ++page) scores[page] = score(page);
      scores[0] = scores[pages - 1] = kAlways;
      std::nth_element(order.begin(), order.begin() + (count - 1), order.end(),
                       [&](std::int32_t a, std::int32_t b) {
                         return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                       });
      std::sort(order.begin(), order.begin() + count);
    }
    std::copy_n(order.begin(), count, kept);
  }

 private:
  const T* bounds(std::int64_t page) const {
    const std::int64_t first = page * args_.page_tokens, size = args_.block_size;
    const auto* table = args_.block_table.as<std::int32_t>();
    const std::int64_t block =
        table == nullptr ? sequence_ : table[sequence_ * args_.block_table.shape[1] + first / size];
    const std::int64_t table_block = (block * size + first % size) / args_.page_tokens;
    return args_.bounds.as<T>() +
           (table_block * args_.bounds.shape[1] + kv_head_) * 2 * args_.bounds.shape[3];
  }

  float score(std::int64_t page) const {
    const T* min_key = bounds(page);
    const std::int64_t head_dim = args_.q.shape[2];
    const std::int64_t from = std::max<std::int64_t>(0, kv_head_ * args_.group - args_.first_head);
    const std::int64_t to =
        std::min(args_.q.shape[1], (kv_head_ + 1) * args_.group - args_.first_head);
    float max_score = -kAlways;
    for (std::int64_t head = from; head < to; ++head) {
      const T* q = args_.q.as<T>() + sequence_ * args_.q.stride[0] + head * head_dim;
      __m256 sum = _mm256_setzero_ps();
      for (std::int64_t d = 0; d < head_dim; d += kLanes) {
        const __m256 value = load8(q + d);
        sum =
            _mm256_add_ps(sum, _mm256_max_ps(_mm256_mul_ps(value, load8(min_key + d)),
                                             _mm256_mul_ps(value, load8(min_key + head_dim + d))));
      }
      max_score = std::max(max_score, sum8(sum));
    }
    return max_score;
  }

  const PageSelection& args_;
  std::int64_t sequence_, kv_head_;
};

template <typename T>
void choose(const PageSelection& args, std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> order;
  const std::int64_t kv_heads = args.bounds.shape[1];
  for (std::int64_t at = begin; at < end; ++at) {
    Selection<T>(args, at / kv_heads, at % kv_heads).run(order);
  }
}

}  // namespace

void update_page_bounds(const UpdatePageBounds& args, Stream& stream) {
  nvllm::cpu::Stream& queue = nvllm::cpu::stream(stream);
  queue.submit([args, &pool = queue.thread_pool()] {
    const std::int64_t pages = args.max_pages();
    pool.run(args.kv_length.shape[0] * pages, [&](std::int64_t begin, std::int64_t end) {
      with_element_type(args.kv.keys.dtype, [&]<typename T>(T) {
        for (std::int64_t at = begin; at < end; ++at) bound<T>(args, at / pages, at % pages);
      });
    });
  });
}

void page_selection(const PageSelection& args, Stream& stream) {
  nvllm::cpu::Stream& queue = nvllm::cpu::stream(stream);
  queue.submit([args, &pool = queue.thread_pool()] {
    const std::int64_t tasks = args.page_counts.elements();
    pool.run(tasks, [&](std::int64_t begin, std::int64_t end) {
      with_element_type(args.q.dtype, [&]<typename T>(T) { choose<T>(args, begin, end); });
    });
  });
}

}  // namespace nvllm::kernels::cpu
