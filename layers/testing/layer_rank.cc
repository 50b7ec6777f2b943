#include "layers/testing/layer_rank.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"

namespace nvllm::layers {
namespace {

constexpr std::size_t kScratchBytes = 4 << 20;

template <typename T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(from_float<T>(value));
  return result;
}

float element(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(data)[i];
    case DType::bf16: return to_float(static_cast<const Bf16*>(data)[i]);
    case DType::f16: return to_float(static_cast<const F16*>(data)[i]);
    default: fail("no float: ", name_of(dtype));
  }
}

// The unit roundoff: half the relative distance of adjacent values.
float rounding_of(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24f : dtype == DType::bf16 ? 0x1p-8f : 0x1p-11f;
}

// The deterministic values of a named tensor.
class Noise {
 public:
  Noise(const std::string& name, float width, float center)
      : key_(std::hash<std::string>()(name)), width_(width), center_(center) {}

  float at(std::int64_t i) const {  // SplitMix64
    std::uint64_t bits = key_ + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    bits ^= bits >> 31;
    return center_ + width_ * static_cast<float>(static_cast<std::int64_t>(bits)) * 0x1p-63f;
  }

 private:
  std::uint64_t key_;
  float width_, center_;
};

// The values of the weight `tensor`.
Noise weights_of(const std::string& tensor, const std::vector<std::int64_t>& shape) {
  if (tensor.find("zero") != std::string::npos) return Noise(tensor, 0, 0);
  if (tensor.find("norm") != std::string::npos) return Noise(tensor, 0.3f, 1);
  if (shape.size() == 1) return Noise(tensor, 1, 0);
  if (tensor.find("embed") != std::string::npos) return Noise(tensor, 1.7f, 0);
  return Noise(tensor, std::sqrt(3.0f / static_cast<float>(shape[1])), 0);
}

}  // namespace

float noise(const std::string& name, std::int64_t i, float width) {
  return Noise(name, width, 0).at(i);
}

LayerRank::LayerRank(testing::DeviceRank& rank)
    : rank_(rank),
      gemm_(kernels::create_gemm(*rank.backend)),
      scratch_memory_(rank.backend->allocate(MemoryKind::device, kScratchBytes, "scratch")),
      scratch_(scratch_memory_.data(), kScratchBytes) {}

Shard LayerRank::shard() const {
  return {rank_.member.rank(), rank_.member.size()};
}

void LayerRank::bind_all(const std::vector<Parameter*>& parameters, DType model_dtype) {
  for (Parameter* parameter : parameters) {
    const DType dtype = parameter->fixed_type.value_or(model_dtype);
    const bool matrix = parameter->shape.size() == 2;
    const std::int64_t columns = matrix ? parameter->shape[1] : 1;
    std::vector<float> values(parameter->elements(), std::numeric_limits<float>::quiet_NaN());
    std::int64_t overlaps = 0;  // of slices
    for (const Slice& slice : parameter->slices) {
      const Noise weights = weights_of(slice.tensor, slice.shape);
      const std::int64_t whole_columns = matrix ? slice.shape[1] : 1;
      REQUIRE(slice.columns.size() == columns);
      for (std::int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
        float* to = values.data() + (slice.to_row + row - slice.rows.begin) * columns;
        for (std::int64_t column = slice.columns.begin; column < slice.columns.end; ++column) {
          overlaps += !std::isnan(*to);
          *to++ = weights.at(row * whole_columns + column);
        }
      }
    }
    REQUIRE(overlaps == 0);
    REQUIRE(std::none_of(values.begin(), values.end(), [](float x) { return std::isnan(x); }));
    parameter->view = tensor(values, dtype, parameter->shape[0], columns);
    if (!matrix) parameter->view = TensorView(parameter->view.data, dtype, {parameter->shape[0]});
  }
}

TensorView LayerRank::placed(const void* data, DType dtype, std::int64_t rows,
                             std::int64_t columns) {
  const std::size_t bytes = static_cast<std::size_t>(rows * columns) * size_of(dtype);
  memory_.push_back(
      backend().allocate(MemoryKind::device, std::max<std::size_t>(bytes, 1), "test"));
  backend().copy(memory_.back().data(), data, bytes, stream());
  stream().synchronize();
  return TensorView(memory_.back().data(), dtype, {rows, columns});
}

TensorView LayerRank::tensor(const std::vector<float>& values, DType dtype, std::int64_t rows,
                             std::int64_t columns) {
  if (dtype == DType::f32) return placed(values.data(), dtype, rows, columns);
  if (dtype == DType::f16) return placed(rounded<F16>(values).data(), dtype, rows, columns);
  return placed(rounded<Bf16>(values).data(), dtype, rows, columns);
}

TensorView LayerRank::empty(DType dtype, std::int64_t rows, std::int64_t columns) {
  return tensor(std::vector<float>(rows * columns, -777), dtype, rows, columns);
}

TensorView LayerRank::noise_tensor(const std::string& name, DType dtype, std::int64_t rows,
                                   std::int64_t columns) {
  std::vector<float> values(rows * columns);
  const Noise noise(name, 1.7f, 0);  // of variance 1
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = noise.at(static_cast<std::int64_t>(i));
  return tensor(values, dtype, rows, columns);
}

TensorView LayerRank::ids(const std::vector<std::int32_t>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return TensorView(placed(values.data(), DType::i32, 1, count).data, DType::i32, {count});
}

std::vector<float> LayerRank::values(TensorView tensor) {
  const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  if (rows * columns == 0) return {};
  const std::size_t bytes =
      static_cast<std::size_t>((rows - 1) * tensor.stride[0] + columns) * size_of(tensor.dtype);
  const Buffer here = backend().allocate(MemoryKind::pinned, bytes, "test");
  backend().copy(here.data(), tensor.data, bytes, stream());
  rank_.wait();
  std::vector<float> result;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      result.push_back(element(here.data(), tensor.dtype, row * tensor.stride[0] + column));
    }
  }
  return result;
}

void on_groups(const std::function<void(LayerRank&)>& body) {
  RANKS_OR_SKIP(2);
  for (const int ranks : {2, 3, 4}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [&](testing::DeviceRank& rank) {
      LayerRank layer_rank(rank);
      body(layer_rank);
    });
  }
}

std::string difference(const std::vector<float>& got, const std::vector<float>& expected,
                       std::int64_t columns, Range range, DType dtype, const Tolerance& tolerance) {
  const std::int64_t rows = columns == 0 ? 0 : static_cast<std::int64_t>(expected.size()) / columns;
  if (static_cast<std::int64_t>(got.size()) != rows * range.size()) {
    return str(got.size(), " values, not ", rows, " x ", range.size());
  }
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  const float allowed = largest * (static_cast<float>(tolerance.roundings) * rounding_of(dtype) +
                                   static_cast<float>(tolerance.length) * 0x1p-24f);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < range.size(); ++column) {
      const float value = got[row * range.size() + column];
      const float right = expected[row * columns + range.begin + column];
      if (std::fabs(value - right) <= allowed) continue;
      return str("row ", row, " column ", range.begin + column, ": ", value, " is not ", right,
                 " by more than ", allowed, " (", name_of(dtype), ")");
    }
  }
  return {};
}

std::string difference(const std::vector<float>& got, const std::vector<float>& expected,
                       DType dtype, const Tolerance& tolerance) {
  const auto count = static_cast<std::int64_t>(expected.size());
  return difference(got, expected, count, {0, count}, dtype, tolerance);
}

}  // namespace nvllm::layers
