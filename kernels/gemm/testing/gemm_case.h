// What the test cases of GEMMs share: the settings and all tensors of a GEMM, a count of the
// results that are wrong, comparisons of plans, and what runs a GEMM.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/testing/backend_under_test.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/guarded_matrix.h"
#include "kernels/gemm/testing/references.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels::testing {

// The quantized weight of a setting; `group` is 0 if the weight is not quantized.
struct QuantizedSetting {
  WeightFormat format = WeightFormat::fp8;
  std::int64_t group = 0;
  bool weight_only = true;
  bool blocks = false;  // of 128 outputs with the same scales
  bool fp8_x = false;   // x has values that are in fp8 what they are
};

struct Setting {
  std::int64_t m = 1, outputs = 1, inputs = 1;
  DType type = DType::f32;
  bool float_out = false, bias = false, residual = false, in_place = false;
  std::int64_t x_gap = 0, out_gap = 0, shift = 0;
  Prologue prologue = Prologue::none;
  Activation activation = Activation::silu;
  QuantizedSetting quantized{};

  std::string describe() const {
    return str(quantized.group == 0 ? "" : name_of(quantized.format), " ", quantized.group, " ",
               quantized.weight_only ? "" : "quantized x ", name_of(type), " ", m, " x ", inputs,
               " -> ", outputs, float_out ? " float" : "", bias ? " bias" : "",
               residual ? " residual" : "", in_place ? " in place" : "", " gaps ", x_gap, " ",
               out_gap, " shift ", shift, " prologue ", static_cast<int>(prologue), " ",
               static_cast<int>(activation));
  }
};

// Rounds a matrix to e4m3, with a power of two as the scale of each row and group, which others
// have not; a group's largest value has to be e4m3's.
inline void make_fp8(const TensorView& matrix) {
  for (std::int64_t r = 0; r < matrix.shape[0]; ++r) {
    for (std::int64_t c = 0; c < matrix.shape[1]; ++c) {
      const float scale = std::ldexp(1.0f, static_cast<int>((7 * r + 3 * (c / kFp8Group)) % 4) - 9);
      const float value = c % kFp8Group == 0 ? kMaxFp8 * scale : get(matrix, r, c);
      put(matrix, r, c, fp8_to_float(float_to_fp8(value / scale)) * scale);
    }
  }
}

// The arguments of Gemm::call().
struct GemmArguments {
  GemmWeight weight;
  GemmOperands operands;
  GemmFusion fusion;
};

// For the plain definition: a call without prologue and epilogue.
inline GemmCall plain_call(const GemmWeight& weight, const GemmOperands& operands) {
  GemmCall call;
  call.plan.shape = shape_of(weight, operands);
  call.weight = weight;
  call.operands = operands;
  return call;
}

// A quantized weight of random values, on the host and in the backend's memory.
class PackedWeight {
 public:
  // Sets `weight` to its values.
  PackedWeight(Backend& backend, const Setting& s, std::mt19937& random, const Matrix& weight)
      : setting_(s.quantized),
        type_(s.type),
        shape_{s.quantized.format, s.outputs, s.inputs, s.quantized.group},
        values_(backend, shape_.value_bytes()),
        scales_(backend, shape_.scale_bytes()) {
    const std::size_t row_scales =
        shape_.scale_columns() * static_cast<std::int64_t>(size_of(shape_.scale_type()));
    std::vector<float> floats(static_cast<std::size_t>(s.inputs)), scales_of_block;
    for (std::int64_t output = 0; output < s.outputs; ++output) {
      std::byte* const values = values_.host() + output * shape_.row_bytes();
      std::byte* const scales = scales_.host() + output * row_scales;
      QuantizedRow row = random_row(random);
      if (s.quantized.blocks && output % 128 != 0) row.scales = scales_of_block;
      scales_of_block = row.scales;
      pack_row(shape_, row, values, scales);
      dequantize_row(shape_, values, scales, floats.data());
      for (std::int64_t i = 0; i < s.inputs; ++i)
        put(weight.here, output, i, floats[static_cast<std::size_t>(i)]);
    }
  }

  void upload(Stream& stream) {
    values_.upload(stream);
    scales_.upload(stream);
  }
  GemmWeight there() const { return of(values_.device(), scales_.device()); }
  GemmWeight here() const { return of(values_.host(), scales_.host()); }

