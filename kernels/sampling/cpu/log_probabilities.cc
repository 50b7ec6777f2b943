// Log-probabilities on the CPU.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"

namespace nvllm::kernels::cpu {
namespace {

// The sum of e^(logit - highest) over all logits that are not NaN.
float sum_of_powers(const float* logits, std::int64_t count, float highest) {
  const __m256 maximum = _mm256_set1_ps(highest);
  const auto powers = [&](__m256 x) {
    const __m256 equal = _mm256_cmp_ps(x, maximum, _CMP_EQ_OQ);
    const __m256 lower = _mm256_cmp_ps(x, maximum, _CMP_LT_OQ);
    const __m256 power = _mm256_and_ps(lower, exp8(_mm256_sub_ps(x, maximum)));
    return _mm256_blendv_ps(power, _mm256_set1_ps(1.0f), equal);
  };
  // In chains short enough for float32, then in double.
  constexpr std::int64_t kChain = 64 * kLanes;
  double sum = 0;
  std::int64_t i = 0;
  while (i + kLanes <= count) {
    __m256 part = _mm256_setzero_ps();
    for (const std::int64_t end = std::min(count, i + kChain); i + kLanes <= end; i += kLanes) {
      part = _mm256_add_ps(part, powers(load8(logits + i)));
    }
    sum += sum8(part);
  }
  if (i < count) {
    float rest[kLanes];
    std::fill_n(rest, kLanes, std::numeric_limits<float>::quiet_NaN());
    std::copy(logits + i, logits + count, rest);
    sum += sum8(powers(load8(rest)));
  }
  return static_cast<float>(sum);
}

// The best `count` of what it is offered, which it is best offered in order of ids.
class Best {
 public:
  explicit Best(std::int64_t count) : count_(count) {}

  // Others cannot get in; NaN: anything can.
  float minimum() const { return minimum_; }

  void offer(float logit, std::uint32_t id) {
    const std::uint64_t value = candidate(logit, id);
    if (size_ == count_) {
      if (value <= heap_[0]) return;
      std::pop_heap(heap_.begin(), heap_.begin() + size_, std::greater<>());
      --size_;
    }
    heap_[size_++] = value;
    std::push_heap(heap_.begin(), heap_.begin() + size_, std::greater<>());
    if (size_ == count_) minimum_ = score_of_candidate(heap_[0]);
  }

  // In order; afterwards it takes no more.
  void write(const RecordView& record) {
    std::sort(heap_.begin(), heap_.begin() + size_, std::greater<>());
    for (std::int64_t i = 0; i < count_; ++i) {
      record.set_alternative(i, i < size_ ? heap_[i] : 0);
    }
  }

 private:
  const std::int64_t count_;
  std::int64_t size_ = 0;
  float minimum_ = std::numeric_limits<float>::quiet_NaN();
  std::array<std::uint64_t, kMaxAlternatives> heap_;  // the worst first
};

void find_best(const float* logits, std::int64_t count, std::uint32_t first_id,
               const RecordView& record) {
  Best best(record.alternatives);
  std::int64_t i = 0;
  const auto offer = [&](std::int64_t at) {
    best.offer(plain_logit(logits[at]), first_id + static_cast<std::uint32_t>(at));
  };
  for (; i + kLanes <= count; i += kLanes) {
    // Not "greater", so that all pass while it is NaN.
    auto left = static_cast<unsigned>(_mm256_movemask_ps(
        _mm256_cmp_ps(load8(logits + i), _mm256_set1_ps(best.minimum()), _CMP_NLE_UQ)));
    for (; left != 0; left &= left - 1) offer(i + std::countr_zero(left));
  }
  for (; i < count; ++i) offer(i);
  best.write(record);
}

std::int32_t count_higher(const float* logits, std::int64_t count, float than) {
  const __m256 bound = _mm256_set1_ps(than);
  std::int32_t higher = 0;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    higher += std::popcount(static_cast<unsigned>(
        _mm256_movemask_ps(_mm256_cmp_ps(load8(logits + i), bound, _CMP_GT_OQ))));
  }
  for (; i < count; ++i) higher += logits[i] > than;
  return higher;
}

struct Tables : LogProbabilitiesView {
  using LogProbabilitiesView::LogProbabilitiesView;

