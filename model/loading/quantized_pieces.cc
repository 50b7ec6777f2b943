// Pieces of quantized weights: values, scales and zero points are read from their tensors. Either
// the weights are computed, in float32 and rounded once, or they are packed as GEMMs read them.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/math.h"
#include "model/checkpoint/quantized_weight.h"
#include "model/loading/load_plan.h"
#include "model/loading/packing.h"

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

// The bytes of two elements in which these lie.
Range bytes_of_pairs(Range elements) {
  return {elements.begin / 2, divide_up(elements.end, std::int64_t{2})};
}

// Words of INT4, dense.
struct Words {
  std::vector<std::int32_t> values;
  Range rows, columns;  // of the stored tensor
};

// The eight integers of a word.
template <typename T>
void unpack(std::int32_t word, T* eight) {
  const auto bits = static_cast<std::uint32_t>(word);
  for (int n = 0; n < 8; ++n) eight[n] = static_cast<T>(bits >> (4 * n) & 15);
}

// Integers of some outputs and all of the piece's inputs into `out` [outputs, inputs].
template <typename T>
void unpack_inputs(const Words& packed, bool transposed, Range outputs, Range inputs, T* out) {
  const Range words = words_of(inputs);
  T eight[8];
  for (std::int64_t output = outputs.begin; output < outputs.end; ++output, out += inputs.size()) {
    for (std::int64_t word = words.begin; word < words.end; ++word) {
      const std::int64_t at =
          transposed ? (word - words.begin) * packed.columns.size() + output - packed.columns.begin
                     : (output - packed.rows.begin) * words.size() + word - words.begin;
      unpack(packed.values[static_cast<std::size_t>(at)], eight);
      const Range whole{8 * word, 8 * word + 8};
      const Range part{std::max(whole.begin, inputs.begin), std::min(whole.end, inputs.end)};
      std::memcpy(out + (part.begin - inputs.begin), eight + (part.begin - whole.begin),
                  static_cast<std::size_t>(part.size()) * sizeof(T));
    }
  }
}

// The same of MXFP4, from rows of the bytes in which the inputs lie.
template <typename T>
void unpack_mxfp4(const std::uint8_t* rows, Range outputs, Range inputs, T* out) {
  const Range bytes = bytes_of_pairs(inputs);
  for (std::int64_t output = 0; output < outputs.size(); ++output, rows += bytes.size()) {
    for (std::int64_t input = inputs.begin; input < inputs.end; ++input) {
      const std::uint8_t pair = rows[input / 2 - bytes.begin];
      *out++ = static_cast<T>(input % 2 == 0 ? pair & 15 : pair >> 4);
    }
  }
}

