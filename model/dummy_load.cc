#include <xxhash.h>

#include <cmath>
#include <string_view>

#include "base/clock.h"
#include "kernels/pointwise/random_fill.h"
#include "model/loader.h"

namespace nvllm::model {
namespace {

using layers::Parameter;
using layers::Slice;

// The values are a function of the tensor's name and the element's place in it.
void fill_slice(const Parameter& parameter, const Slice& slice, float width, std::uint64_t seed,
                Stream& stream) {
  const bool matrix = slice.shape.size() == 2;
  const std::string_view name = slice.tensor;
  const std::int64_t columns = matrix ? slice.columns.size() : slice.rows.size();
  const std::int64_t rows = matrix ? slice.rows.size() : 1;
  if (rows == 0 || columns == 0) return;
  const std::int64_t first = slice.to_row * (matrix ? columns : 1);
  std::byte* const to = parameter.view.as<std::byte>() + first * size_of(parameter.view.dtype);
  kernels::RandomFill fill;
  fill.out = TensorView(to, parameter.view.dtype, {rows, columns});
  fill.seed = XXH3_64bits_withSeed(name.data(), name.size(), seed);
  fill.first_row = matrix ? slice.rows.begin : 0;
  fill.first_column = matrix ? slice.columns.begin : slice.rows.begin;
  fill.whole_columns = slice.shape.back();
  fill.center = name.ends_with("norm.weight") ? 1.0f : 0.0f;
  fill.width = width;
  kernels::random_fill(fill, stream);
}

}  // namespace

LoadReport load_dummy(std::span<Parameter* const> parameters, Backend& backend,
                      float standard_deviation, std::uint64_t seed,
                      const std::function<void(const LoadProgress&)>& progress) {
  const std::int64_t start = now_ns();
  LoadReport report;
  std::uint64_t total = 0;
  for (const Parameter* parameter : parameters) total += parameter->view.bytes();
  const float width = std::sqrt(3.0f) * standard_deviation;  // of an even distribution
  const auto stream = backend.create_stream();
  for (const Parameter* parameter : parameters) {
    for (const Slice& slice : parameter->slices) {
      fill_slice(*parameter, slice, width, seed, *stream);
    }
    report.bytes_loaded += parameter->view.bytes();
    if (progress) {
      stream->synchronize();
      progress({.bytes = report.bytes_loaded, .total = total});
    }
  }
  stream->synchronize();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace nvllm::model
