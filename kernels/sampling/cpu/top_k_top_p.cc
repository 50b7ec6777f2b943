// Truncation by top-k, top-p and min-p on the CPU. Of eight logits at a time a comparison tells
// which are in the interval of a round; only those are counted one by one.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"

namespace nvllm::kernels::cpu {
namespace {

// The keys that a round is about, as logits. The key between those of zero and of what is below it
// has a zero as its value, so who is in the range of values is still to be asked for its key.
struct LogitRange {
  float minimum, maximum;
  explicit LogitRange(const KeyRange& keys)
      : minimum(value_of_key(keys.low)), maximum(value_of_key(keys.high)) {}

  unsigned holds8(__m256 logits) const {  // a bit for each
    return static_cast<unsigned>(_mm256_movemask_ps(
        _mm256_and_ps(_mm256_cmp_ps(logits, _mm256_set1_ps(minimum), _CMP_GE_OQ),
                      _mm256_cmp_ps(logits, _mm256_set1_ps(maximum), _CMP_LE_OQ))));
  }
};

// order_key() of eight numbers other than NaN.
__m256i keys8(__m256 logits) {
  const __m256i bits = _mm256_castps_si256(_mm256_add_ps(logits, _mm256_setzero_ps()));
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  return _mm256_xor_si256(bits, _mm256_or_si256(_mm256_srai_epi32(bits, 31), top));
}

// mass_of() of eight.
struct Masses8 {
  alignas(32) std::int32_t units[kLanes];
  alignas(32) std::int32_t shifts[kLanes];

  explicit Masses8(__m256 d) {
    d = _mm256_max_ps(d, _mm256_set1_ps(-60.0f));  // whose mass is 0 like that of all below -40
    const __m256 one_by_ln2 = _mm256_set1_ps(1.44269504f);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(d, one_by_ln2),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 r = _mm256_fmsub_ps(d, one_by_ln2, n);
    __m256 power = _mm256_set1_ps(0.000154614447f);
    for (const float factor :
         {0.00134004282f, 0.00961805668f, 0.0555032723f, 0.240226509f, 0.693147207f, 1.0f}) {
      power = _mm256_fmadd_ps(power, r, _mm256_set1_ps(factor));
    }
    const __m256i whole = _mm256_cvttps_epi32(_mm256_mul_ps(power, _mm256_set1_ps(0x1p24f)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(units), whole);
    _mm256_store_si256(reinterpret_cast<__m256i*>(shifts),
                       _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(kMassBits - 24)));
  }

  std::uint64_t operator[](int i) const {
    const auto mass = static_cast<std::uint64_t>(units[i]);
    if (shifts[i] >= 0) return mass << shifts[i];
    return shifts[i] > -64 ? mass >> -shifts[i] : 0;
  }
};

// A logit that at least k of the row reach; -infinity: none was found quickly. It is the k-th
// highest of the highest logits of parts of the row.
float reached_by(const float* logits, std::int64_t count, std::int64_t k) {
  constexpr std::int64_t kMaxParts = 512, kMinLength = 32;
  const std::int64_t parts = std::max<std::int64_t>(2 * k, 64), length = count / parts;
  if (parts > kMaxParts || length < kMinLength) return kMinusInfinity;
  std::array<float, kMaxParts> maximum;
  for (std::int64_t part = 0; part < parts; ++part) {
    maximum[part] = max_of(logits + part * length, length);
  }
  const auto wanted = maximum.begin() + (k - 1);
  std::nth_element(maximum.begin(), wanted, maximum.begin() + parts, std::greater<>());
  return *wanted;
}

struct Tables : TruncationView {
  using TruncationView::TruncationView;

  const SlotParams* params_of(std::int64_t row) const {
    return rows.slots[row] < 0 ? nullptr : rows.params + rows.slots[row];
  }

  // Sums over the parts.
  std::uint64_t in_bin(std::int64_t row, std::int64_t bin) const {
    std::uint64_t sum = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += all_histograms[(part * rows.rows + row) * kTruncationBins + bin];
    }
    return sum;
  }

  void find_maximum(std::int64_t row) const {
    const SlotParams* params = params_of(row);
    maxima[row] = 0;
    if (params == nullptr || !truncates(*params)) return;
    const float* logits = rows.sampled_logits(row, params->flags);
    const float maximum = max_of(logits, rows.own);
    // -infinity may also mean that there is nothing but NaN.
    const bool is_there = maximum > kMinusInfinity ||
                          std::find(logits, logits + rows.own, maximum) != logits + rows.own;
    maxima[row] = is_there ? order_key(maximum) : 0;
  }

