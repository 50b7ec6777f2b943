// Weights that stay quantized while they are loaded, or become so: every encoding, parts of ranks,
// pieces of every size.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/backend.h"
#include "model/loading/loader.h"
#include "model/loading/loader_fixture.h"
#include "model/loading/packing.h"

namespace nvllm::model {
namespace {

using kernels::WeightFormat;
using layers::Range;
using Format = QuantizationChoice::Format;

constexpr std::int64_t kOutputs = 48, kInputs = 512, kHeads = 3;

struct Part {
  Range rows, columns;
};
constexpr Part kParts[] = {{{0, kOutputs}, {0, kInputs}},
                           {{5, 37}, {0, kInputs}},
                           {{0, kOutputs}, {128, 400}},
                           {{16, 32}, {384, kInputs}}};
// That begins inside of 128 inputs, and of a K block, but where 32 inputs do.
constexpr Part kInsideOfBlocks = {{3, 41}, {96, 400}};

// Loads a part as a parameter whose quantization is chosen so.
struct Loaded {
  Loaded(const Checkpoint& checkpoint, Backend& backend, const Part& part, Format format,
         std::size_t piece_bytes, bool staged) {
    parameter.name = "m";
    parameter.may_be_quantized = layers::MayBeQuantized::yes;
    parameter.slices = {{.tensor = "m.weight",
                         .shape = {kOutputs, kInputs},
                         .rows = part.rows,
                         .columns = part.columns,
                         .to_row = 0}};
    parameter.shape = {part.rows.size(), part.columns.size()};
    layers::Parameter* const parameters[] = {&parameter};
    choose_quantization(parameters, &checkpoint, {.format = format});
    memory = bind_parameters(parameters, DType::f32, backend);
    load_parameters(parameters, checkpoint, backend,
                    {.threads = 2, .piece_bytes = piece_bytes, .progress = {}, .staged = staged});
  }

  std::vector<float> row(std::int64_t row) const {
    const kernels::QuantizedShape shape = parameter.quantized_shape();
    std::vector<float> out(static_cast<std::size_t>(shape.inputs));
    dequantize_row(shape, parameter.view.as<std::byte>() + row * shape.row_bytes(),
                   parameter.scales.as<std::byte>() + static_cast<std::size_t>(row) *
                                                          shape.scale_bytes() /
                                                          static_cast<std::size_t>(shape.outputs),
                   out.data());
    return out;
  }

