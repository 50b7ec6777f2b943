#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "runtime/model/model_loading.h"

namespace nvllm::runtime {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

struct BadElement {
  std::int64_t index = 0;
  bool nan = false;  // otherwise infinity
};

// exponent: mask of the exponent bits, which are all set only in NaN and infinity.
template <typename Bits>
std::optional<BadElement> find_bad(const Bits* elements, std::int64_t count, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::span block(elements + begin,
                          static_cast<std::size_t>(std::min(kBlock, count - begin)));
    bool any = false;
    for (const Bits bits : block) any |= (bits & exponent) == exponent;
    if (!any) continue;
    const auto found = std::ranges::find_if(
        block, [&](Bits bits) { return static_cast<Bits>(bits & exponent) == exponent; });
    const auto mantissa = static_cast<Bits>((exponent & (~exponent + 1U)) - 1U);
    return BadElement{begin + (found - block.begin()), (*found & mantissa) != 0};
  }
  return std::nullopt;
}

// The bits of a byte that are all set in NaN alone, of FP8 (e4m3) and of MXFP4's scales (e8m0).
constexpr std::uint8_t kE4m3Nan = 0x7f, kE8m0Nan = 0xff;

std::optional<BadElement> find_bad(const void* elements, std::int64_t count, DType dtype,
                                   std::uint8_t byte_nan) {
  constexpr std::uint32_t kFloat = 0x7f800000;
  constexpr std::uint16_t kBfloat = 0x7f80, kHalf = 0x7c00;
  switch (dtype) {
    case DType::f32: return find_bad(static_cast<const std::uint32_t*>(elements), count, kFloat);
    case DType::bf16: return find_bad(static_cast<const std::uint16_t*>(elements), count, kBfloat);
    case DType::f16: return find_bad(static_cast<const std::uint16_t*>(elements), count, kHalf);
    case DType::u8: {
      const auto* const bytes = static_cast<const std::uint8_t*>(elements);
      const auto* const found = std::find_if(
          bytes, bytes + count, [&](std::uint8_t byte) { return (byte & byte_nan) == byte_nan; });
      if (found != bytes + count) return BadElement{found - bytes, true};
      break;
    }
    case DType::i32:
    case DType::i64: break;
  }
  return std::nullopt;  // every bit pattern is a number
}

std::optional<BadElement> find_bad(const TensorView& tensor, Backend& backend,
                                   std::uint8_t byte_nan = kE4m3Nan) {
  if (backend.kind() == DeviceKind::cpu) {
    return find_bad(tensor.data, tensor.elements(), tensor.dtype, byte_nan);
  }
  const std::size_t size = size_of(tensor.dtype);
  const Buffer here = backend.allocate(MemoryKind::pinned, kPieceElements * size, "weight check");
  const auto stream = backend.create_stream();
  for (std::int64_t begin = 0; begin < tensor.elements(); begin += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, tensor.elements() - begin);
    backend.copy(here.data(), tensor.as<std::byte>() + static_cast<std::size_t>(begin) * size,
                 static_cast<std::size_t>(count) * size, *stream);
    stream->synchronize();
    if (auto bad = find_bad(here.data(), count, tensor.dtype, byte_nan)) {
      bad->index += begin;
      return bad;
    }
  }
  return std::nullopt;
}

// "model.norm.weight holds NaN at [7]": name and index are those of the checkpoint's tensor.
std::string describe(const layers::Parameter& parameter, const BadElement& bad) {
  const char* const holds = bad.nan ? " holds NaN" : " holds infinity";
  const std::int64_t columns = parameter.shape.size() < 2 ? 1 : parameter.shape[1];
  const std::int64_t row = bad.index / columns, column = bad.index % columns;
  for (const layers::Slice& slice : parameter.slices) {
    if (row < slice.to_row || row >= slice.to_row + slice.rows.size()) continue;
    const std::int64_t there = slice.rows.begin + row - slice.to_row;
    if (slice.shape.size() < 2) return str(slice.tensor, holds, " at [", there, "]");
    return str(slice.tensor, holds, " at [", there, ", ", slice.columns.begin + column, "]");
  }
  return parameter.name + holds;
}

// "model.layers.0.mlp.up_proj.weight holds NaN in output 7": for a row of a quantized weight.
std::string describe_output(const layers::Parameter& parameter, std::int64_t row,
                            const char* what) {
  for (const layers::Slice& slice : parameter.slices) {
    if (row < slice.to_row || row >= slice.to_row + slice.rows.size()) continue;
    return str(slice.tensor, what, " in output ", slice.rows.begin + row - slice.to_row);
  }
  return parameter.name + what;
}

std::optional<std::string> quantized_fault(const layers::Parameter& parameter, Backend& backend) {
  const bool powers = parameter.quantization->format == kernels::WeightFormat::mxfp4;
  if (const auto bad = find_bad(parameter.scales, backend, powers ? kE8m0Nan : kE4m3Nan)) {
    return describe_output(parameter, bad->index / parameter.scales.shape[1],
                           bad->nan ? " has a scale that is NaN" : " has a scale that is infinite");
  }
  if (parameter.quantization->format != kernels::WeightFormat::fp8) return std::nullopt;
  const auto bad = find_bad(parameter.view, backend);
  if (!bad) return std::nullopt;
  return describe_output(parameter, bad->index / parameter.view.shape[1], " holds NaN");
}

}  // namespace

std::optional<std::string> weight_fault(const layers::Parameter& parameter, Backend& backend) {
  if (parameter.quantization) return quantized_fault(parameter, backend);
  const std::optional<BadElement> bad = find_bad(parameter.view, backend);
  if (!bad) return std::nullopt;
  return describe(parameter, *bad);
}

std::string find_weight_fault(ipc::GroupCaller& caller) {
  for (std::uint64_t index = 0;; ++index) {
    bool more = false;
    for (const WeightFault& rank : caller.call<WeightFault>("weight_fault", index)) {
      if (!rank.text.empty()) return rank.text;
      more |= rank.there;
    }
    if (!more) return "";
  }
}

}  // namespace nvllm::runtime
