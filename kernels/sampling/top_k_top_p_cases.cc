// Top-k, top-p and min-p against their plain definition and against golden probabilities, on
// whichever backend is linked.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/testing/references.h"
#include "kernels/sampling/testing/sampling_case.h"
#include "testing/golden.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;
using testing::Placed;
using testing::PlacedCase;
using testing::SamplingCase;

constexpr std::int64_t kStateWords = sizeof(TruncationState) / sizeof(std::int32_t);

std::vector<float> reference_logits(SamplingCase c) {
  std::vector<float> thresholds(c.rows);
  std::vector<std::int32_t> maxima(c.rows), state(c.rows * kStateWords);
  std::vector<std::int64_t> histograms(c.rows * kTruncationBins);
  TopKTopP args;
  args.rows = c.here();
  args.maxima = TensorView(maxima.data(), DType::i32, {c.rows});
  args.all_maxima = TensorView(maxima.data(), DType::i32, {1, c.rows});
  args.histograms = TensorView(histograms.data(), DType::i64, {c.rows, kTruncationBins});
  args.all_histograms = TensorView(histograms.data(), DType::i64, {1, c.rows, kTruncationBins});
  args.state = TensorView(state.data(), DType::u8, {c.rows, sizeof(TruncationState)});
  args.thresholds = TensorView(thresholds.data(), DType::f32, {c.rows});
  top_k_top_p_reference(args);
  return thresholds;
}

// What one part of the vocabulary needs, beside what all share.
struct FilteredPart {
  PlacedCase placed;
  Placed<std::int32_t> state;
  Placed<float> thresholds;

  FilteredPart(Backend& backend, Stream& stream, const SamplingCase& c, std::int64_t shift)
      : placed(backend, stream, c, shift),
        state(backend, stream, std::vector<std::int32_t>(c.rows * kStateWords)),
        thresholds(backend, stream, std::vector<float>(c.rows, kNan)) {}
};

// Whole rows with what top-k and top-p need.
class WholeRows {
 public:
  WholeRows(Backend& backend, Stream& stream, const SamplingCase& c, std::int64_t shift = 0)
      : part_(backend, stream, c, shift),
        maxima_(backend, stream, std::vector<std::int32_t>(c.rows)),
        histograms_(backend, stream, std::vector<std::int64_t>(c.rows * kTruncationBins)) {}

  TopKTopP args() const {
    TopKTopP args;
    args.rows = part_.placed.args();
    const std::int64_t rows = args.rows.rows();
    args.maxima = maxima_.view({rows});
    args.all_maxima = maxima_.view({1, rows});
    args.histograms = histograms_.view({rows, kTruncationBins});
    args.all_histograms = histograms_.view({1, rows, kTruncationBins});
    args.state = TensorView(part_.state.data(), DType::u8, {rows, sizeof(TruncationState)});
    args.thresholds = part_.thresholds.view({rows});
    return args;
  }
  std::vector<float> thresholds() { return part_.thresholds.fetch(); }

 private:
  FilteredPart part_;
  Placed<std::int32_t> maxima_;
  Placed<std::int64_t> histograms_;
};

// The thresholds that parts ending at `cuts` find together; each part has its own copy of them.
std::vector<float> filter_in_parts(Backend& backend, const SamplingCase& c,
                                   const std::vector<std::int64_t>& cuts, std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  const auto parts = static_cast<std::int64_t>(cuts.size());
  const std::vector<std::int32_t> no_maxima(parts * c.rows);
  Placed<std::int32_t> maxima(backend, *stream, no_maxima);
  Placed<std::int32_t> gathered_maxima(backend, *stream, no_maxima);
  Placed<std::int64_t> histograms(backend, *stream,
                                  std::vector<std::int64_t>(parts * c.rows * kTruncationBins));
  Placed<std::int64_t> gathered(backend, *stream,
                                std::vector<std::int64_t>(parts * c.rows * kTruncationBins));
  std::vector<std::unique_ptr<FilteredPart>> there;
  std::vector<TopKTopP> calls;
  std::int64_t begin = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    there.push_back(
        std::make_unique<FilteredPart>(backend, *stream, c.part(begin, cuts[part]), shift));
    begin = cuts[part];
    TopKTopP args;
    args.rows = there.back()->placed.args();
    args.maxima = TensorView(maxima.data() + part * c.rows, DType::i32, {c.rows});
    args.all_maxima = (parts == 1 ? maxima : gathered_maxima).view({parts, c.rows});
    args.histograms = TensorView(histograms.data() + part * c.rows * kTruncationBins, DType::i64,
                                 {c.rows, kTruncationBins});
    args.all_histograms =
        (parts == 1 ? histograms : gathered).view({parts, c.rows, kTruncationBins});
    args.state =
        TensorView(there.back()->state.data(), DType::u8, {c.rows, sizeof(TruncationState)});
    args.thresholds = there.back()->thresholds.view({c.rows});
    calls.push_back(args);
  }
  for (const TopKTopP& args : calls) find_maximum(args, *stream);
  if (parts > 1) {
    backend.copy(gathered_maxima.data(), maxima.data(), parts * c.rows * sizeof(std::int32_t),
                 *stream);
    for (const TopKTopP& args : calls) begin_truncation(args, *stream);
  }
  for (const auto kind : {TruncationKind::top_k, TruncationKind::top_p}) {
    for (int round = 0; round < kTruncationRounds; ++round) {
      for (const TopKTopP& args : calls) count_truncation_round(args, kind, round, *stream);
      if (parts == 1) continue;
      backend.copy(gathered.data(), histograms.data(),
                   parts * c.rows * kTruncationBins * sizeof(std::int64_t), *stream);
      for (const TopKTopP& args : calls) choose_truncation_round(args, kind, round, *stream);
    }
  }
  CHECK(maxima.fetch() == no_maxima);
  const std::vector<std::int64_t> left = histograms.fetch();
  CHECK(std::all_of(left.begin(), left.end(), [](std::int64_t bin) { return bin == 0; }));
  const std::vector<float> thresholds = there.front()->thresholds.fetch();
  for (const auto& part : there) CHECK(part->thresholds.fetch() == thresholds);
  return thresholds;
}