 private:
  struct Memory {
    Memory(Backend& backend, std::size_t bytes)
        : backend(backend),
          there(backend.allocate(MemoryKind::device, bytes, "test")),
          here(backend.allocate(MemoryKind::pinned, bytes, "test")) {}
    std::byte* host() const { return static_cast<std::byte*>(here.data()); }
    std::byte* device() const { return static_cast<std::byte*>(there.data()); }
    void upload(Stream& stream) { backend.copy(there.data(), here.data(), here.bytes(), stream); }

    Backend& backend;
    Buffer there, here;
  };

  GemmWeight of(std::byte* values, std::byte* scales) const {
    GemmWeight weight{.values = TensorView(values, DType::u8, {shape_.outputs, shape_.row_bytes()}),
                      .format = shape_.format};
    weight.quantized = {
        .scales = TensorView(scales, shape_.scale_type(), {shape_.outputs, shape_.scale_columns()}),
        .inputs = shape_.inputs,
        .group = shape_.group,
        .type = type_,
        .weight_only = setting_.weight_only,
        .blocks = setting_.blocks};
    return weight;
  }

  // Weights of about 0.3. Formats with offsets have them.
  QuantizedRow random_row(std::mt19937& random) const {
    const bool fp8 = shape_.format == WeightFormat::fp8, int4 = shape_.format == WeightFormat::int4;
    const bool mxfp4 = shape_.format == WeightFormat::mxfp4;
    std::uniform_real_distribution<float> around(0.5f, 1.5f);
    QuantizedRow row;
    for (std::int64_t i = 0; i < shape_.inputs; ++i) {
      auto value = static_cast<std::uint8_t>(random() % (int4 || mxfp4 ? 16 : 256));
      if (fp8 && (value & 127) == 127) value = 0;
      row.values.push_back(value);
    }
    for (std::int64_t i = 0; i < shape_.inputs; i += shape_.group) {
      if (mxfp4) {
        row.scales.push_back(std::ldexp(1.0f, -2 - static_cast<int>(random() % 4)));
        continue;
      }
      const float step = fp8 ? 0.003f : int4 ? 0.07f : 0.004f;
      row.scales.push_back(step * around(random));
      row.offsets.push_back(step * 3 * (around(random) - 1));
    }
    return row;
  }

  QuantizedSetting setting_;
  DType type_;
  QuantizedShape shape_;
  Memory values_, scales_;
};

// All tensors of one GEMM.
struct GemmTensors {
  Setting setting;
  Matrix x, weight, bias, residual, out, norm_weight, prepared;
  std::optional<PackedWeight> packed;  // a quantized weight, whose values are `weight`'s

  GemmTensors(Backend& backend, const Setting& s, unsigned seed)
      : setting(s),
        x(backend, s.type, s.m, s.prologue == Prologue::gated_activation ? 2 * s.inputs : s.inputs,
          s.x_gap, s.shift),
        weight(backend, s.quantized.group == 0 ? s.type : DType::f32, s.outputs, s.inputs, 0,
               s.shift),
        bias(backend, s.type, 1, s.outputs, 0, s.shift),
        residual(backend, s.type, s.m, s.outputs, s.out_gap, s.shift),
        out(backend, s.float_out ? DType::f32 : s.type, s.m, s.outputs, s.out_gap, s.shift),
        norm_weight(backend, s.type, 1, s.inputs, 0, s.shift),
        prepared(backend, s.type, s.m + 1, s.inputs, 0, s.shift) {
    std::mt19937 random(seed);
    x.fill(random, 0, 1);
    if (s.quantized.fp8_x) make_fp8(x.here);
    weight.fill(random, 0, 0.3f);
    bias.fill(random, 0, 2);
    residual.fill(random, 0, 2);
    norm_weight.fill(random, 1, 0.2f);
    out.fill(random, std::nanf(""), 0);  // who reads it, or forgets to write it, is found out
    if (s.in_place) copy_values(residual.here, out.here);
    if (s.quantized.group > 0) packed.emplace(backend, s, random, weight);
    prepared.fill(random, std::nanf(""), 0);
  }

  static void copy_values(const TensorView& from, const TensorView& to) {
    for (std::int64_t r = 0; r < from.shape[0]; ++r) {
      for (std::int64_t c = 0; c < from.shape[1]; ++c) put(to, r, c, get(from, r, c));
    }
  }

