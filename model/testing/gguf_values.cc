#include "model/testing/gguf_values.h"

#include <span>

#include "base/check.h"
#include "base/json_text.h"
#include "kernels/gemm/quantized_weight.h"
#include "model/loading/loader.h"

namespace nvllm::model {
namespace {

using kernels::QuantizedShape;
using kernels::WeightFormat;

template <typename T>
void append(std::string& bytes, T value) {
  bytes += GgufBuilder::bytes_of(value);
}

// Two values of 4 bits in a byte: value i, and value i + 16.
void append_nibbles(std::string& bytes, const std::uint8_t* values) {
  for (int i = 0; i < 16; ++i) {
    append(bytes, static_cast<std::uint8_t>(values[i] | values[i + 16] << 4));
  }
}

// A row in blocks of 32.
void append_blocks(std::string& bytes, GgufType type, std::span<const float> row) {
  const WeightFormat format = type == GgufType::mxfp4  ? WeightFormat::mxfp4
                              : type == GgufType::q8_0 ? WeightFormat::int8
                                                       : WeightFormat::int4;
  const QuantizedShape shape{format, 1, static_cast<std::int64_t>(row.size()), 32};
  const kernels::QuantizedRow quantized = quantize_row(shape, row);
  for (std::size_t block = 0; 32 * block < row.size(); ++block) {
    const std::uint8_t* const values = quantized.values.data() + 32 * block;
    if (type == GgufType::mxfp4) {
      append(bytes, kernels::float_to_e8m0(quantized.scales[block]));
      append_nibbles(bytes, values);
      continue;
    }
    append(bytes, from_float<F16>(quantized.scales[block]));
    if (type == GgufType::q4_0) {
      append_nibbles(bytes, values);
    } else {
      for (int i = 0; i < 32; ++i) append(bytes, static_cast<std::uint8_t>(values[i] - 128));
    }
  }
}

}  // namespace

GgufValues read_values(const Checkpoint& checkpoint, const std::string& name, Backend& backend) {
  const StoredTensor* const tensor = checkpoint.find(name);
  NVLLM_CHECK(tensor != nullptr, name);
  const bool matrix = tensor->shape.size() == 2;
  layers::Parameter parameter;
  parameter.name = name;
  parameter.shape = tensor->shape;
  parameter.slices = {
      {name, tensor->shape, {0, tensor->shape[0]}, {0, matrix ? tensor->shape[1] : 1}, 0}};
  layers::Parameter* const parameters[] = {&parameter};
  const Buffer memory = bind_parameters(parameters, DType::f32, backend);
  load_parameters(parameters, checkpoint, backend, {.threads = 1});
  const float* const begin = parameter.view.as<float>();
  return {tensor->shape, {begin, begin + parameter.elements()}};
}

std::string encode_values(const GgufValues& tensor, GgufType type) {
  std::string bytes;
  if (type == GgufType::f32) {
    for (const float value : tensor.values) append(bytes, value);
  } else if (type == GgufType::bf16) {
    for (const float value : tensor.values) append(bytes, from_float<Bf16>(value));
  } else {
    const auto columns = static_cast<std::size_t>(tensor.shape.back());
    for (std::size_t at = 0; at < tensor.values.size(); at += columns) {
      append_blocks(bytes, type, std::span(tensor.values).subspan(at, columns));
    }
  }
  return bytes;
}

GgufValues rows_of(const GgufValues& tensor, const std::vector<std::int64_t>& rows) {
  const std::int64_t columns = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
  GgufValues picked{tensor.shape, {}};
  picked.shape[0] = std::ssize(rows);
  for (const std::int64_t row : rows) {
    const auto first = tensor.values.begin() + row * columns;
    picked.values.insert(picked.values.end(), first, first + columns);
  }
  return picked;
}

GgufValues transposed(const GgufValues& tensor) {
  const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  GgufValues result{{columns, rows}, {}};
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      result.values.push_back(tensor.values[static_cast<std::size_t>(row * columns + column)]);
    }
  }
  return result;
}

nlohmann::json text_config_of(const Checkpoint& checkpoint) {
  nlohmann::json config = parse_json(checkpoint.config_json());
  return config.contains("text_config") ? config["text_config"] : config;
}

}  // namespace nvllm::model
