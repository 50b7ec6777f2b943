// Filtering on the CPU. Eight logits at a time it is found out which a round is about; only those are
// looked at one by one.
#include "kernels/cpu/filter_logits.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/highest.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector.h"
#include "kernels/filter_math.h"

namespace nvllm::kernels::cpu {
namespace {

// Calls take(logit) for those in [least, most].
template <typename Take>
void for_each_between(const float* logits, std::int64_t count, float least, float most,
                      const Take& take) {
  const __m256 low = _mm256_set1_ps(least), high = _mm256_set1_ps(most);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 logit = load8(logits + i);
    auto left = static_cast<unsigned>(_mm256_movemask_ps(_mm256_and_ps(
        _mm256_cmp_ps(logit, low, _CMP_GE_OQ), _mm256_cmp_ps(logit, high, _CMP_LE_OQ))));
    for (; left != 0; left &= left - 1) take(logits[i + std::countr_zero(left)]);
  }
  for (; i < count; ++i) {
    if (logits[i] >= least && logits[i] <= most) take(logits[i]);
  }
}

struct Tables {
  RowsView rows;
  std::uint32_t* maxima;
  const std::uint32_t* all_maxima;
  std::uint64_t* histograms;
  const std::uint64_t* all_histograms;
  FilterRow* state;
  float* thresholds;
  std::int64_t parts;

  explicit Tables(const FilterLogits& args)
      : rows(args.rows),
        maxima(args.maxima.as<std::uint32_t>()),
        all_maxima(args.all_maxima.as<std::uint32_t>()),
        histograms(args.histograms.as<std::uint64_t>()),
        all_histograms(args.all_histograms.as<std::uint64_t>()),
        state(args.state.as<FilterRow>()),
        thresholds(args.thresholds.as<float>()),
        parts(args.all_maxima.shape[0]) {}

  const SlotRules* rules_of(std::int64_t row) const {
    return rows.slots[row] < 0 ? nullptr : rows.rules + rows.slots[row];
  }

  // Sums over the parts.
  std::uint64_t in_bin(std::int64_t row, std::int64_t bin) const {
    std::uint64_t sum = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += all_histograms[(part * rows.rows + row) * kFilterBins + bin];
    }
    return sum;
  }

  void find_maximum(std::int64_t row) const {
    const SlotRules* rules = rules_of(row);
    maxima[row] = 0;
    if (rules == nullptr || !filters(*rules)) return;
    const float* logits = rows.judged(row, rules->flags);
    const float most = highest(logits, rows.own);
    // -infinity may also mean that there is nothing but NaN.
    const bool is_there = most > -std::numeric_limits<float>::infinity() ||
                          std::find(logits, logits + rows.own, most) != logits + rows.own;
    maxima[row] = is_there ? order_key(most) : 0;
  }

  void begin(std::int64_t row) const {
    const SlotRules* rules = rules_of(row);
    FilterRow begins;
    begins.threshold = kLowestKey;
    if (rules != nullptr) {
      std::uint32_t maximum = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        maximum = std::max(maximum, all_maxima[part * rows.rows + row]);
      }
      begins = begun(maximum, *rules);
    }
    state[row] = begins;
    thresholds[row] = value_of_key(begins.threshold);
  }

  void count(std::int64_t row, FilterKind kind, int round) const {
    const SlotRules* rules = rules_of(row);
    if (rules == nullptr || !takes_part(state[row], *rules, kind, round)) return;
    const FilterRow known = state[row];
    const int shift = filter_shift(round);
    const KeyRange keys = keys_of_round(known, round);
    const float* logits = rows.judged(row, rules->flags);
    std::uint64_t* bins = histograms + row * kFilterBins;
    const float least = value_of_key(keys.low), most = value_of_key(keys.high);
    const auto each = [&](const auto& amount) {
      for_each_between(logits, rows.own, least, most, [&](float logit) {
        const std::uint32_t key = order_key(logit);
        // The key between those of zero and what is below it has a zero as its value.
        if (keys.holds(key)) bins[key >> shift & filter_mask(round)] += amount(logit);
      });
    };
    if (kind == FilterKind::top_k) {
      each([](float) { return std::uint64_t{1}; });
    } else {
      each([&](float logit) { return mass_of(distance(logit, known.maximum, *rules)); });
    }
  }

  void choose(std::int64_t row, FilterKind kind, int round) const {
    const SlotRules* rules = rules_of(row);
    if (rules == nullptr || !takes_part(state[row], *rules, kind, round)) return;
    FilterRow known = state[row];
    if (round == 0) {
      std::uint64_t total = 0;
      for (std::int64_t bin = 0; bin < kFilterBins; ++bin) total += in_bin(row, bin);
      known.wanted = wanted_of(total, *rules, kind);
    }
    if (known.wanted != 0) {
      std::uint64_t above = 0;
      for (std::int64_t bin = kFilterBins; bin-- > 0;) {
        const std::uint64_t here = in_bin(row, bin);
        if (above + here >= known.wanted) {
          known = chosen(known, static_cast<std::uint32_t>(bin), above, round);
          break;
        }
        above += here;
      }
    }
    state[row] = known;
    thresholds[row] = value_of_key(known.threshold);
    std::fill_n(histograms + row * kFilterBins, kFilterBins, 0);
  }
};

template <typename Work>
void submit(const FilterLogits& args, Stream& stream, const Work& work) {
  const Tables tables(args);
  const auto row_bytes = args.rows.own() * static_cast<std::int64_t>(sizeof(float));
  submit_rows(stream, args.rows.rows(), row_bytes,
              [tables, work](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) work(tables, row);
              });
}

}  // namespace

void find_maximum(const FilterLogits& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) { tables.find_maximum(row); });
}

void begin_filter(const FilterLogits& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) { tables.begin(row); });
}

void count_round(const FilterLogits& args, FilterKind kind, int round, Stream& stream) {
  submit(args, stream,
         [kind, round](const Tables& tables, std::int64_t row) { tables.count(row, kind, round); });
}

void choose_round(const FilterLogits& args, FilterKind kind, int round, Stream& stream) {
  submit(args, stream, [kind, round](const Tables& tables, std::int64_t row) {
    tables.choose(row, kind, round);
  });
}

}  // namespace nvllm::kernels::cpu