  void summarize(std::int64_t row) const {
    const RecordView record{records + row * logprob_record_words(alternatives), alternatives};
    const float* logits = rows.logits + row * rows.stride;
    const float maximum = max_of(logits, rows.own);
    record.set(0, maximum);
    // Where nothing is above -infinity, NaN is its equal.
    record.set(1, maximum > kMinusInfinity ? sum_of_powers(logits, rows.own, maximum)
                                           : static_cast<float>(rows.own));
    const std::int64_t own = std::int64_t{tokens[row]} - rows.first_id;
    record.set(2, own >= 0 && own < rows.own ? plain_logit(logits[own])
                                             : std::numeric_limits<float>::quiet_NaN());
    if (alternatives > 0) find_best(logits, rows.own, rows.first_id, record);
  }

  void score(std::int64_t row) const {
    const RowRecords all{all_records, parts, rows.rows, row, alternatives};
    const float maximum = all.max_logit(), logit = all.token_logit();
    float sum = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const RecordView record = all.of(part);
      sum += record.sum() * std::exp(logit_distance(record.max_logit(), maximum));
    }
    const float log_sum = std::log(sum);
    logprob[row] = logit_distance(logit, maximum) - log_sum;
    higher[row] = count_higher(rows.logits + row * rows.stride, rows.own, logit);
    if (parts == 1) rank[row] = higher[row] + 1;
    combine_best(row, all, maximum, log_sum);
  }

  // Each part's alternatives are in order.
  void combine_best(std::int64_t row, const RowRecords& all, float maximum, float log_sum) const {
    std::array<std::uint64_t, kMaxAlternatives> best;
    std::int64_t size = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const RecordView record = all.of(part);
      for (std::int64_t i = 0; i < alternatives; ++i) {
        const std::uint64_t value = record.alternative(i);
        if (value == 0 || (size == alternatives && value <= best[size - 1])) break;
        if (size < alternatives) ++size;
        std::int64_t at = size - 1;
        for (; at > 0 && best[at - 1] < value; --at) best[at] = best[at - 1];
        best[at] = value;
      }
    }
    for (std::int64_t i = 0; i < alternatives; ++i) {
      const bool is_there = i < size;
      top_ids[row * alternatives + i] =
          is_there ? static_cast<std::int32_t>(id_of_candidate(best[i])) : -1;
      top_logprobs[row * alternatives + i] =
          is_there ? logit_distance(score_of_candidate(best[i]), maximum) - log_sum
                   : kMinusInfinity;
    }
  }

  void sum_ranks(std::int64_t row) const {
    std::int32_t sum = 1;
    for (std::int64_t part = 0; part < parts; ++part) sum += all_higher[part * rows.rows + row];
    rank[row] = sum;
  }
};

template <typename Work>
void submit(const LogProbabilities& args, Stream& stream, const Work& work) {
  const auto row_bytes = args.rows.own() * static_cast<std::int64_t>(sizeof(float));
  const auto job = [tables = Tables(args), work](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (wants_logprobs(tables.rows, row, tables.tokens[row])) work(tables, row);
    }
  };
  submit_rows(stream, args.rows.rows(), row_bytes, job);
}

}  // namespace

void summarize_logits(const LogProbabilities& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) { tables.summarize(row); });
}

void log_probabilities(const LogProbabilities& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) { tables.score(row); });
}

void rank_tokens(const LogProbabilities& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) { tables.sum_ranks(row); });
}

}  // namespace nvllm::kernels::cpu
