#include "model/loading/packing.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/checkpoint/quantized_weight.h"

namespace nvllm::model {
namespace {

using kernels::WeightFormat;
using layers::Parameter;
using layers::Slice;

std::optional<Packing> packing_of(const QuantizedWeight& weight, std::int64_t inputs) {
  const bool whole_rows = weight.groups == 1 || weight.scale_inputs >= inputs;
  if (weight.layout == QuantizedLayout::fp8) {
    if (!whole_rows && weight.scale_inputs % kernels::kFp8Group != 0) return std::nullopt;
    return Packing{};
  }
  if (weight.layout == QuantizedLayout::mxfp4)
    return Packing{WeightFormat::mxfp4, kernels::kMxfp4Group};
  if (weight.group_of) return std::nullopt;  // inputs in another order
  if (whole_rows || weight.scale_inputs % 128 == 0) return Packing{WeightFormat::int4, 128};
  if (weight.scale_inputs % 32 != 0 || 128 % weight.scale_inputs != 0) return std::nullopt;
  return Packing{WeightFormat::int4, weight.scale_inputs};
}

// The common packing of all slices.
std::optional<Packing> common(const std::optional<Packing>& a, const std::optional<Packing>& b) {
  if (!a || !b) return std::nullopt;
  if (has_float_values(a->format) || has_float_values(b->format))
    return a->format == b->format ? a : std::nullopt;
  const bool more = value_bits(a->format) >= value_bits(b->format);
  return Packing{more ? a->format : b->format, std::min(a->group, b->group)};
}

std::optional<Packing> packing_of(const Parameter& parameter, const Checkpoint& checkpoint) {
  std::optional<Packing> all;
  for (std::size_t i = 0; i < parameter.slices.size(); ++i) {
    const Slice& slice = parameter.slices[i];
    const auto one = packing_of(checkpoint.get(slice.tensor, slice.shape));
    all = i == 0 ? one : common(all, one);
  }
  // Scales of safetensors belong to one format.
  for (const Slice& slice : parameter.slices) {
    const StoredTensor& tensor = checkpoint.get(slice.tensor, slice.shape);
    const auto one = packing_of(tensor);
    if (!all || (tensor.quantized && (one->format != all->format || one->group != all->group)))
      return std::nullopt;
  }
  return all;
}

std::optional<Packing> packing_of(QuantizationChoice::Format format) {
  switch (format) {
    case QuantizationChoice::Format::fp8: return Packing{};
    case QuantizationChoice::Format::int8: return Packing{WeightFormat::int8, 128};
    case QuantizationChoice::Format::int4: return Packing{WeightFormat::int4, 128};
    default: return std::nullopt;
  }
}

// Whether the parameter's parts of weights begin where groups of inputs do, and groups lie in the
// file as they are, also where it has inputs in another order.
bool can_be_cut(const Parameter& parameter, std::int64_t group, const Checkpoint* checkpoint) {
  return std::ranges::all_of(parameter.slices, [&](const Slice& slice) {
    if (slice.columns.begin % group != 0) return false;
    if (checkpoint == nullptr) return true;
    const auto& order = checkpoint->get(slice.tensor, slice.shape).column_order;
    return !order || (order->first % group == 0 && order->size % group == 0);
  });
}

// Whether 128 outputs from a multiple of 128 on, of the parameter, share their scales. Random ones
// are all the same.
bool in_blocks(const Parameter& parameter, WeightFormat format, const Checkpoint* checkpoint) {
  if (format != WeightFormat::fp8) return false;
  if (checkpoint == nullptr) return true;
  return std::ranges::all_of(parameter.slices, [&](const Slice& slice) {
    const StoredTensor& tensor = checkpoint->get(slice.tensor, slice.shape);
    return tensor.quantized != nullptr && tensor.quantized->scale_outputs % 128 == 0 &&
           slice.rows.begin % 128 == 0 && slice.to_row % 128 == 0;
  });
}

}  // namespace

std::optional<Packing> packing_of(const StoredTensor& tensor) {
  if (tensor.quantized != nullptr) return packing_of(*tensor.quantized, tensor.shape.back());
  switch (tensor.encoding) {
    case Encoding::q4_0:
    case Encoding::q4_1:
    case Encoding::q4_k: return Packing{WeightFormat::int4, 32};
    case Encoding::q5_0:
    case Encoding::q5_1:
    case Encoding::q5_k:
    case Encoding::q8_0: return Packing{WeightFormat::int8, 32};
    case Encoding::q6_k: return Packing{WeightFormat::int8, 16};
    case Encoding::mxfp4_blocks: return Packing{WeightFormat::mxfp4, kernels::kMxfp4Group};
    default: return std::nullopt;
  }
}

bool fits(const Packing& packing, const kernels::QuantizedShape& shape) {
  if (has_float_values(packing.format) || has_float_values(shape.format))
    return packing.format == shape.format;
  return value_bits(shape.format) >= value_bits(packing.format) && shape.group <= packing.group;
}

void check_scales(const StoredTensor& tensor, const kernels::QuantizedShape& shape,
                  std::span<const float> scales, std::span<const float> offsets) {
  if (has_float_values(shape.format)) return;
  const auto check = [&](std::span<const float> values, const char* what) {
    for (const float value : values) {
      if (!(std::fabs(value) > kernels::kMaxScale)) continue;
      fail(tensor.stored_name, ": ", what, " of ", value, " is beyond ", kernels::kMaxScale,
           ", the largest of ", name_of(shape.format), " weights; pass --quantization none");
    }
  };
  check(scales, "a scale");
  check(offsets, "an offset");
}

void choose_quantization(std::span<Parameter* const> parameters, const Checkpoint* checkpoint,
                         const QuantizationChoice& choice) {
  using Format = QuantizationChoice::Format;
  using layers::MayBeQuantized;
  for (Parameter* parameter : parameters) {
    parameter->quantization.reset();
    const bool as_stored = parameter->may_be_quantized == MayBeQuantized::vocabulary;
    if (parameter->may_be_quantized == MayBeQuantized::no || parameter->elements() == 0) continue;
    std::optional<Packing> packing;
    if (!as_stored) packing = packing_of(choice.format);
    if (choice.format != Format::none && checkpoint != nullptr) {
      const auto stored = packing_of(*parameter, *checkpoint);
      if (stored) packing = stored;
    }
    if (!packing || !can_be_cut(*parameter, packing->group, checkpoint)) continue;
    // Only grouped GEMMs have kernels for it on GPUs.
    if (as_stored && packing->format == WeightFormat::mxfp4) continue;
    parameter->quantization = {packing->format, packing->group, choice.weight_only,
                               in_blocks(*parameter, packing->format, checkpoint)};
  }
}

}  // namespace nvllm::model
