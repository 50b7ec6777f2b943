// The experts of one row against a plain definition in double, with the roundings between the
// operations. GPUs alone have kernels for it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/moe/moe.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

struct Shape {
  std::int64_t experts, k, columns, inner;
  DType type;
  WeightFormat format;  // of a float: as the type
  bool norm = false, residual = false, shared = false, bias = false, renormalize = false;
  Activation activation = Activation::silu;

  std::string describe() const {
    return str(experts, " experts, ", k, " of them, ", columns, " -> ", inner, " ", name_of(type),
               " ", name_of(format), norm ? " norm" : "", residual ? " residual" : "",
               shared ? " shared" : "", bias ? " bias" : "", renormalize ? " renormalized" : "",
               " activation ", static_cast<int>(activation));
  }
};

constexpr float kLimit = 2, kEpsilon = 1e-5f;

class Case {
 public:
  Case(Backend& backend, const Shape& shape, std::mt19937& random)
      : backend_(backend),
        stream_(backend.create_stream()),
        shape_(shape),
        gemm_(create_gemm(backend, {.quantized = true})),
        x_(backend, shape.type, 1, shape.columns),
        norm_weight_(backend, shape.type, 1, shape.columns),
        residual_(backend, shape.type, 1, shape.columns),
        shared_(backend, shape.type, 1, shape.columns),
        out_(backend, shape.type, 1, shape.columns),
        logits_(backend, DType::f32, 1, shape.experts),
        gate_(backend, DType::f32, 1, 1),
        activated_(backend, shape.type, shape.k, shape.inner),
        gate_up_(backend, type_of_weights(), shape.experts * 2 * shape.inner, shape.columns),
        down_(backend, type_of_weights(), shape.experts * shape.columns, shape.inner),
        gate_up_bias_(backend, shape.type, 1, shape.experts * 2 * shape.inner),
        down_bias_(backend, shape.type, 1, shape.experts * shape.columns) {
    x_.fill(random, 0, 1);
    norm_weight_.fill(random, 1, 0.2f);
    logits_.fill(random, 0, 2);
    for (Matrix* each : {&residual_, &shared_, &gate_, &gate_up_bias_, &down_bias_})
      each->fill(random, 0, 1);
    for (Matrix* each : {&gate_up_, &down_}) each->fill(random, 0, 0.1f);
    for (Matrix* each : {&out_, &activated_}) each->fill(random, std::nanf(""), 0);
    if (is_quantized(shape.format)) {
      packed_gate_up_.emplace(backend, setting(gate_up_), random, gate_up_).upload(*stream_);
      packed_down_.emplace(backend, setting(down_), random, down_).upload(*stream_);
    }
    for (Matrix* each : {&x_, &norm_weight_, &residual_, &shared_, &out_, &logits_, &gate_,
                         &activated_, &gate_up_, &down_, &gate_up_bias_, &down_bias_}) {
      each->upload(*stream_);
    }
    stream_->synchronize();
  }

  SingleTokenMoe args() const {
    SingleTokenMoe args{
        .out = out_.there,
        .x = x_.there,
        .logits = logits_.there,
        .gate_up =
            packed_gate_up_ ? packed_gate_up_->there() : GemmWeight{.values = gate_up_.there},
        .down = packed_down_ ? packed_down_->there() : GemmWeight{.values = down_.there},
        .k = shape_.k,
        .renormalize = shape_.renormalize,
        .activation = shape_.activation,
        .limit = kLimit,
        .activated = activated_.there,
        .epsilon = kEpsilon};
    if (shape_.norm) args.norm_weight = vector_of(norm_weight_.there);
    if (shape_.residual) args.residual = residual_.there;
    if (shape_.shared) args.shared = shared_.there, args.shared_gate = gate_.there;
    if (shape_.bias) {
      args.gate_up.bias = vector_of(gate_up_bias_.there);
      args.down.bias = vector_of(down_bias_.there);
    }
    return args;
  }

  bool taken() const { return takes_single_token(backend_.kind(), args()); }

  // How many results are further from the definition than roundings explain.
  int count_wrong() {
    single_token_moe(args(), *stream_);
    out_.fetch(*stream_);
    CHECK(out_.touched() == 0);
    return compare();
  }

