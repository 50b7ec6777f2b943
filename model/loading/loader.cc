#include "model/loading/loader.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "base/clock.h"
#include "device/topology.h"
#include "kernels/pointwise/random_fill.h"
#include "model/loading/load_plan.h"

namespace nvllm::model {
namespace {

using layers::Parameter;
using layers::Slice;

// Pieces this large keep the link to a GPU busy, and those of all threads stay in the processor's
// cache between being read and being copied (NVIDIA H200: 45 GB/s; 40 with 8 MiB, 25 with 16).
constexpr std::size_t kStagingBytes = 2 << 20;
constexpr int kStagingThreads = 8;   // saturate the link to a GPU
constexpr int kPackingThreads = 16;  // do so with weights that are repacked meanwhile

// Pieces that are read in place are small, so that all cores finish together, but larger than a
// huge page, which two threads might otherwise both clear.
constexpr std::size_t kInPlaceBytes = 4 << 20;

// The offset of a quantized parameter's scales, which follow its values.
std::size_t scales_at(const Parameter& parameter) {
  return Arena::rounded(parameter.quantized_shape().value_bytes());
}

std::size_t bytes_of(const Parameter& parameter, DType model_dtype) {
  const DType dtype = parameter.fixed_type.value_or(model_dtype);
  if (parameter.quantization)
    return scales_at(parameter) + parameter.quantized_shape().scale_bytes();
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), size_of(dtype),
                         std::multiplies<>());
}

void bind(Parameter& parameter, DType model_dtype, std::byte* data) {
  const DType dtype = parameter.fixed_type.value_or(model_dtype);
  NVLLM_CHECK(parameter.shape.size() == 1 || parameter.shape.size() == 2, parameter.name);
  parameter.type = dtype;
  if (parameter.quantization) {
    const kernels::QuantizedShape shape = parameter.quantized_shape();
    parameter.view = TensorView(data, DType::u8, {shape.outputs, shape.row_bytes()});
    parameter.scales = TensorView(data + scales_at(parameter), shape.scale_type(),
                                  {shape.outputs, shape.scale_columns()});
  } else if (parameter.shape.size() == 1) {
    parameter.view = TensorView(data, dtype, {parameter.shape[0]});
  } else {
    parameter.view = TensorView(data, dtype, {parameter.shape[0], parameter.shape[1]});
  }
}

std::uint64_t view_bytes(const Parameter& parameter) {
  return parameter.view.bytes() + (parameter.quantization ? parameter.scales.bytes() : 0);
}

std::uint64_t view_bytes(std::span<Parameter* const> parameters) {
  std::uint64_t bytes = 0;
  for (const Parameter* parameter : parameters) bytes += view_bytes(*parameter);
  return bytes;
}

std::uint64_t read_parameters(std::span<Parameter* const> parameters, const Checkpoint& checkpoint,
                              Backend& backend, const LoadOptions& options,
                              const std::function<void(std::uint64_t)>& progress) {
  const bool staged = backend.kind() != DeviceKind::cpu || options.staged;
  std::size_t piece_bytes = options.piece_bytes;
  if (piece_bytes == 0) piece_bytes = staged ? kStagingBytes : kInPlaceBytes;
  const LoadPlan plan = plan_load(parameters, checkpoint, piece_bytes);

  const auto cores = static_cast<int>(allowed_cores().size());
  const bool packs = std::ranges::any_of(
      plan.pieces, [](const LoadPiece& piece) { return piece.packed.has_value(); });
  int threads = options.threads;
  if (threads == 0) {
    threads = staged ? std::min(cores, packs ? kPackingThreads : kStagingThreads) : cores;
  }
  threads = static_cast<int>(std::min<std::size_t>(threads, plan.pieces.size()));
  std::size_t longest = 0;
  for (const LoadPiece& piece : plan.pieces) longest = std::max(longest, piece.bytes());

  return execute_load(plan, checkpoint, backend, staged ? longest : 0, threads, progress);
}