// What top_k_top_p() makes of whole rows.
std::vector<float> filter_whole(Backend& backend, const SamplingCase& c, std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  WholeRows there(backend, *stream, c, shift);
  top_k_top_p(there.args(), *stream);
  return there.thresholds();
}

void set_filters(SlotParams& params, float temperature, int top_k, double top_p, float min_p) {
  params.inverse_temperature = temperature == 0 ? 0 : 1 / temperature;
  params.top_k = top_k;
  params.top_p = top_p >= 1 ? 0 : static_cast<std::uint32_t>(top_p * 0x1p32);
  params.has_min_p = min_p > 0;
  params.log_min_p = min_p > 0 ? std::log(min_p) : 0;
  params.flags = SlotParams::kTruncates;
}

// Slots with all sorts of top-k, top-p and min-p.
void set_random_filters(SamplingCase& c, unsigned seed) {
  std::mt19937 random(seed);
  for (SlotParams& params : c.params) {
    constexpr int kTopK[] = {0, 0, 1, 2, 20, 1000, 1 << 30};
    constexpr double kTopP[] = {1, 1, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.9999999};
    constexpr float kMinP[] = {0, 0, 0, 1e-20f, 0.001f, 0.05f, 0.3f, 1};
    constexpr float kTemperatures[] = {0, 0.01f, 0.3f, 0.6f, 1, 1, 2, 100};
    set_filters(params, kTemperatures[random() % 8], kTopK[random() % 7], kTopP[random() % 8],
                kMinP[random() % 8]);
    if (random() % 10 == 0) params.flags = 0;
  }
}

TEST_CASE("thresholds are those of the definition, for all shapes, parameters and parts") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][3] = {{1, 1, 0},    {70, 3, 0},    {50, 100, 1},
                                         {9, 1025, 3}, {40, 4000, 0}, {6, 9001, 0}};
  for (const auto& shape : kShapes) {
    const std::int64_t rows = shape[0], own = shape[1];
    CAPTURE(rows);
    CAPTURE(own);
    SamplingCase c(rows, own, rows, 3, shape[2]);
    set_random_filters(c, static_cast<unsigned>(own));
    if (rows > 5) c.slots[5] = -1;
    const std::vector<float> right = reference_logits(c);
    CHECK(filter_whole(*backend, c) == right);
    CHECK(filter_whole(*backend, c, 1) == right);
    CHECK(filter_in_parts(*backend, c, {own}) == right);
    CHECK(filter_in_parts(*backend, c, {own}, 1) == right);
    CHECK(filter_in_parts(*backend, c, {own / 3, own / 2, own / 2, own}) == right);
  }
}

// A boundary among few logits, among many, below all; more equals than a short list holds; a flat
// row.
TEST_CASE(
    "large vocabularies: few and many are kept, and more equals than a list of candidates holds") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kOwn = 40000;
  SamplingCase c(48, kOwn, 48, 21);
  set_random_filters(c, 4242);
  constexpr int kTopK[] = {20, 100, 127, 128, 5000, kOwn - 1};
  for (std::int64_t row = 0; row < c.rows; ++row) {
    SlotParams& params = c.params_of(row);
    if (row % 2 == 0) params.top_k = kTopK[row / 2 % 6];
    for (std::int64_t i = 0; i < c.own; ++i) {
      float& logit = c.at(row, i);
      if (row >= 12 && i % 4000 == row) logit += 25;
      if (row >= 24 && i < 3000) logit = 30;
      if (row >= 36) logit = std::round(logit);
    }
  }
  const std::vector<float> right = reference_logits(c);
  CHECK(filter_whole(*backend, c) == right);
  CHECK(filter_in_parts(*backend, c, {kOwn / 3, kOwn}) == right);
}

