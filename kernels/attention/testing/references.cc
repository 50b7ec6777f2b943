#include "kernels/attention/testing/references.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "device/e4m3.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels {
namespace {

double element(const TensorView& tensor, std::int64_t at) {
  return with_element_type(tensor.dtype,
                           [&]<typename T>(T) { return double{to_float(tensor.as<T>()[at])}; });
}

// Attention of one head of one row.
template <typename T, typename Kv, typename Out>
void attend(const Attention& args, std::int64_t sequence, std::int64_t row, std::int64_t head,
            const std::vector<std::int32_t>& tokens) {
  const std::int64_t head_dim = args.q.shape[2];
  const std::int64_t heads = args.q.shape[1];
  const std::int64_t kv_head = (args.first_head + head) / args.group;
  const T* q = args.q.as<T>() + row * args.q.stride[0] + head * head_dim;
  std::vector<double> query(static_cast<std::size_t>(head_dim)), values(query.size());
  std::transform(q, q + head_dim, query.begin(), [](T x) { return double{to_float(x)}; });
  const auto offset_of = [&, &kv = args.kv](std::int64_t token) {
    return kv.offset(kv.block_of(sequence, token), token % kv.block_size(), kv_head);
  };
  const double of_keys = key_scale(args.kv_scales, kv_head);
  const double of_values = value_scale(args.kv_scales, kv_head);
  std::vector<double> weights(tokens.size());
  double row_max = -std::numeric_limits<double>::infinity();
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const Kv* k = args.kv.keys.as<Kv>() + offset_of(tokens[t]);
    double dot = 0;
    for (std::size_t i = 0; i < query.size(); ++i) dot += query[i] * to_float(k[i]);
    weights[t] = dot * of_keys * args.scale;
    row_max = std::max(row_max, weights[t]);
  }
  const double sink = args.sinks.data == nullptr ? -std::numeric_limits<double>::infinity()
                                                 : element(args.sinks, head);
  row_max = std::max(row_max, sink);
  if (std::isinf(row_max) && row_max < 0) row_max = 0;  // all weights are 0
  double sum = std::exp(sink - row_max);
  for (double& weight : weights) sum += weight = std::exp(weight - row_max);

  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const Kv* v = args.kv.values.as<Kv>() + offset_of(tokens[t]);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += weights[t] * to_float(v[i]);
  }
  Out* out = args.out.as<Out>() + (row * heads + head) * head_dim;
  for (std::size_t i = 0; i < values.size(); ++i) {
    out[i] = from_float<Out>(sum == 0 ? 0.0f : static_cast<float>(values[i] * of_values / sum));
  }
  if (args.lse.data != nullptr) {
    args.lse.as<float>()[row * heads + head] = static_cast<float>(row_max + std::log(sum));
  }
}

// Combines one head of one row.
void combine(const CombineAttention& args, std::int64_t head) {
  const std::int64_t head_dim = args.out.shape[2];
  double row_max = -std::numeric_limits<double>::infinity();
  for (int i = 0; i < args.count; ++i) {
    const double lse = args.parts[i].lse.as<float>()[head];
    if (std::isnan(lse) || lse > row_max) row_max = lse;
  }
  const double reference = std::isinf(row_max) && row_max < 0 ? 0 : row_max;
  std::array<double, kMaxAttentionParts> weight{};
  double sum = 0;
  for (int i = 0; i < args.count; ++i) {
    sum += weight[i] = std::exp(args.parts[i].lse.as<float>()[head] - reference);
  }
  for (std::int64_t d = head * head_dim; d < (head + 1) * head_dim; ++d) {
    double value = 0;
    for (int i = 0; i < args.count; ++i) {
      if (weight[i] != 0) value += weight[i] * element(args.parts[i].out, d);
    }
    with_element_type(args.out.dtype, [&]<typename T>(T) {
      args.out.as<T>()[d] = from_float<T>(sum == 0 ? 0.0f : static_cast<float>(value / sum));
    });
  }
  if (args.lse.data != nullptr) {
    args.lse.as<float>()[head] = static_cast<float>(reference + std::log(sum));
  }
}

}  // namespace

void attend_reference(const Attention& args, std::int64_t sequence, std::int64_t row,
                      std::int64_t head, const std::vector<std::int32_t>& tokens) {
  with_element_type(args.q.dtype, [&]<typename T>(T) {
    const auto with_cache_of = [&]<typename Kv>(Kv) {
      args.out.dtype == DType::f32 ? attend<T, Kv, float>(args, sequence, row, head, tokens)
                                   : attend<T, Kv, T>(args, sequence, row, head, tokens);
    };
    args.kv.keys.dtype == DType::u8 ? with_cache_of(E4m3{}) : with_cache_of(T{});
  });
}

void attention_reference(const Attention& args) {
  check_attention(args);
  const auto* query_start = args.query_start.as<std::int32_t>();
  for (std::int64_t s = 0; s < args.kv_length.shape[0]; ++s) {
    const std::int64_t begin = query_start[s], end = query_start[s + 1];
    const std::int64_t length = args.kv_length.as<std::int32_t>()[s];
    const std::int64_t visible = args.visible.data == nullptr ? length - (end - begin) + 1
                                                              : args.visible.as<std::int32_t>()[s];
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t seen = std::clamp<std::int64_t>(visible + row - begin, 0, length);
      const std::int64_t first =
          args.window == 0 ? 0
                           : std::clamp<std::int64_t>(visible + row - begin - args.window, 0, seen);
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(seen - first));
      std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(first));
      for (std::int64_t head = 0; head < args.q.shape[1]; ++head) {
        attend_reference(args, s, row, head, tokens);
      }
    }
  }
}

void combine_attention_reference(const CombineAttention& args) {
  check_combine_attention(args);
  const std::int64_t heads = args.out.shape[0] * args.out.shape[1];
  for (std::int64_t head = 0; head < heads; ++head) combine(args, head);
}

}  // namespace nvllm::kernels
