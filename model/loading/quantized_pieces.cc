// Pieces of quantized weights: values, scales and zero points are read from their tensors, and the
// weights computed in float32 and rounded once.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "model/checkpoint/quantized_weight.h"
#include "model/loading/load_plan.h"

namespace nvllm::model {
namespace {

using layers::Range;

// Rows are computed in runs of about this size, which stay in a core's cache.
constexpr std::int64_t kRunBytes = 512 << 10;

template <typename T>
constexpr DType kReadAs = dtype_of<T>;
template <>
constexpr DType kReadAs<std::uint8_t> = DType::u8;

// The words of eight elements in which these lie.
Range words_of(Range elements) {
  return {elements.begin / 8, divide_up(elements.end, std::int64_t{8})};
}

// The stored values of a piece, dense.
struct Values {
  std::vector<std::uint8_t> bytes;  // FP8
  std::vector<std::int32_t> words;  // INT4
  Range rows, columns;              // of the stored tensor
};

// The eight integers of a word.
void unpack(std::int32_t word, float* eight) {
  const auto bits = static_cast<std::uint32_t>(word);
  for (int n = 0; n < 8; ++n) eight[n] = static_cast<float>(bits >> (4 * n) & 15);
}

// Integers of some outputs and all of the piece's inputs into `out` [outputs, inputs].
void unpack_inputs(const Values& values, bool transposed, Range outputs, Range inputs, float* out) {
  const Range words = words_of(inputs);
  float eight[8];
  for (std::int64_t output = outputs.begin; output < outputs.end; ++output, out += inputs.size()) {
    for (std::int64_t word = words.begin; word < words.end; ++word) {
      const std::int64_t at =
          transposed ? (word - words.begin) * values.columns.size() + output - values.columns.begin
                     : (output - values.rows.begin) * words.size() + word - words.begin;
      unpack(values.words[static_cast<std::size_t>(at)], eight);
      const Range whole{8 * word, 8 * word + 8};
      const Range part{std::max(whole.begin, inputs.begin), std::min(whole.end, inputs.end)};
      std::memcpy(out + (part.begin - inputs.begin), eight + (part.begin - whole.begin),
                  static_cast<std::size_t>(part.size()) * sizeof(float));
    }
  }
}

// The same where a word has eight outputs of one input, in AWQ's order.
void unpack_awq(const Values& values, Range outputs, Range inputs, float* out) {
  float eight[8];
  for (std::int64_t input = inputs.begin; input < inputs.end; ++input) {
    const std::int32_t* const row =
        values.words.data() + (input - inputs.begin) * values.columns.size();
    for (std::int64_t word = outputs.begin / 8; 8 * word < outputs.end; ++word) {
      unpack(row[word - values.columns.begin], eight);
      for (int n = 0; n < 8; ++n) {
        const std::int64_t output = 8 * word + kAwqOrder[n];
        if (output < outputs.begin || output >= outputs.end) continue;
        out[(output - outputs.begin) * inputs.size() + input - inputs.begin] = eight[n];
      }
    }
  }
}

}  // namespace

struct PieceReader::Scales {
  // Inputs of one group that lie together, as numbers in the piece.
  struct Span {
    Range inputs;
    std::int64_t group;
  };
  std::int64_t groups = 1;           // columns of the tables
  std::vector<float> scales, zeros;  // [outputs of the piece, groups]
  std::vector<Span> spans;           // all inputs of the piece