  void upload(Stream& stream) {
    for (Matrix* one : {&x, &weight, &bias, &residual, &out, &norm_weight, &prepared}) {
      one->upload(stream);
    }
    if (packed) packed->upload(stream);
    stream.synchronize();  // the first GEMM demands it of constants
  }

  GemmArguments arguments() const {
    GemmArguments all;
    all.weight = packed ? packed->there() : GemmWeight{.values = weight.there};
    if (setting.bias) all.weight.bias = vector_of(bias.there);
    all.operands = {.out = out.there, .x = x.there};
    if (setting.residual) all.operands.residual = residual.there;
    if (setting.in_place) all.operands.residual = out.there;
    all.operands.prologue.norm_weight = vector_of(norm_weight.there);
    all.operands.prologue.prepared = prepared.there;
    all.fusion = {.prologue = setting.prologue, .activation = setting.activation};
    return all;
  }

  // x after the prologue, by the backend's own operation: the rest must follow exactly.
  Matrix prepared_x(Backend& backend, Stream& stream) const {
    const Setting& s = setting;
    Matrix result(backend, s.type, s.m, s.inputs);
    if (s.prologue == Prologue::rms_norm) {
      RmsNorm norm;
      norm.out = result.there;
      norm.x = x.there;
      norm.weight = vector_of(norm_weight.there);
      norm.epsilon = arguments().operands.prologue.epsilon;
      rms_norm(norm, stream);
    } else {
      gated_activation({.out = result.there, .x = x.there, .activation = s.activation}, stream);
    }
    result.fetch(stream);
    return result;
  }
};

// What a quantized weight adds to the error of a sum: its values may be rounded to x's type; and
// where x may be quantized, a group's values of x are off by half a step of 8 bits.
class QuantizedError {
 public:
  QuantizedError(const Setting& s, const TensorView& x, const TensorView& weight) : setting_(s) {
    const bool keeps_x =
        s.quantized.weight_only || s.quantized.fp8_x || s.quantized.format == WeightFormat::mxfp4;
    if (s.quantized.group != 0 && !keeps_x) of_x_.emplace(half_steps(x), weight);
  }

  double of(std::int64_t row, std::int64_t output, double terms) const {
    if (setting_.quantized.group == 0) return 0;
    const double error = precision_of(setting_.type).ulp / 2 * terms;
    return of_x_ ? error + (*of_x_)(row, output) : error;
  }

 private:
  // How far each value of x may be off.
  std::vector<float> half_steps(const TensorView& x) const {
    const bool fp8 = setting_.quantized.format == WeightFormat::fp8;
    const std::int64_t group = fp8 ? kFp8Group : 32;
    std::vector<float> steps = TermSums::magnitudes(x);
    for (std::int64_t row = 0; row < setting_.m; ++row) {
      for (std::int64_t begin = 0; begin < setting_.inputs; begin += group) {
        const std::span values(&steps[static_cast<std::size_t>(row * setting_.inputs + begin)],
                               static_cast<std::size_t>(std::min(group, setting_.inputs - begin)));
        const float largest = std::ranges::max(values);
        for (float& value : values) {
          value = fp8 ? std::max(value / 16, largest / 448 * 0x1p-10f) : largest / 254;
          value *= 1.01f;
        }
      }
    }
    return steps;
  }

  const Setting& setting_;
  std::optional<TermSums> of_x_;
};