// The same where a word has eight outputs of one input, in AWQ's order.
template <typename T>
void unpack_awq(const Words& packed, Range outputs, Range inputs, T* out) {
  T eight[8];
  for (std::int64_t input = inputs.begin; input < inputs.end; ++input) {
    const std::int32_t* const row =
        packed.values.data() + (input - inputs.begin) * packed.columns.size();
    for (std::int64_t word = outputs.begin / 8; 8 * word < outputs.end; ++word) {
      unpack(row[word - packed.columns.begin], eight);
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

std::vector<float> PieceReader::read_powers(const StoredTensor& tensor, Range rows, Range columns) {
  std::vector<float> powers;
  for (const std::uint8_t scale : read_part<std::uint8_t>(tensor, rows, columns))
    powers.push_back(mxfp4_scale(tensor, scale));
  return powers;
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
  std::vector<float> stored;
  if (weight.layout == QuantizedLayout::mxfp4) {
    stored = read_powers(weight.scales, scale_rows, groups);
  } else {
    stored = weight.transposed() ? read_part<float>(weight.scales, groups, outputs)
                                 : read_part<float>(weight.scales, scale_rows, groups);
  }
  Words zeros{.values = {}, .rows = groups, .columns = words_of(outputs)};
  if (weight.zeros)
    zeros.values = read_part<std::int32_t>(*weight.zeros, zeros.rows, zeros.columns);

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

// The stored values of a piece, dense.
struct PieceReader::StoredValues {
  QuantizedLayout layout;
  Range inputs;
  Range outputs;
  std::vector<std::uint8_t> bytes;  // FP8, and pairs of MXFP4
  Words words;                      // INT4

  const std::uint8_t* fp8(std::int64_t output) const {
    return bytes.data() + (output - outputs.begin) * inputs.size();
  }
  // Integers of some outputs into `out` [outputs, inputs].
  template <typename T>
  void unpack_to(T* out, Range some) const {
    if (layout == QuantizedLayout::awq) return unpack_awq(words, some, inputs, out);
    if (layout == QuantizedLayout::mxfp4) {
      const std::int64_t first = (some.begin - outputs.begin) * bytes_of_pairs(inputs).size();
      return unpack_mxfp4(bytes.data() + first, some, inputs, out);
    }
    unpack_inputs(words, layout == QuantizedLayout::gptq, some, inputs, out);
  }
};

PieceReader::StoredValues PieceReader::read_values(const LoadPiece& piece) {
  const QuantizedWeight& weight = *piece.tensor->quantized;
  StoredValues values{weight.layout, piece.columns, piece.rows, {}, {}};
  Words& words = values.words;
  switch (weight.layout) {
    case QuantizedLayout::fp8:
      values.bytes = read_part<std::uint8_t>(weight.values, piece.rows, piece.columns);
      return values;
    case QuantizedLayout::mxfp4:
      values.bytes =
          read_part<std::uint8_t>(weight.values, piece.rows, bytes_of_pairs(piece.columns));
      return values;
    case QuantizedLayout::packed_inputs:
      words.rows = piece.rows;
      words.columns = words_of(piece.columns);
      break;
    case QuantizedLayout::awq:
      words.rows = piece.columns;
      words.columns = words_of(piece.rows);
      break;
    case QuantizedLayout::gptq:
      words.rows = words_of(piece.columns);
      words.columns = piece.rows;
      break;
  }
  words.values = read_part<std::int32_t>(weight.values, words.rows, words.columns);
  return values;
}

namespace {

// Calls function(run) for runs of the rows, which begin at multiples of 8.
template <typename Function>
void for_runs(Range rows, std::size_t row_bytes, const Function& function) {
  const std::int64_t max_rows =
      std::max<std::int64_t>(kRunBytes / static_cast<std::int64_t>(row_bytes + 1) / 8 * 8, 8);
  Range run{rows.begin, rows.begin};
  while (run.end < rows.end) {
    run = {run.end, std::min(run.end - run.end % 8 + max_rows, rows.end)};
    function(run);
  }
}

}  // namespace

void PieceReader::read_quantized(const LoadPiece& piece, std::byte* out) {
  const Range inputs = piece.columns;
  const Scales scales = read_scales(piece);
  const StoredValues values = read_values(piece);
  std::vector<float> floats;
  for_runs(piece.rows, static_cast<std::size_t>(inputs.size()) * sizeof(float), [&](Range run) {
    const std::int64_t count = run.size() * inputs.size();
    floats.resize(std::max(floats.size(), static_cast<std::size_t>(count)));
    if (values.layout == QuantizedLayout::fp8) {
      decode(Encoding::f8_e4m3, reinterpret_cast<const std::byte*>(values.fp8(run.begin)), count,
             DType::f32, floats.data());
    } else {
      values.unpack_to(floats.data(), run);
    }
    if (values.layout == QuantizedLayout::mxfp4) {
      for (std::int64_t i = 0; i < count; ++i)
        floats[i] = kernels::kE2m1[static_cast<int>(floats[i])];
    }
    for (std::int64_t row = 0; row < run.size(); ++row) {
      scales.apply(run.begin - piece.rows.begin + row, floats.data() + row * inputs.size());
    }
    decode(Encoding::f32, reinterpret_cast<const std::byte*>(floats.data()), count, piece.dtype,
           out);
    out += static_cast<std::size_t>(count) * size_of(piece.dtype);
  });
}

void PieceReader::pack_weight(const LoadPiece& piece, std::byte* out, std::byte* scales_out) {
  const kernels::QuantizedShape& shape = *piece.packed;
  const Scales scales = read_scales(piece);
  // Rows of FP8 are packed as they are, while they are in the cache; the others are unpacked first.
  const bool fp8 = piece.tensor->quantized->layout == QuantizedLayout::fp8;
  const std::optional<StoredValues> values = fp8 ? std::nullopt : std::optional(read_values(piece));
  // The stored group of each of ours, which are as large or smaller.
  std::vector<std::int64_t> stored_group;
  for (std::int64_t group = 0, span = 0; group * shape.group < shape.inputs; ++group) {
    while (scales.spans[span].inputs.end <= group * shape.group) ++span;
    stored_group.push_back(scales.spans[span].group);
  }
  std::vector<float> own_scales(stored_group.size()), own_offsets(stored_group.size());
  const std::size_t scale_bytes = shape.scale_bytes() / static_cast<std::size_t>(shape.outputs);
  for_runs(piece.rows, static_cast<std::size_t>(shape.inputs), [&](Range run) {
    const auto count = static_cast<std::size_t>(run.size() * shape.inputs);
    values_.resize(std::max(values_.size(), count));
    if (fp8) {
      read({.tensor = &piece.tensor->quantized->values,
            .rows = run,
            .columns = piece.columns,
            .dtype = DType::u8},
           reinterpret_cast<std::byte*>(values_.data()));
    } else {
      values->unpack_to(values_.data(), run);
    }
    const std::uint8_t* row_values = values_.data();
    for (std::int64_t row = run.begin; row < run.end; ++row, row_values += shape.inputs) {
      for (std::size_t group = 0; group < stored_group.size(); ++group) {
        const std::int64_t at = (row - piece.rows.begin) * scales.groups + stored_group[group];
        own_scales[group] = scales.scales[at];
        own_offsets[group] = (8 - scales.zeros[at]) * scales.scales[at];  // of INT4
      }
      check_scales(*piece.tensor, shape, own_scales, own_offsets);
      pack_values(shape, row_values, out);
      pack_scales(shape, own_scales, own_offsets, scales_out);
      out += shape.row_bytes();
      scales_out += scale_bytes;
    }
  });
}

void PieceReader::pack_floats(const LoadPiece& piece, std::byte* out, std::byte* scales_out) {
  const kernels::QuantizedShape& shape = *piece.packed;
  const std::size_t scale_bytes = shape.scale_bytes() / static_cast<std::size_t>(shape.outputs);
  const auto row_floats = static_cast<std::size_t>(shape.inputs);
  std::vector<float> floats;
  for_runs(piece.rows, row_floats * sizeof(float), [&](Range run) {
    LoadPiece part{
        .tensor = piece.tensor, .rows = run, .columns = piece.columns, .dtype = DType::f32};
    floats.resize(static_cast<std::size_t>(run.size()) * row_floats);
    read(part, reinterpret_cast<std::byte*>(floats.data()));
    for (std::int64_t row = 0; row < run.size(); ++row) {
      const std::span weights(floats.data() + row * shape.inputs, row_floats);
      pack_row(shape, quantize_row(shape, weights), out, scales_out);
      out += shape.row_bytes();
      scales_out += scale_bytes;
    }
  });
}

void PieceReader::read_packed(const LoadPiece& piece, std::byte* out, std::byte* scales) {
  const StoredTensor& tensor = *piece.tensor;
  const auto kept = packing_of(tensor);
  if (!kept || !fits(*kept, *piece.packed)) return pack_floats(piece, out, scales);
  if (tensor.quantized != nullptr) return pack_weight(piece, out, scales);
  if (tensor.encoding == Encoding::mxfp4_blocks) return pack_mxfp4_blocks(piece, out, scales);
  pack_blocks(piece, out, scales);
}

}  // namespace nvllm::model