  void begin(std::int64_t row) const {
    const SlotParams* params = params_of(row);
    TruncationState begins;
    begins.threshold = kLowestKey;
    if (params != nullptr) {
      std::uint32_t maximum = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        maximum = std::max(maximum, all_maxima[part * rows.rows + row]);
      }
      begins = initial_state(maximum, *params);
    }
    state[row] = begins;
    thresholds[row] = value_of_key(begins.threshold);
    maxima[row] = 0;
  }

  void count(std::int64_t row, TruncationKind kind, int round) const {
    const SlotParams* params = params_of(row);
    if (params == nullptr || !takes_part(state[row], *params, kind, round)) return;
    const TruncationState known = state[row];
    const KeyRange keys = keys_of_round(known, round);
    const float* logits = rows.sampled_logits(row, params->flags);
    unsigned long long* bins = histograms + row * kTruncationBins;
    if (kind == TruncationKind::top_p)
      return count_masses(logits, known, *params, keys, round, bins);
    LogitRange range(keys);
    // What is below a logit that k others reach is not the k-th highest, here or elsewhere.
    if (round == 0)
      range.minimum = std::max(range.minimum, reached_by(logits, rows.own, params->top_k));
    for_each_in(range, logits, [&](unsigned chosen, __m256 eight) {
      alignas(32) std::uint32_t key[kLanes];
      _mm256_store_si256(reinterpret_cast<__m256i*>(key), keys8(eight));
      for (; chosen != 0; chosen &= chosen - 1) {
        add(bins, keys, key[std::countr_zero(chosen)], round, 1);
      }
    });
  }

  void count_masses(const float* logits, const TruncationState& known, const SlotParams& params,
                    const KeyRange& keys, int round, unsigned long long* bins) const {
    const __m256 maximum = _mm256_set1_ps(known.maximum);
    const __m256 factor = _mm256_set1_ps(params.inverse_temperature);
    for_each_in(LogitRange(keys), logits, [&](unsigned chosen, __m256 eight) {
      alignas(32) std::uint32_t key[kLanes];
      _mm256_store_si256(reinterpret_cast<__m256i*>(key), keys8(eight));
      const Masses8 masses(_mm256_mul_ps(_mm256_sub_ps(eight, maximum), factor));
      for (; chosen != 0; chosen &= chosen - 1) {
        const int i = std::countr_zero(chosen);
        add(bins, keys, key[i], round, masses[i]);
      }
    });
  }

  static void add(unsigned long long* bins, const KeyRange& keys, std::uint32_t key, int round,
                  std::uint64_t amount) {
    if (keys.holds(key)) bins[key >> truncation_shift(round) & truncation_mask(round)] += amount;
  }

  // Calls take(a bit for each that is in the range, eight logits) where there is one.
  template <typename Take>
  void for_each_in(const LogitRange& range, const float* logits, const Take& take) const {
    for (std::int64_t i = 0; i < rows.own; i += kLanes) {
      const std::int64_t left = rows.own - i;
      const __m256 eight = left >= kLanes ? load8(logits + i) : load_some(logits + i, left);
      unsigned chosen = range.holds8(eight);
      if (left < kLanes) chosen &= (1u << left) - 1;
      if (chosen != 0) take(chosen, eight);
    }
  }

  void choose(std::int64_t row, TruncationKind kind, int round) const {
    const SlotParams* params = params_of(row);
    if (params == nullptr || !takes_part(state[row], *params, kind, round)) return;
    TruncationState known = state[row];
    if (round == 0) {
      std::uint64_t total = 0;
      for (std::int64_t bin = 0; bin < kTruncationBins; ++bin) total += in_bin(row, bin);
      known.wanted = wanted_of(total, *params, kind);
    }
    if (known.wanted != 0) {
      std::uint64_t above = 0;
      for (std::int64_t bin = kTruncationBins; bin-- > 0;) {
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
    std::fill_n(histograms + row * kTruncationBins, kTruncationBins, 0);
  }
};

template <typename Work>
void submit(const TopKTopP& args, Stream& stream, const Work& work) {
  const Tables tables(args);
  const auto row_bytes = args.rows.own() * static_cast<std::int64_t>(sizeof(float));
  submit_rows(stream, args.rows.rows(), row_bytes,
              [tables, work](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) work(tables, row);
              });
}

}  // namespace

void find_maximum(const TopKTopP& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) {
    tables.find_maximum(row);
    if (tables.parts == 1) tables.begin(row);
  });
}

void begin_truncation(const TopKTopP& args, Stream& stream) {
  submit(args, stream, [](const Tables& tables, std::int64_t row) { tables.begin(row); });
}

void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  submit(args, stream, [kind, round](const Tables& tables, std::int64_t row) {
    tables.count(row, kind, round);
    if (tables.parts == 1) tables.choose(row, kind, round);
  });
}

void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  submit(args, stream, [kind, round](const Tables& tables, std::int64_t row) {
    tables.choose(row, kind, round);
  });
}

}  // namespace nvllm::kernels::cpu
