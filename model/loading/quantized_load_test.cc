// Quantized weights as they are loaded, against their definition element by element: every layout,
// parts of ranks that are cut inside of words, blocks and groups, pieces of every size.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/backend.h"
#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"
#include "model/loading/loader.h"
#include "model/loading/packing.h"
#include "model/testing/safetensors_builder.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kOutputs = 40, kInputs = 96, kGroup = 32, kGroups = kInputs / kGroup;

// A checkpoint with a weight, and the weight's values.
struct Case {
  std::string name;
  SafetensorsBuilder files;
  std::function<float(std::int64_t, std::int64_t)> value;  // of an output and an input
  std::optional<kernels::WeightFormat> format = {};        // that it keeps, if it can
  std::string tensor = "m.weight";
};

class Random {
 public:
  std::mt19937::result_type seed() const { return seed_; }
  std::vector<std::int32_t> words(std::int64_t count) {
    std::vector<std::int32_t> words(static_cast<std::size_t>(count));
    for (std::int32_t& word : words) word = static_cast<std::int32_t>(random_());
    return words;
  }
  std::vector<float> scales(std::int64_t count) {
    std::uniform_real_distribution<float> any(-2, 2);
    std::vector<float> scales(static_cast<std::size_t>(count));
    for (float& scale : scales) scale = any(random_);
    return scales;
  }
  std::vector<std::uint8_t> fp8(std::int64_t count) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(random_());
      if ((byte & 0x7f) == 0x7f) byte = 0;  // NaN
    }
    return bytes;
  }
  std::vector<std::uint8_t> bytes(std::int64_t count, int min, int max) {
    std::uniform_int_distribution<int> any(min, max);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(any(random_));
    return bytes;
  }
  std::vector<std::int32_t> groups() {
    std::vector<std::int32_t> groups(kInputs);
    for (std::int32_t& group : groups) group = static_cast<std::int32_t>(random_() % kGroups);
    return groups;
  }

 private:
  const std::mt19937::result_type seed_ = std::random_device()();
  std::mt19937 random_{seed_};
};

int nibble(std::int32_t word, std::int64_t n) {
  return static_cast<int>(static_cast<std::uint32_t>(word) >> (4 * n) & 15);
}

float e4m3(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const double value =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(byte >= 128 ? -value : value);
}

Case fp8(Random& random, const std::string& name, std::vector<std::int64_t> scale_shape,
         std::int64_t block_outputs, std::int64_t block_inputs) {
  Case made{.name = name, .files = {}, .value = {}};
  const auto values = random.fp8(kOutputs * kInputs);
  const std::int64_t columns = (kInputs + block_inputs - 1) / block_inputs;
  const auto scales = random.scales((kOutputs + block_outputs - 1) / block_outputs * columns);
  made.files.set_config(
      R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[16,28]}})");
  made.files.set("m.weight", "F8_E4M3", {kOutputs, kInputs}, values);
  made.files.set("m.weight_scale_inv", "F32", std::move(scale_shape), scales);
  made.value = [=](std::int64_t output, std::int64_t input) {
    const std::int64_t scale = output / block_outputs * columns + input / block_inputs;
    return e4m3(values[output * kInputs + input]) * scales[scale];
  };
  return made;
}

Case packed(Random& random) {
  Case made{.name = "packed", .files = {}, .value = {}};
  const auto words = random.words(kOutputs * kInputs / 8);
  const auto scales = random.scales(kOutputs * kGroups);
  made.files.set_config(
      R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized"}})");
  made.files.set("m.weight_packed", "I32", {kOutputs, kInputs / 8}, words);
  made.files.set("m.weight_scale", "F32", {kOutputs, kGroups}, scales);
  made.files.set("m.weight_shape", "I64", {2}, std::vector<std::int64_t>{kOutputs, kInputs});
  made.value = [=](std::int64_t output, std::int64_t input) {
    const int value = nibble(words[(output * kInputs + input) / 8], input % 8);
    return static_cast<float>(value - 8) * scales[output * kGroups + input / kGroup];
  };
  return made;
}