// The same of a quantized parameter: bytes of all kinds.
void fill_quantized(const Parameter& parameter, const Slice& slice, std::uint64_t seed,
                    Stream& stream) {
  kernels::QuantizedShape whole = parameter.quantized_shape();
  whole.inputs = slice.shape[1];
  kernels::RandomFill fill;
  const std::int64_t words = parameter.view.shape[1] / 4;
  fill.out = TensorView(parameter.view.rows(slice.to_row, slice.rows.size()).data, DType::i32,
                        {slice.rows.size(), words});
  fill.seed = XXH3_64bits_withSeed(slice.tensor.data(), slice.tensor.size(), seed);
  fill.first_row = slice.rows.begin;
  fill.first_column =
      slice.columns.begin / whole.block_inputs() * kernels::kQuantizedBlockBytes / 4;
  fill.whole_columns = whole.row_bytes() / 4;
  kernels::random_bytes(fill, stream);
}

// Sets all scales of a parameter so that random bytes have the given standard deviation, and all
// offsets to 0.
void fill_scales(const Parameter& parameter, float standard_deviation, Backend& backend,
                 Stream& stream) {
  kernels::QuantizedShape row = parameter.quantized_shape();
  row.outputs = 1;
  const float deviation = row.format == kernels::WeightFormat::fp8    ? 109.0f
                          : row.format == kernels::WeightFormat::int8 ? 73.9f
                                                                      : 4.61f;  // of the bytes
  const std::vector<float> scales(static_cast<std::size_t>(row.groups()),
                                  standard_deviation / deviation);
  const std::int64_t outputs = parameter.shape[0], some = std::min<std::int64_t>(outputs, 1024);
  const Buffer here = backend.allocate(
      MemoryKind::pinned, static_cast<std::size_t>(some) * row.scale_bytes(), "random scales");
  for (std::int64_t output = 0; output < some; ++output) {
    pack_scales(row, scales, {}, static_cast<std::byte*>(here.data()) + output * row.scale_bytes());
  }
  for (std::int64_t output = 0; output < outputs; output += some) {
    const auto bytes =
        static_cast<std::size_t>(std::min(some, outputs - output)) * row.scale_bytes();
    backend.copy(parameter.scales.as<std::byte>() + output * row.scale_bytes(), here.data(), bytes,
                 stream);
  }
  stream.synchronize();
}

