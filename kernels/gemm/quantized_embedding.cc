#include "kernels/gemm/quantized_embedding.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"

namespace nvllm::kernels {
namespace {

template <typename T>
void dequantize_rows(const QuantizedEmbedding& args, std::int64_t begin, std::int64_t end) {
  const QuantizedShape& shape = args.shape;
  const std::int64_t scale_bytes =
      shape.scale_columns() * static_cast<std::int64_t>(size_of(shape.scale_type()));
  std::vector<float> floats(static_cast<std::size_t>(shape.inputs));
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t entry = args.ids.as<std::int32_t>()[row] - args.first_id;
    if (entry < 0 || entry >= shape.outputs) {
      std::ranges::fill(floats, 0.0f);
    } else {
      dequantize_row(shape, args.values.as<std::byte>() + entry * shape.row_bytes(),
                     args.scales.as<std::byte>() + entry * scale_bytes, floats.data());
    }
    std::ranges::transform(floats, args.out.as<T>() + row * shape.inputs,
                           [&](float value) { return from_float<T>(value * args.scale); });
  }
}

void check(const QuantizedEmbedding& args) {
  constexpr Arguments check("quantized_embedding");
  const QuantizedShape& shape = args.shape;
  const std::int64_t rows = args.out.shape[0];
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  check.require_dense(args.out, "out", args.out.dtype, {rows, shape.inputs});
  check.require_dense(args.ids, "ids", DType::i32, {rows});
  check.require_dense(args.values, "values", DType::u8, {shape.outputs, shape.row_bytes()});
  check.require_dense(args.scales, "scales", shape.scale_type(),
                      {shape.outputs, shape.scale_columns()});
  NVLLM_CHECK(shape.format != WeightFormat::mxfp4);
}

}  // namespace

namespace cpu {
namespace {

void quantized_embedding(const QuantizedEmbedding& args, Stream& stream) {
  submit_rows(stream, args.out.shape[0], args.shape.row_bytes() + args.shape.inputs * 4,
              [args](std::int64_t begin, std::int64_t end) {
                with_element_type(args.out.dtype,
                                  [&]<typename T>(T) { dequantize_rows<T>(args, begin, end); });
              });
}

}  // namespace
}  // namespace cpu

void quantized_embedding(const QuantizedEmbedding& args, Stream& stream) {
  check(args);
  if (args.out.shape[0] == 0) return;
  NVLLM_ON_BACKEND(stream, quantized_embedding(args, stream));
}

}  // namespace nvllm::kernels