TEST_CASE("ties, zeros of both signs, one value everywhere: equals of the boundary are kept") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c(42, 600, 42, 8);
  set_random_filters(c, 77);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    for (std::int64_t i = 0; i < c.own; ++i) {
      float& logit = c.at(row, i);
      if (row < 15) logit = std::round(logit);
      if (row < 30 && std::fabs(logit) < 2) logit = i % 2 == 0 ? 0.0f : -0.0f;
      if (row >= 36) logit = row % 2 == 0 ? -0.0f : 3.5f;
    }
  }
  const std::vector<float> right = reference_logits(c);
  CHECK(filter_whole(*backend, c) == right);
  CHECK(filter_in_parts(*backend, c, {600}) == right);
  CHECK(filter_in_parts(*backend, c, {100, 600}) == right);
}

TEST_CASE("NaN and infinities leave a threshold that something reaches") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c(36, 300, 36, 9);
  set_random_filters(c, 5);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    for (std::int64_t i = 0; i < c.own; ++i) {
      const float kinds[] = {kNan, -kInfinity, kInfinity};
      if (row < 6) c.at(row, i) = kNan;
      if (row >= 6 && row < 12) c.at(row, i) = -kInfinity;
      if (row >= 12 && i % 5 == 0) c.at(row, i) = kinds[row % 3];
    }
  }
  const std::vector<float> right = reference_logits(c);
  CHECK(filter_whole(*backend, c) == right);
  CHECK(filter_in_parts(*backend, c, {300}) == right);
  CHECK(filter_in_parts(*backend, c, {100, 300}) == right);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    CAPTURE(row);
    int kept = 0, numbers = 0;
    for (std::int64_t i = 0; i < c.own; ++i) {
      numbers += !std::isnan(c.at(row, i));
      kept += c.at(row, i) >= right[row];
    }
    CHECK((kept > 0 || numbers == 0));
  }
}

// Rows of golden logits, a slot each.
SamplingCase golden_case(const nvllm::testing::GoldenTensor& logits) {
  SamplingCase c(logits.shape[0], logits.shape[1], logits.shape[0]);
  c.logits = logits.values;
  return c;
}

void set_filters(SlotParams& params, const nlohmann::json& entry) {
  set_filters(params, entry.at("temperature").get<float>(), entry.at("top_k").get<int>(),
              entry.at("top_p").get<double>(), entry.at("min_p").get<float>());
}

// Whether what is kept is what has a probability.
bool keeps(Backend& backend, const SamplingCase& c, const std::vector<float>& probabilities) {
  const std::vector<float> thresholds = filter_whole(backend, c);
  for (std::size_t i = 0; i < c.logits.size(); ++i) {
    const bool kept = c.logits[i] >= thresholds[i / c.own];
    if (kept != (probabilities[i] > 0)) return false;
  }
  return true;
}

TEST_CASE("golden: the same tokens are kept, with min_p right after the temperature") {
  BACKEND_OR_SKIP(backend);
  const auto golden = nvllm::testing::read_golden("tests/data/golden-layers/layers.safetensors");
  std::ifstream file("tests/data/golden-layers/layers.json");
  const nlohmann::json sampling = read_json(file).at("sampling");
  SamplingCase c = golden_case(golden.at("sampling.logits"));
  for (const auto& entry : sampling.at("cases")) {
    const auto key = entry.at("key").get<std::string>();
    CAPTURE(key);
    for (std::int64_t row = 0; row < c.rows; ++row) set_filters(c.params_of(row), entry);
    const bool min_p_first = entry.value("has_min_p_first", false);
    CHECK(keeps(*backend, c,
                golden.at(key + (min_p_first ? ".probs_min_p_first" : ".probs")).values));
  }
  for (std::int64_t row = 0; row < c.rows; ++row) {
    set_filters(c.params_of(row), sampling.at("per_row").at(row));
  }
  CHECK(keeps(*backend, c, golden.at("sampling.per_row.probs").values));

  SamplingCase ties = golden_case(golden.at("sampling.ties.logits"));
  set_filters(ties.params[0], 1, 5, 1, 0);
  CHECK(keeps(*backend, ties, golden.at("sampling.ties.probs").values));
}

TEST_CASE("top-k and top-p run in graphs, as often as one likes") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  SamplingCase c(4, 3000, 4, 2);
  for (SlotParams& params : c.params) set_filters(params, 0.8f, 50, 0.9, 0.01f);
  WholeRows there(*backend, *stream, c);
  const TopKTopP args = there.args();
  const auto graph = backend->capture(*stream, [&] { top_k_top_p(args, *stream); });
  for (int i = 0; i < 3; ++i) {
    graph->launch(*stream);
    CHECK(there.thresholds() == reference_logits(c));
  }
}

}  // namespace
}  // namespace nvllm::kernels