// How many results are further from the definition than rounding explains. A sum of n terms in
// float32, in any order, is off by at most n roundings of the terms' absolute sum (of 2^-23, since
// tensor cores cut off where others round); then come the roundings to out's type, which may fall
// to either side. Where the definition gives infinity or NaN, so must the GEMM.
inline int count_wrong(const GemmTensors& gemm, const TensorView& x, const TensorView& residual) {
  const Setting& s = gemm.setting;
  Matrix const& out = gemm.out;
  const bool adds = s.residual || s.in_place;
  std::vector<char> memory(static_cast<std::size_t>(out.here.elements()) * size_of(out.here.dtype));
  const TensorView reference(memory.data(), out.here.dtype, {s.m, s.outputs});
  GemmWeight weight = gemm.packed ? gemm.packed->here() : GemmWeight{.values = gemm.weight.here};
  if (s.bias) weight.bias = vector_of(gemm.bias.here);
  GemmOperands operands{.out = reference, .x = x};
  if (adds) operands.residual = residual;
  gemm_reference(plain_call(weight, operands));

  const Precision precision = precision_of(out.here.dtype);
  const QuantizedError quantized(s, x, gemm.weight.here);
  const TermSums term_sum(x, gemm.weight.here);
  int wrong = 0;
  for (std::int64_t r = 0; r < s.m; ++r) {
    for (std::int64_t o = 0; o < s.outputs; ++o) {
      const float value = get(out.here, r, o), right = get(reference, r, o);
      if (std::isnan(right) || std::isinf(right)) {
        wrong += std::isnan(right) ? !std::isnan(value) : value != right;
        continue;
      }
      double terms = term_sum(r, o);
      if (s.bias) terms += std::fabs(get(gemm.bias.here, 0, o));
      if (adds) terms += std::fabs(get(residual, r, o));
      // What the bias and the residual were added to, if that was rounded first.
      const float added = adds ? get(residual, r, o) : 0.0f;
      const float before = right - added - (s.bias ? get(gemm.bias.here, 0, o) : 0.0f);
      const double tolerance =
          static_cast<double>(s.inputs + 2) * 0x1p-23 * terms + quantized.of(r, o, terms) +
          precision.ulp * (std::fabs(right) + std::fabs(right - added) + std::fabs(before)) +
          2 * precision.min;
      wrong += !(std::fabs(double{value} - right) <= tolerance);
    }
  }
  return wrong;
}

// Whether two plans are the same, whatever their shapes came from.
inline bool same(const GemmPlan& a, const GemmPlan& b) {
  const auto fields = [](const GemmPlan& p) {
    return std::tie(p.shape, p.kernel, p.prologue, p.prologue_kernel, p.prologue_triggers_early,
                    p.epilogue, p.epilogue_kernel, p.defers_next, p.samples, p.kv_prefetch);
  };
  return fields(a) == fields(b) && a.tiling == b.tiling;
}

inline std::string describe(const GemmShape& shape) {
  return str(name_of(shape.type), " ", shape.m, " x ", shape.inputs, " -> ", shape.outputs, " ",
             name_of(shape.out_type), shape.bias ? " bias" : "", shape.residual ? " residual" : "",
             shape.deferred ? " deferred" : "", shape.defer_next ? " defer_next" : "", " prologue ",
             static_cast<int>(shape.fusion.prologue), " epilogue ",
             static_cast<int>(shape.fusion.epilogue), " ",
             static_cast<int>(shape.fusion.activation), " vectors ", shape.vectors.weight,
             shape.vectors.x, shape.vectors.out);
}

// What a test needs to run GEMMs.
struct Fixture {
  explicit Fixture(Backend& backend)
      : backend(backend), gemm(create_gemm(backend)), stream(backend.create_stream()) {}

  GemmCall call(const GemmArguments& all) {
    return gemm->call(all.weight, all.operands, all.fusion);
  }
  void run(const GemmArguments& all) { gemm->run(call(all), *stream); }
  void run(const GemmTensors& tensors) { run(tensors.arguments()); }
  void tune(const GemmArguments& all) {
    const GemmCall one = call(all);
    gemm->tune(std::span(&one, 1), *stream);
  }

  // Runs a GEMM of random values and says how much of it is wrong.
  void check(const Setting& setting, unsigned seed) {
    INFO(setting.describe());
    GemmTensors tensors(backend, setting, seed);
    Matrix residual(backend, setting.type, setting.m, setting.outputs);
    GemmTensors::copy_values(tensors.residual.here, residual.here);
    tensors.upload(*stream);
    run(tensors);
    tensors.out.fetch(*stream);
    CHECK(tensors.out.touched() == 0);
    if (setting.prologue == Prologue::none) {
      CHECK(count_wrong(tensors, tensors.x.here, residual.here) == 0);
      return;
    }
    tensors.prepared.fetch(*stream);
    CHECK(tensors.prepared.touched() == 0);
    const Matrix x = tensors.prepared_x(backend, *stream);
    CHECK(count_wrong(tensors, x.here, residual.here) == 0);
  }

  // The error text for a GEMM that is refused; else nothing.
  std::string refusal(const GemmArguments& all) {
    try {
      run(all);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  Backend& backend;
  std::unique_ptr<Gemm> gemm;
  std::unique_ptr<Stream> stream;
};

}  // namespace nvllm::kernels::testing