 private:
  DType type_of_weights() const { return is_quantized(shape_.format) ? DType::f32 : shape_.type; }
  Setting setting(const Matrix& weight) const {
    return {.outputs = weight.here.shape[0],
            .inputs = weight.here.shape[1],
            .type = shape_.type,
            .quantized = {shape_.format, shape_.format == WeightFormat::fp8 ? kFp8Group : 32}};
  }
  double rounded(double value) const {
    const auto number = static_cast<float>(value);
    return shape_.type == DType::bf16 ? double{to_float(from_float<Bf16>(number))}
                                      : double{to_float(from_float<F16>(number))};
  }

  struct Choice {
    std::int64_t expert;
    double weight;
  };
  std::vector<Choice> choices() const {
    std::vector<Choice> all;
    double sum = 0;
    for (std::int64_t expert = 0; expert < shape_.experts; ++expert) {
      all.push_back({expert, std::exp(double{get(logits_.here, 0, expert)})});
      sum += all.back().weight;
    }
    std::ranges::stable_sort(all,
                             [](const Choice& a, const Choice& b) { return a.weight > b.weight; });
    all.resize(static_cast<std::size_t>(shape_.k));
    double some = 0;
    for (const Choice& choice : all) some += choice.weight;
    for (Choice& choice : all) choice.weight /= shape_.renormalize ? some : sum;
    return all;
  }

  std::vector<double> read() const {
    std::vector<double> row;
    double squares = 0;
    for (std::int64_t i = 0; i < shape_.columns; ++i) {
      row.push_back(get(x_.here, 0, i));
      squares += row.back() * row.back();
    }
    if (!shape_.norm) return row;
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(shape_.columns) + double{kEpsilon});
    for (std::int64_t i = 0; i < shape_.columns; ++i) {
      double& value = row[static_cast<std::size_t>(i)];
      value = rounded(value * scale * get(norm_weight_.here, 0, i));
    }
    return row;
  }

  struct Sum {
    double value = 0, terms = 0;  // terms: sum of magnitudes
  };
  static Sum row_sum(const Matrix& weight, std::int64_t output, const std::vector<double>& x) {
    Sum sum;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double term = x[i] * get(weight.here, output, static_cast<std::int64_t>(i));
      sum.value += term, sum.terms += std::fabs(term);
    }
    return sum;
  }
  double bias(const Matrix& of, std::int64_t output) const {
    return shape_.bias ? get(of.here, 0, output) : 0;
  }
  double activate(double gate, double up) const {
    if (shape_.activation == Activation::silu) return rounded(gate / (1 + std::exp(-gate)) * up);
    const double open = std::min(gate, double{kLimit});
    const double through = std::clamp(up, -double{kLimit}, double{kLimit});
    return rounded(open / (1 + std::exp(-kClampedSwigluAlpha * open)) * (through + 1));
  }
  std::vector<double> activated(std::int64_t expert, const std::vector<double>& x) const {
    std::vector<double> row;
    for (std::int64_t i = 0; i < shape_.inner; ++i) {
      const std::int64_t gate = expert * 2 * shape_.inner + i, up = gate + shape_.inner;
      row.push_back(activate(rounded(row_sum(gate_up_, gate, x).value + bias(gate_up_bias_, gate)),
                             rounded(row_sum(gate_up_, up, x).value + bias(gate_up_bias_, up))));
    }
    return row;
  }

  int compare() const {
    const std::vector<double> x = read();
    const double ulp = precision_of(shape_.type).ulp;
    std::vector<Sum> sums(static_cast<std::size_t>(shape_.columns));
    for (const auto& [expert, weight] : choices()) {
      const std::vector<double> row = activated(expert, x);
      for (std::int64_t i = 0; i < shape_.columns; ++i) {
        const std::int64_t output = expert * shape_.columns + i;
        const Sum of_expert = row_sum(down_, output, row);
        const double value = of_expert.value + bias(down_bias_, output);
        sums[static_cast<std::size_t>(i)].value += weight * rounded(value);
        // What is activated is off by some roundings of what it comes from.
        sums[static_cast<std::size_t>(i)].terms +=
            weight * ulp * (2 * of_expert.terms + std::fabs(value));
      }
    }
    int wrong = 0;
    for (std::int64_t i = 0; i < shape_.columns; ++i) {
      auto [value, off] = sums[static_cast<std::size_t>(i)];
      if (shape_.shared)
        value += get(shared_.here, 0, i) / (1 + std::exp(-double{get(gate_.here, 0, 0)}));
      off += ulp * std::fabs(value);
      if (shape_.residual) value += get(residual_.here, 0, i);
      off += ulp * std::fabs(value) + precision_of(shape_.type).min;
      wrong += !(std::fabs(get(out_.here, 0, i) - value) <= off);
    }
    return wrong;
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  Shape shape_;
  std::unique_ptr<Gemm> gemm_;
  Matrix x_, norm_weight_, residual_, shared_, out_, logits_, gate_, activated_, gate_up_, down_,
      gate_up_bias_, down_bias_;
  std::optional<PackedWeight> packed_gate_up_, packed_down_;
};