  // (value - zero point) * scale, in place, of a row of the piece.
  void apply(std::int64_t row, float* values) const {
    for (const Span& span : spans) {
      const float scale = scales[row * groups + span.group];
      const float zero = zeros[row * groups + span.group];
      for (std::int64_t i = span.inputs.begin; i < span.inputs.end; ++i)
        values[i] = (values[i] - zero) * scale;
    }
  }
  void add_input(std::int64_t group) {
    const std::int64_t input = spans.empty() ? 0 : spans.back().inputs.end;
    if (spans.empty() || spans.back().group != group) spans.push_back({{input, input}, group});
    ++spans.back().inputs.end;
  }
};

template <typename T>
std::vector<T> PieceReader::read_part(const StoredTensor& tensor, Range rows, Range columns) {
  const LoadPiece part{.tensor = &tensor, .rows = rows, .columns = columns, .dtype = kReadAs<T>};
  std::vector<T> values(part.bytes() / sizeof(T));
  read(part, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

PieceReader::Scales PieceReader::read_scales(const LoadPiece& piece) {
  const QuantizedWeight& weight = *piece.tensor->quantized;
  const Range outputs = piece.rows, inputs = piece.columns;
  Scales result;
  Range groups{0, weight.groups};
  if (weight.group_of) {
    for (const std::int32_t group : read_part<std::int32_t>(*weight.group_of, {0, 1}, inputs)) {
      // They were checked when the file was opened; it may have been written to since.
      if (group < 0 || group >= weight.groups)
        fail(weight.group_of->name, ": the file has changed");
      result.add_input(group);
    }
  } else {
    groups = {inputs.begin / weight.scale_inputs, divide_up(inputs.end, weight.scale_inputs)};
    for (std::int64_t input = inputs.begin; input < inputs.end; ++input)
      result.add_input(input / weight.scale_inputs - groups.begin);
  }
  result.groups = groups.size();
  const Range scale_rows{outputs.begin / weight.scale_outputs,
                         divide_up(outputs.end, weight.scale_outputs)};
  const auto stored = weight.transposed() ? read_part<float>(weight.scales, groups, outputs)
                                          : read_part<float>(weight.scales, scale_rows, groups);
  Values zeros{.bytes = {}, .words = {}, .rows = groups, .columns = words_of(outputs)};
  if (weight.zeros) zeros.words = read_part<std::int32_t>(*weight.zeros, zeros.rows, zeros.columns);

  // AWQ packs zero points like its values, eight outputs in its own order; GPTQ in theirs.
  std::vector<float> zero(static_cast<std::size_t>(outputs.size() * groups.size()),
                          weight.layout == QuantizedLayout::packed_inputs ? 8.0f : 0.0f);
  if (weight.layout == QuantizedLayout::awq) {
    unpack_awq(zeros, outputs, groups, zero.data());
  } else if (weight.zeros) {
    std::vector<float> by_group(zero.size());
    unpack_inputs(zeros, false, groups, outputs, by_group.data());
    for (std::int64_t group = 0; group < groups.size(); ++group) {
      for (std::int64_t output = 0; output < outputs.size(); ++output)
        zero[output * groups.size() + group] = by_group[group * outputs.size() + output];
    }
  }
  if (weight.zeros) {
    for (float& value : zero) value += static_cast<float>(weight.zero_offset);
  }
  result.zeros = std::move(zero);

  for (std::int64_t output = outputs.begin; output < outputs.end; ++output) {
    for (std::int64_t group = 0; group < groups.size(); ++group) {
      const std::int64_t row = output / weight.scale_outputs - scale_rows.begin;
      const std::int64_t at = weight.transposed() ? group * outputs.size() + output - outputs.begin
                                                  : row * groups.size() + group;
      result.scales.push_back(stored[static_cast<std::size_t>(at)]);
    }
  }
  return result;
}

void PieceReader::read_quantized(const LoadPiece& piece, std::byte* out) {
  const QuantizedWeight& weight = *piece.tensor->quantized;
  const Range inputs = piece.columns;
  const Scales scales = read_scales(piece);
  Values values;
  switch (weight.layout) {
    case QuantizedLayout::fp8:
      values.bytes = read_part<std::uint8_t>(weight.values, piece.rows, inputs);
      break;
    case QuantizedLayout::packed_inputs:
      values.rows = piece.rows;
      values.columns = words_of(inputs);
      break;
    case QuantizedLayout::awq:
      values.rows = inputs;
      values.columns = words_of(piece.rows);
      break;
    case QuantizedLayout::gptq:
      values.rows = words_of(inputs);
      values.columns = piece.rows;
      break;
  }
  if (weight.layout != QuantizedLayout::fp8)
    values.words = read_part<std::int32_t>(weight.values, values.rows, values.columns);

  const auto row_floats = static_cast<std::size_t>(inputs.size());
  const std::int64_t rows = std::max<std::int64_t>(
      kRunBytes / static_cast<std::int64_t>(row_floats * sizeof(float)) / 8 * 8, 8);
  std::vector<float> floats(static_cast<std::size_t>(rows) * row_floats);
  Range run{piece.rows.begin, piece.rows.begin};
  while (run.end < piece.rows.end) {
    run = {run.end, std::min(run.end - run.end % 8 + rows, piece.rows.end)};
    const std::int64_t first = run.begin - piece.rows.begin;
    const std::int64_t count = run.size() * inputs.size();
    if (weight.layout == QuantizedLayout::fp8) {
      const auto* const from =
          reinterpret_cast<const std::byte*>(values.bytes.data()) + first * inputs.size();
      decode(Encoding::f8_e4m3, from, count, DType::f32, floats.data());
    } else if (weight.layout == QuantizedLayout::awq) {
      unpack_awq(values, run, inputs, floats.data());
    } else {
      unpack_inputs(values, weight.transposed(), run, inputs, floats.data());
    }
    for (std::int64_t row = 0; row < run.size(); ++row)
      scales.apply(first + row, floats.data() + row * inputs.size());
    decode(Encoding::f32, reinterpret_cast<const std::byte*>(floats.data()), count, piece.dtype,
           out);
    out += static_cast<std::size_t>(count) * size_of(piece.dtype);
  }
}

}  // namespace nvllm::model