Case awq(Random& random) {
  Case made{.name = "awq", .files = {}, .value = {}};
  const auto words = random.words(kInputs * kOutputs / 8),
             zeros = random.words(kGroups * kOutputs / 8);
  const auto scales = random.scales(kGroups * kOutputs);
  made.files.set_config(
      R"({"quantization_config":{"quant_method":"awq","bits":4,"version":"gemm"}})");
  made.files.set("m.qweight", "I32", {kInputs, kOutputs / 8}, words);
  made.files.set("m.qzeros", "I32", {kGroups, kOutputs / 8}, zeros);
  made.files.set("m.scales", "F32", {kGroups, kOutputs}, scales);
  made.value = [=](std::int64_t output, std::int64_t input) {
    constexpr int kPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};  // of an output in its word
    const int place = kPlace[output % 8];
    const std::int64_t group = input / kGroup;
    const int value = nibble(words[(input * kOutputs + output) / 8], place);
    const int zero = nibble(zeros[(group * kOutputs + output) / 8], place);
    return static_cast<float>(value - zero) * scales[group * kOutputs + output];
  };
  return made;
}

Case gptq(Random& random, bool ordered, bool version_2) {
  Case made{.name = str("gptq, ordered ", ordered, ", v2 ", version_2), .files = {}, .value = {}};
  const auto words = random.words(kInputs / 8 * kOutputs),
             zeros = random.words(kGroups * kOutputs / 8);
  const auto scales = random.scales(kGroups * kOutputs);
  auto groups = random.groups();
  for (std::int64_t i = 0; ordered && i < kInputs; ++i)
    groups[i] = static_cast<std::int32_t>(i / kGroup);
  made.files.set_config(str(R"({"quantization_config":{"quant_method":"gptq","bits":4,)",
                            R"("checkpoint_format":")", version_2 ? "gptq_v2" : "gptq", R"("}})"));
  made.files.set("m.qweight", "I32", {kInputs / 8, kOutputs}, words);
  made.files.set("m.qzeros", "I32", {kGroups, kOutputs / 8}, zeros);
  made.files.set("m.scales", "F32", {kGroups, kOutputs}, scales);
  made.files.set("m.g_idx", "I32", {kInputs}, groups);
  made.value = [=](std::int64_t output, std::int64_t input) {
    const int value = nibble(words[input / 8 * kOutputs + output], input % 8);
    const std::int64_t group = groups[input];
    const int zero = nibble(zeros[(group * kOutputs + output) / 8], output % 8);
    return static_cast<float>(value - zero - (version_2 ? 0 : 1)) *
           scales[group * kOutputs + output];
  };
  return made;
}

// Three experts as gpt-oss keeps them, of which the second one's weight is looked at: that of gate
// (first 0), of up (1), whose outputs alternate, or of down.
struct ExpertOf {
  std::string file_name, name;
  std::int64_t first, step;
  std::int64_t row(std::int64_t output) const { return kOutputs * step + output * step + first; }
};
const ExpertOf kExperts[] = {{"e.experts.gate_up_proj", "e.experts.1.gate_proj", 0, 2},
                             {"e.experts.gate_up_proj", "e.experts.1.up_proj", 1, 2},
                             {"e.experts.down_proj", "e.experts.1.down_proj", 0, 1}};

Case mxfp4(Random& random, const ExpertOf& expert) {
  Case made{.name = "mxfp4 " + expert.name, .files = {}, .value = {}};
  const std::int64_t rows = kOutputs * expert.step;  // of an expert
  const auto pairs = random.bytes(3 * rows * kInputs / 2, 0, 255);
  const auto scales = random.bytes(3 * rows * kGroups, 100, 140);
  made.files.set_config(R"({"quantization_config":{"quant_method":"mxfp4"}})");
  made.files.set(expert.file_name + "_blocks", "U8", {3, rows, kGroups, 16}, pairs);
  made.files.set(expert.file_name + "_scales", "U8", {3, rows, kGroups}, scales);
  made.files.set(expert.file_name + "_bias", "F32", {3, rows}, std::vector<float>(3 * rows, 1));
  made.value = [=](std::int64_t output, std::int64_t input) {
    constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const std::int64_t row = expert.row(output);
    const int code = pairs[(row * kInputs + input) / 2] >> (input % 2 * 4) & 15;
    const float number = code >= 8 ? -kMagnitudes[code - 8] : kMagnitudes[code];
    return number * std::ldexp(1.0f, scales[row * kGroups + input / kGroup] - 127);
  };
  made.format = kernels::WeightFormat::mxfp4;
  made.tensor = expert.name + ".weight";
  return made;
}

// The same as floats, which are [inputs, outputs].
Case experts_of_floats(Random& random, const ExpertOf& expert) {
  Case made{.name = "floats " + expert.name, .files = {}, .value = {}};
  const std::int64_t rows = kOutputs * expert.step;
  const auto values = random.scales(3 * rows * kInputs);
  made.files.set(expert.file_name, "F32", {3, kInputs, rows}, values);
  made.files.set(expert.file_name + "_bias", "F32", {3, rows}, std::vector<float>(3 * rows, 1));
  made.value = [=](std::int64_t output, std::int64_t input) {
    const std::int64_t column = output * expert.step + expert.first;
    return values[(kInputs + input) * rows + column];
  };
  made.tensor = expert.name + ".weight";
  return made;
}