// Whether a tensor is multiplied with, and so is near 1: the weights of norms, and factors.
bool is_near_1(std::string_view name) {
  for (const std::string_view ending : {"norm.weight", "norm_1.weight", "norm_2.weight",
                                        "layer_scalar", "router.scale", "per_expert_scale"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

// The values depend only on the tensor's name, the element's index in it and the seed.
void fill_slice(const Parameter& parameter, const Slice& slice, float width, std::uint64_t seed,
                Stream& stream) {
  const bool matrix = slice.shape.size() == 2;
  const std::string_view name = slice.tensor;
  const std::int64_t columns = matrix ? slice.columns.size() : slice.rows.size();
  const std::int64_t rows = matrix ? slice.rows.size() : 1;
  if (rows == 0 || columns == 0) return;
  if (parameter.quantization) return fill_quantized(parameter, slice, seed, stream);
  const std::int64_t first = slice.to_row * (matrix ? columns : 1);
  std::byte* const to = parameter.view.as<std::byte>() + first * size_of(parameter.view.dtype);
  kernels::RandomFill fill;
  fill.out = TensorView(to, parameter.view.dtype, {rows, columns});
  fill.seed = XXH3_64bits_withSeed(name.data(), name.size(), seed);
  fill.first_row = matrix ? slice.rows.begin : 0;
  fill.first_column = matrix ? slice.columns.begin : slice.rows.begin;
  fill.whole_columns = slice.shape.back();
  fill.center = is_near_1(name) ? 1.0f : 0.0f;
  fill.width = width;
  kernels::random_fill(fill, stream);
}

// Calls function(data, bytes) for all bytes of a tensor, in order, in host memory.
template <typename Function>
void for_bytes(const TensorView& tensor, Backend& backend, const Function& function) {
  const std::size_t bytes = tensor.bytes();
  if (bytes == 0) return;
  const auto* data = tensor.as<std::byte>();
  if (backend.kind() == DeviceKind::cpu) return function(data, bytes);
  const Buffer here =
      backend.allocate(MemoryKind::pinned, std::min(bytes, kStagingBytes), "checksum");
  const auto stream = backend.create_stream();
  for (std::size_t done = 0; done < bytes; done += here.bytes()) {
    const std::size_t part = std::min(here.bytes(), bytes - done);
    backend.copy(here.data(), data + done, part, *stream);
    stream->synchronize();
    function(here.data(), part);
  }
}

}  // namespace

ParameterBytes bytes_of(std::span<Parameter* const> parameters, DType dtype) {
  ParameterBytes bytes;
  for (const Parameter* parameter : parameters) {
    bytes.used += bytes_of(*parameter, dtype);
    bytes.allocated += Arena::rounded(bytes_of(*parameter, dtype));
  }
  return bytes;
}

Buffer bind_parameters(std::span<Parameter* const> parameters, DType dtype, Backend& backend) {
  Buffer memory =
      backend.allocate(MemoryKind::device, bytes_of(parameters, dtype).allocated, "weights");
  auto* data = static_cast<std::byte*>(memory.data());
  for (Parameter* parameter : parameters) {
    bind(*parameter, dtype, data);
    data += Arena::rounded(bytes_of(*parameter, dtype));
  }
  return memory;
}

LoadReport load_parameters(std::span<Parameter* const> parameters, const Checkpoint& checkpoint,
                           Backend& backend, const LoadOptions& options) {
  const std::int64_t start = now_ns();
  LoadReport report{.bytes_loaded = view_bytes(parameters)};
  std::function<void(std::uint64_t)> progress;
  if (options.progress) {
    progress = [&](std::uint64_t bytes) { options.progress({bytes, report.bytes_loaded}); };
  }
  report.bytes_read = read_parameters(parameters, checkpoint, backend, options, progress);
  if (progress) progress(report.bytes_loaded);
  report.seconds = seconds_since(start);
  return report;
}

std::uint64_t checksum(const Parameter& parameter, Backend& backend) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  NVLLM_CHECK(state != nullptr, "no memory for a hash");
  XXH3_64bits_reset(state.get());
  const auto add = [&](const void* data, std::size_t bytes) {
    if (bytes > 0) XXH3_64bits_update(state.get(), data, bytes);
  };
  add(parameter.name.data(), parameter.name.size());
  add(parameter.shape.data(), parameter.shape.size() * sizeof(parameter.shape[0]));

  for_bytes(parameter.view, backend, add);
  if (parameter.quantization) for_bytes(parameter.scales, backend, add);
  return XXH3_64bits_digest(state.get());
}

LoadReport load_dummy(std::span<Parameter* const> parameters, Backend& backend,
                      float standard_deviation, std::uint64_t seed,
                      const std::function<void(const LoadProgress&)>& progress) {
  const std::int64_t start = now_ns();
  LoadReport report;
  const std::uint64_t total = view_bytes(parameters);
  const float width = std::sqrt(3.0f) * standard_deviation;  // of a uniform distribution
  const auto stream = backend.create_stream();
  for (const Parameter* parameter : parameters) {
    for (const Slice& slice : parameter->slices) {
      fill_slice(*parameter, slice, width, seed, *stream);
    }
    if (parameter->quantization) {
      fill_scales(*parameter, standard_deviation, backend, *stream);
    }
    report.bytes_loaded += view_bytes(*parameter);
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