constexpr Shape kSmall{.experts = 4,
                       .k = 2,
                       .columns = 64,
                       .inner = 32,
                       .type = DType::bf16,
                       .format = WeightFormat::bf16};

void check(Backend& backend, const Shape& shape, std::mt19937& random) {
  INFO(shape.describe());
  Case tested(backend, shape, random);
  REQUIRE(tested.taken());
  CHECK(tested.count_wrong() == 0);
}

TEST_CASE("the experts of one row are what their definition says") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("the CPU has no kernels for one row");
  std::mt19937 random(21);
  for (int i = 0; i < 60; ++i) {
    const bool bf16 = random() % 2 == 0;
    Shape shape{.experts = static_cast<std::int64_t>(1 + random() % 40),
                .k = 0,
                .columns = static_cast<std::int64_t>(8 * (1 + random() % 60)),
                .inner = static_cast<std::int64_t>(8 * (1 + random() % 40)),
                .type = bf16 ? DType::bf16 : DType::f16,
                .format = std::array{bf16 ? WeightFormat::bf16 : WeightFormat::f16,
                                     WeightFormat::fp8, WeightFormat::mxfp4}[random() % 3]};
    shape.k = static_cast<std::int64_t>(1 + random() % std::min<std::int64_t>(shape.experts, 16));
    shape.norm = random() % 2 == 0, shape.residual = random() % 2 == 0;
    shape.shared = random() % 3 == 0, shape.bias = random() % 3 == 0;
    shape.renormalize = random() % 2 == 0;
    if (random() % 3 == 0) shape.activation = Activation::clamped_swiglu;
    check(*backend, shape, random);
  }
}

TEST_CASE("the experts of one row, of more experts than a few and with longer rows") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("the CPU has no kernels for one row");
  std::mt19937 random(22);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8, WeightFormat::mxfp4}) {
    for (const auto& [experts, k, columns, inner] : {std::array<std::int64_t, 4>{128, 8, 512, 192},
                                                     {300, 10, 128, 64},
                                                     {4, 4, 720, 1440},
                                                     {8, 2, 256, 3584},
                                                     {16, 16, 1024, 520},
                                                     // Hopper's own kernels have no room for these.
                                                     {16, 16, 256, 1536}}) {
      const Shape shape{.experts = experts,
                        .k = k,
                        .columns = columns,
                        .inner = inner,
                        .type = DType::bf16,
                        .format = format,
                        .norm = true,
                        .residual = true};
      check(*backend, shape, random);
    }
  }
}

TEST_CASE("which experts of one row are taken") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(23);
  const bool has_kernels = backend->kind() == DeviceKind::cuda;
  CHECK(Case(*backend, kSmall, random).taken() == has_kernels);
  SingleTokenMoe args = Case(*backend, kSmall, random).args();
  args.activation = Activation::gelu_tanh;
  CHECK_FALSE(takes_single_token(backend->kind(), args));
  args.activation = Activation::silu;
  args.down.format = WeightFormat::int8;
  CHECK_FALSE(takes_single_token(backend->kind(), args));
}

TEST_CASE("the experts of one row refuse what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(24);
  const Case tested(*backend, kSmall, random);
  const auto with = [&](const auto& change) {
    SingleTokenMoe args = tested.args();
    change(args);
    return refusal(*backend, [&](Stream& stream) { single_token_moe(args, stream); });
  };
  CHECK(with([](SingleTokenMoe& args) { args.k = 5; }) ==
        "single_token_moe: k is 5 of 4 experts; it must be from 1 to 4, of 1024 experts at most");
  CHECK(with([](SingleTokenMoe& args) {
          args.activated.shape[0] = 3;
        }).starts_with("single_token_moe: activated is"));
  CHECK(
      with([](SingleTokenMoe& args) {
        args.down.values.shape[0] = 65;
      }).starts_with("single_token_moe: gate_up is bfloat16 [256, 64] and down bfloat16 [65, 32]"));
}

}  // namespace
}  // namespace nvllm::kernels::testing