std::vector<Case> all_cases(Random& random) {
  std::vector<Case> cases;
  cases.push_back(fp8(random, "blocks", {3, 4}, 16, 28));
  cases.push_back(fp8(random, "one scale", {1}, kOutputs, kInputs));
  cases.back().format = kernels::WeightFormat::fp8;
  cases.push_back(fp8(random, "a scale per output", {kOutputs, 1}, 1, kInputs));
  cases.back().format = kernels::WeightFormat::fp8;
  cases.push_back(packed(random));
  cases.back().format = kernels::WeightFormat::int4;
  cases.push_back(awq(random));
  cases.back().format = kernels::WeightFormat::int4;
  for (const bool ordered : {true, false}) {
    for (const bool version_2 : {true, false}) {
      cases.push_back(gptq(random, ordered, version_2));
      if (ordered) cases.back().format = kernels::WeightFormat::int4;
    }
  }
  for (const ExpertOf& expert : kExperts) {
    cases.push_back(mxfp4(random, expert));
    cases.push_back(experts_of_floats(random, expert));
  }
  return cases;
}

// How many elements of a part of the weight are not as they are defined.
template <typename T>
int wrong(const Case& made, const Checkpoint& checkpoint, Backend& backend, layers::Range rows,
          layers::Range columns, std::size_t piece_bytes) {
  layers::Parameter parameter;
  parameter.name = "m";
  parameter.slices = {{.tensor = made.tensor,
                       .shape = {kOutputs, kInputs},
                       .rows = rows,
                       .columns = columns,
                       .to_row = 0}};
  parameter.shape = {rows.size(), columns.size()};
  layers::Parameter* const parameters[] = {&parameter};
  const Buffer memory = bind_parameters(parameters, dtype_of<T>, backend);
  load_parameters(parameters, checkpoint, backend, {.threads = 2, .piece_bytes = piece_bytes});
  const T* found = parameter.view.as<T>();
  int count = 0;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t column = columns.begin; column < columns.end; ++column) {
      const T expected = from_float<T>(made.value(row, column));
      if (to_float(expected) != to_float(*found++)) ++count;
    }
  }
  return count;
}

TEST_CASE("every part of a quantized weight is what its definition says") {
  const auto backend = create_backend(DeviceKind::cpu);
  Random random;
  CAPTURE(random.seed());
  for (const Case& made : all_cases(random)) {
    CAPTURE(made.name);
    const TestFolder folder;
    made.files.write(folder);
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    struct Part {
      layers::Range rows, columns;
    };
    constexpr Part kParts[] = {{{0, kOutputs}, {0, kInputs}},
                               {{3, 21}, {0, kInputs}},
                               {{0, kOutputs}, {13, 77}},
                               {{21, kOutputs}, {77, kInputs}},
                               {{7, 8}, {5, 6}}};
    for (const Part& part : kParts) {
      for (const std::size_t piece_bytes :
           {std::size_t{1} << 20, std::size_t{900}, std::size_t{52}}) {
        CAPTURE(piece_bytes);
        CAPTURE(part.rows.begin);
        CAPTURE(part.columns.begin);
        CHECK(wrong<float>(made, checkpoint, *backend, part.rows, part.columns, piece_bytes) == 0);
        CHECK(wrong<Bf16>(made, checkpoint, *backend, part.rows, part.columns, piece_bytes) == 0);
      }
    }
  }
}