  layers::Parameter parameter;
  Buffer memory;
};

// All values of the weight, [outputs, inputs].
std::vector<float> values_of(const TestFiles& files) {
  const std::vector<std::byte> bytes = files.values("m.weight", DType::f32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// How many elements are off by more than tolerance(row's elements of a group of 16).
template <typename Tolerance>
int wrong(const Loaded& loaded, const std::vector<float>& values, const Part& part,
          const Tolerance& tolerance) {
  int count = 0;
  for (std::int64_t row = part.rows.begin; row < part.rows.end; ++row) {
    const std::vector<float> got = loaded.row(row - part.rows.begin);
    for (std::int64_t i = part.columns.begin; i < part.columns.end; ++i) {
      const float* const right = values.data() + row * kInputs;
      const float off = std::fabs(got[i - part.columns.begin] - right[i]);
      count += !(off <= tolerance(right, i));
    }
  }
  return count;
}

float largest(const float* row, std::int64_t begin, std::int64_t end) {
  float max = 0;
  for (std::int64_t i = begin; i < std::min(end, kInputs); ++i)
    max = std::max(max, std::fabs(row[i]));
  return max;
}

TEST_CASE("GGUF's blocks stay what they are, but for scales of 11 bits") {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const Encoding encoding : kEncodings) {
    const bool mxfp4 = encoding == Encoding::mxfp4_blocks;
    const bool blocks = encoding >= Encoding::q8_0 && encoding <= Encoding::q6_k;
    if (!blocks && !mxfp4) continue;
    CAPTURE(std::string(name_of(encoding)));
    enum class Order : std::uint8_t { none, rotary, heads_of_columns };
    for (const Order order : {Order::none, Order::rotary, Order::heads_of_columns}) {
      TestFiles files;
      files.add("m.weight", encoding, {kOutputs, kInputs}, order == Order::rotary ? kHeads : 0);
      if (order == Order::heads_of_columns) {
        files.order({}, StoredOrder{.outer = 4, .inner = 2, .size = 64});
      }
      const Checkpoint checkpoint = files.write();
      const std::vector<float> values = values_of(files);
      std::vector<Part> parts(std::begin(kParts), std::end(kParts));
      parts.push_back(kInsideOfBlocks);
      for (const Part& part : parts) {
        for (const std::size_t piece_bytes : {std::size_t{1} << 20, std::size_t{3000}}) {
          const Loaded loaded(checkpoint, *backend, part, Format::automatic, piece_bytes,
                              piece_bytes == 3000);
          REQUIRE(loaded.parameter.quantization.has_value());
          const bool int4 = encoding == Encoding::q4_0 || encoding == Encoding::q4_1 ||
                            encoding == Encoding::q4_k;
          CHECK(loaded.parameter.quantization->format == (mxfp4  ? WeightFormat::mxfp4
                                                          : int4 ? WeightFormat::int4
                                                                 : WeightFormat::int8));
          // Scales of MXFP4 are powers of two, which stay. Scale and offset are rounded to 11 bits,
          // and 32 neighbours have the same ones: the offset is no larger than all of them.
          const auto tolerance = [mxfp4](const float* row, std::int64_t i) {
            if (mxfp4) return 0.0f;
            return 3 * largest(row, i / 32 * 32, i / 32 * 32 + 32) * 0x1p-11f + 0x1p-30f;
          };
          CHECK(wrong(loaded, values, part, tolerance) == 0);
        }
      }
    }
  }
}

TEST_CASE("where groups of inputs are torn apart in the file, weights become floats") {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const std::int64_t size : {16, 32}) {
    TestFiles files;
    files.add("m.weight", Encoding::q8_0, {kOutputs, kInputs});
    files.order({}, StoredOrder{.outer = 2, .inner = kInputs / 2 / size, .size = size});
    const Checkpoint checkpoint = files.write();
    const Loaded loaded(checkpoint, *backend, kParts[0], Format::automatic, 3000, false);
    CHECK(loaded.parameter.quantization.has_value() == (size == 32));
  }
}

TEST_CASE("a scale that no format has is refused by name") {
  const auto backend = create_backend(DeviceKind::cpu);
  const StoredTensor tensor{.name = "m.weight", .shape = {}, .stored_name = "blk.0.m"};
  const kernels::QuantizedShape int8{WeightFormat::int8, 1, 32, 32};
  const std::vector<float> scales = {300};
  CHECK_THROWS_WITH(check_scales(tensor, int8, scales, {}),
                    "blk.0.m: a scale of 300 is beyond 255.875, the largest of int8 weights; pass "
                    "--quantization none");
  CHECK_THROWS_WITH_AS(check_scales(tensor, int8, {}, scales),
                       doctest::Contains("an offset of 300"), Error);
  CHECK_NOTHROW(check_scales(tensor, {WeightFormat::fp8, 1, 128, 128}, scales, {}));
}

TEST_CASE("floats are quantized while they are loaded, if that is wanted") {
  const auto backend = create_backend(DeviceKind::cpu);
  for (const Encoding encoding : {Encoding::f32, Encoding::bf16}) {
    TestFiles files;
    files.add("m.weight", encoding, {kOutputs, kInputs});
    const Checkpoint checkpoint = files.write();
    const std::vector<float> values = values_of(files);
    for (const Part& part : kParts) {
      for (const auto& [format, step] : {std::pair{Format::fp8, 1 / 16.0f},
                                         {Format::int8, 1 / 254.0f},
                                         {Format::int4, 1 / 14.0f}}) {
        const Loaded loaded(checkpoint, *backend, part, format, 3000, false);
        REQUIRE(loaded.parameter.quantization.has_value());
        CHECK(loaded.parameter.quantization->group == 128);
        const std::int64_t from = part.columns.begin;
        const auto tolerance = [from, half = step, fp8 = format == Format::fp8](const float* row,
                                                                                std::int64_t i) {
          const std::int64_t begin = from + (i - from) / 128 * 128;
          const float max = largest(row, begin, begin + 128);
          if (fp8) return std::max(std::fabs(row[i]) * half, max * 0x1p-19f) * 1.01f;
          return max * half * 1.01f;
        };
        CHECK(wrong(loaded, values, part, tolerance) == 0);
      }
    }
  }
}

TEST_CASE("what is quantized stays so, and 'none' makes floats of it") {
  const auto backend = create_backend(DeviceKind::cpu);
  TestFiles files;
  files.add("m.weight", Encoding::q8_0, {kOutputs, kInputs});
  const Checkpoint checkpoint = files.write();
  const auto quantization = [&](Format format, const Part& part) {
    return Loaded(checkpoint, *backend, part, format, 1 << 20, false).parameter.quantization;
  };
  const layers::Quantization as_stored{WeightFormat::int8, 32, false};
  CHECK(quantization(Format::automatic, kParts[0]) == as_stored);
  CHECK(quantization(Format::int4, kParts[0]) == as_stored);
  CHECK_FALSE(quantization(Format::none, kParts[0]).has_value());
  // A part may begin where a group does, and not inside of one.
  CHECK(quantization(Format::automatic, {{0, 8}, {64, 192}}) == as_stored);
  CHECK_FALSE(quantization(Format::automatic, {{0, 8}, {48, 192}}).has_value());
}

TEST_CASE("parts of one parameter in two encodings get the finer format") {
  const auto backend = create_backend(DeviceKind::cpu);
  TestFiles files;
  files.add("q.weight", Encoding::q4_k, {kOutputs, kInputs});
  files.add("v.weight", Encoding::q6_k, {kOutputs, kInputs});
  files.add("f.weight", Encoding::bf16, {kOutputs, kInputs});
  const Checkpoint checkpoint = files.write();
  const auto chosen = [&](const std::string& first, const std::string& second) {
    layers::Parameter parameter;
    parameter.name = "both";
    parameter.may_be_quantized = layers::MayBeQuantized::yes;
    parameter.shape = {2 * kOutputs, kInputs};
    for (const std::string& tensor : {first, second}) {
      parameter.slices.push_back({.tensor = tensor,
                                  .shape = {kOutputs, kInputs},
                                  .rows = {0, kOutputs},
                                  .columns = {0, kInputs},
                                  .to_row = tensor == first ? 0 : kOutputs});
    }
    layers::Parameter* const parameters[] = {&parameter};
    choose_quantization(parameters, &checkpoint, {});
    return parameter.quantization;
  };
  CHECK(chosen("q.weight", "v.weight") == layers::Quantization{WeightFormat::int8, 16, false});
  CHECK_FALSE(chosen("q.weight", "f.weight").has_value());
}

TEST_CASE("integers fit into as many bits or more, in as small groups or smaller") {
  const auto holds = [](WeightFormat weight, std::int64_t group, WeightFormat stored,
                        std::int64_t stored_group) {
    return fits({stored, stored_group}, {weight, 1, 128, group});
  };
  CHECK(holds(WeightFormat::int4, 32, WeightFormat::int4, 32));
  CHECK(holds(WeightFormat::int8, 32, WeightFormat::int4, 32));
  CHECK(holds(WeightFormat::int8, 16, WeightFormat::int4, 128));
  CHECK_FALSE(holds(WeightFormat::int4, 32, WeightFormat::int8, 32));
  CHECK_FALSE(holds(WeightFormat::int8, 64, WeightFormat::int8, 32));
  // Floats only into the same.
  CHECK(holds(WeightFormat::mxfp4, 32, WeightFormat::mxfp4, 32));
  CHECK_FALSE(holds(WeightFormat::int8, 32, WeightFormat::mxfp4, 32));
  CHECK_FALSE(holds(WeightFormat::fp8, 128, WeightFormat::int8, 128));
}

TEST_CASE("a vocabulary stays quantized as it is stored, but not in MXFP4") {
  TestFiles files;
  files.add("q.weight", Encoding::q8_0, {kOutputs, kInputs});
  files.add("m.weight", Encoding::mxfp4_blocks, {kOutputs, kInputs});
  files.add("f.weight", Encoding::bf16, {kOutputs, kInputs});
  const Checkpoint checkpoint = files.write();
  const auto chosen = [&](const std::string& tensor, QuantizationChoice::Format format) {
    layers::Parameter parameter;
    parameter.name = "vocabulary";
    parameter.may_be_quantized = layers::MayBeQuantized::vocabulary;
    parameter.shape = {kOutputs, kInputs};
    parameter.slices = {{tensor, {kOutputs, kInputs}, {0, kOutputs}, {0, kInputs}, 0}};
    layers::Parameter* const parameters[] = {&parameter};
    choose_quantization(parameters, &checkpoint, {.format = format});
    return parameter.quantization;
  };
  using Format = QuantizationChoice::Format;
  CHECK(chosen("q.weight", Format::automatic) ==
        layers::Quantization{WeightFormat::int8, 32, false});
  CHECK_FALSE(chosen("m.weight", Format::automatic).has_value());
  CHECK_FALSE(chosen("q.weight", Format::none).has_value());
  CHECK_FALSE(chosen("f.weight", Format::int4).has_value());
}

}  // namespace
}  // namespace nvllm::model