// How many elements of some rows, kept quantized, are not as they are defined. Scales and offsets
// of integers are rounded to 11 bits.
int wrong_packed(const Case& made, const Checkpoint& checkpoint, Backend& backend,
                 layers::Range rows, layers::Range columns, std::size_t piece_bytes) {
  layers::Parameter parameter;
  parameter.name = "m";
  parameter.may_be_quantized = layers::MayBeQuantized::yes;
  parameter.slices = {{.tensor = made.tensor,
                       .shape = {kOutputs, kInputs},
                       .rows = rows,
                       .columns = columns,
                       .to_row = 0}};
  parameter.shape = {rows.size(), columns.size()};
  layers::Parameter* const parameters[] = {&parameter};
  choose_quantization(parameters, &checkpoint, {});
  REQUIRE(parameter.quantization.has_value());
  CHECK(parameter.quantization->format == *made.format);
  const bool fp8 = *made.format == kernels::WeightFormat::fp8;
  const bool exact = has_float_values(*made.format);
  CHECK(parameter.quantization->group == (fp8 ? 128 : kGroup));
  const Buffer memory = bind_parameters(parameters, DType::bf16, backend);
  load_parameters(parameters, checkpoint, backend, {.threads = 2, .piece_bytes = piece_bytes});
  const kernels::QuantizedShape shape = parameter.quantized_shape();
  const std::size_t scale_bytes = shape.scale_bytes() / static_cast<std::size_t>(shape.outputs);
  std::vector<float> values(static_cast<std::size_t>(columns.size()));
  int count = 0;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const auto at = static_cast<std::size_t>(row - rows.begin);
    dequantize_row(
        shape, parameter.view.as<std::byte>() + at * static_cast<std::size_t>(shape.row_bytes()),
        parameter.scales.as<std::byte>() + at * scale_bytes, values.data());
    for (std::int64_t column = columns.begin; column < columns.end; ++column) {
      // Random scales are below 2, and an offset below 16 of them.
      const float tolerance = exact ? 0 : 2 * 16 * 0x1p-11f;
      const float value = values[static_cast<std::size_t>(column - columns.begin)];
      count += !(std::fabs(value - made.value(row, column)) <= tolerance);
    }
  }
  return count;
}

TEST_CASE("a weight that stays quantized is what its definition says") {
  const auto backend = create_backend(DeviceKind::cpu);
  Random random;
  CAPTURE(random.seed());
  for (const Case& made : all_cases(random)) {
    if (!made.format) continue;
    CAPTURE(made.name);
    const TestFolder folder;
    made.files.write(folder);
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    for (const layers::Range rows : {layers::Range{0, kOutputs}, {3, 21}, {39, 40}}) {
      for (const std::size_t piece_bytes : {std::size_t{1} << 20, std::size_t{900}}) {
        CHECK(wrong_packed(made, checkpoint, *backend, rows, {0, kInputs}, piece_bytes) == 0);
        if (*made.format == kernels::WeightFormat::fp8) continue;
        // Ranks have whole groups.
        for (const layers::Range columns : {layers::Range{0, 32}, {32, 96}, {64, 96}}) {
          CHECK(wrong_packed(made, checkpoint, *backend, rows, columns, piece_bytes) == 0);
        }
      }
    }
  }
}

TEST_CASE("biases of experts, of which every other element is a module's") {
  const auto backend = create_backend(DeviceKind::cpu);
  SafetensorsBuilder files;
  std::vector<float> biases(3 * 8), weights(3 * 8 * 4);
  for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = static_cast<float>(i);
  files.set("e.experts.gate_up_proj", "F32", {3, 4, 8}, weights);
  files.set("e.experts.gate_up_proj_bias", "F32", {3, 8}, biases);
  const TestFolder folder;
  files.write(folder);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  layers::Parameter parameter;
  parameter.name = "b";
  parameter.slices = {{"e.experts.2.up_proj.bias", {4}, {1, 4}, {0, 1}, 0},
                      {"e.experts.0.gate_proj.bias", {4}, {0, 2}, {0, 1}, 3}};
  parameter.shape = {5};
  layers::Parameter* const parameters[] = {&parameter};
  const Buffer memory = bind_parameters(parameters, DType::f32, *backend);
  load_parameters(parameters, checkpoint, *backend, {});
  const float* found = parameter.view.as<float>();
  CHECK(std::vector<float>(found, found + 5) == std::vector<float>{19, 21, 23, 0, 2});
}

TEST_CASE("a scale of MXFP4 that stands for no number is refused by name") {
  const auto backend = create_backend(DeviceKind::cpu);
  Random random;
  Case made = mxfp4(random, kExperts[2]);
  std::vector<std::uint8_t> scales(3 * kOutputs * kGroups, 127);
  scales[kOutputs * kGroups + 4] = 255;
  made.files.set("e.experts.down_proj_scales", "U8", {3, kOutputs, kGroups}, scales);
  const TestFolder folder;
  made.files.write(folder);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  for (const bool packed : {true, false}) {
    std::string refusal;
    try {
      const layers::Range rows{0, kOutputs}, columns{0, kInputs};
      packed ? wrong_packed(made, checkpoint, *backend, rows, columns, 1 << 20)
             : wrong<float>(made, checkpoint, *backend, rows, columns, 1 << 20);
    } catch (const Error& error) {
      refusal = error.what();
    }
    CHECK(
        refusal.ends_with("model.safetensors: tensor e.experts.down_proj_scales: a scale of MXFP4 "
                          "is 255, which stands for no number"));
  }
}

}  // namespace
}  // namespace nvllm::model
