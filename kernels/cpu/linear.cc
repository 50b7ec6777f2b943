// Products on the CPU: which kernels, and how their work is divided among threads.
#include "kernels/cpu/linear.h"

#include <algorithm>

#include "device/cpu/stream.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/linear_before.h"

namespace nvllm::kernels::cpu {
namespace {

using nvllm::cpu::Crew;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

Product product_of(const Linear& args) {
  return {.out = args.out.data,
          .x = args.x.data,
          .weight = args.weight.data,
          .bias = args.bias.data,
          .residual = args.residual.data,
          .rows = args.out.shape[0],
          .outputs = args.weight.shape[0],
          .inputs = args.weight.shape[1],
          .out_stride = args.out.stride[0],
          .x_stride = args.x.stride[0],
          .residual_stride = args.residual.stride[0],
          .dtype = args.weight.dtype,
          .out_f32 = args.out.dtype == DType::f32};
}

const LinearKernels& kernels_of(InstructionSet set, DType type) {
  const bool bf16 = type == DType::bf16;
  if (bf16 && set == InstructionSet::amx_bf16) return linear_kernels_amx_bf16();
  if (bf16 && set == InstructionSet::avx512_bf16) return linear_kernels_avx512_bf16();
  return set == InstructionSet::avx2 ? linear_kernels_avx2(type) : linear_kernels_avx512(type);
}

class CpuMatmul final : public Matmul {
 public:
  CpuMatmul(Backend& backend, InstructionSet set) : backend_(backend), set_(set) {}

  void linear(const Linear& args, Stream& stream) override {
    check_linear(args);
    enqueue_before(args, stream);
    submit(args, stream);
  }

  void tune(const Linear& args, Stream& stream) override {
    check_linear(args);
    const Product product = product_of(product_after(args));
    stream.synchronize();
    reserve(packed_floats(kernels_of(set_, product.dtype), product));
  }

 private:
  // The one task of a product; small enough for a stream to store in place.
  void submit(const Linear& args, Stream& stream) {
    auto& queue = nvllm::cpu::stream(stream);
    const Product product = product_of(product_after(args));
    const auto task = [this, product, &crew = queue.crew()] { run(product, crew); };
    static_assert(sizeof(task) <= nvllm::cpu::Task::kInlineBytes);
    queue.submit(task);
  }

  static bool few_rows(const Product& product) {
    return product.rows <= LinearKernels::kMaxDotRows || product.inputs == 0;
  }

  static std::int64_t packed_floats(const LinearKernels& kernels, const Product& product) {
    if (few_rows(product)) return LinearKernels::kMaxDotRows * kernels.row_floats(product.inputs);
    return divide_up(product.rows, kernels.panel_rows) * kernels.panel_floats(product.inputs);
  }

  // On the stream's thread, as all that follows.
  void run(const Product& product, Crew& crew) {
    if (product.rows == 0 || product.outputs == 0) return;
    const LinearKernels& kernels = kernels_of(set_, product.dtype);
    reserve(packed_floats(kernels, product));
    if (few_rows(product)) {
      run_dots(kernels, product, crew);
    } else {
      run_blocks(kernels, product, crew);
    }
  }

  void run_dots(const LinearKernels& kernels, const Product& product, Crew& crew) {
    const std::int64_t row_floats = kernels.row_floats(product.inputs);
    const std::size_t row_bytes = product.x_stride * size_of(product.dtype);
    const std::size_t weight_bytes = product.inputs * size_of(product.dtype);
    // A thread takes kPieceBytes of weights at least, which it reads in a few microseconds.
    constexpr std::int64_t kPieceBytes = 32 << 10, kUnit = LinearKernels::kDotOutputs;
    const std::int64_t grain = std::max<std::int64_t>(
        1, kPieceBytes / (kUnit * static_cast<std::int64_t>(weight_bytes) + 1));
    for (std::int64_t first = 0; first < product.rows; first += LinearKernels::kMaxDotRows) {
      const int rows = static_cast<int>(
          std::min<std::int64_t>(product.rows - first, LinearKernels::kMaxDotRows));
      for (int r = 0; r < rows; ++r) {
        kernels.prepare_row(static_cast<const std::byte*>(product.x) + (first + r) * row_bytes,
                            product.inputs, packed() + r * row_floats);
      }
      crew.run(divide_up(product.outputs, kUnit), grain, [&](std::int64_t begin, std::int64_t end) {
        kernels.dot(product, first, rows, packed(), begin * kUnit,
                    std::min(end * kUnit, product.outputs));
      });
    }
  }

  void run_blocks(const LinearKernels& kernels, const Product& product, Crew& crew) {
    const std::int64_t panels = divide_up(product.rows, kernels.panel_rows);
    const std::int64_t panel_floats = kernels.panel_floats(product.inputs);
    crew.run(panels, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t panel = begin; panel < end; ++panel) {
        kernels.pack_panel(product, panel, packed() + panel * panel_floats);
      }
    });
    // Blocks as large as can be, since each packs its weights again for each stretch of panels, but enough
    // of them for all threads; stretches all alike.
    constexpr std::int64_t kLeastOutputs = 32, kTasksPerThread = 3;
    const std::int64_t enough = kTasksPerThread * crew.size();
    std::int64_t stretches = divide_up(panels, kernels.block_panels);
    std::int64_t step = kernels.block_outputs;
    while (step > kLeastOutputs && stretches * divide_up(product.outputs, step) < enough) step /= 2;
    const std::int64_t blocks = divide_up(product.outputs, step);
    stretches = std::clamp(divide_up(enough, blocks), stretches, panels);
    crew.run(stretches * blocks, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t output = i / stretches * step, stretch = i % stretches;
        kernels.block(product, packed(), output, std::min(output + step, product.outputs),
                      panels * stretch / stretches, panels * (stretch + 1) / stretches);
      }
    });
  }

  float* packed() { return static_cast<float*>(workspace_.data()); }

  void reserve(std::int64_t floats) {
    const std::size_t bytes = floats * sizeof(float);
    if (bytes <= workspace_.bytes()) return;
    workspace_ = Buffer();
    workspace_ = backend_.allocate(MemoryKind::device, bytes, "linear: packed activations");
  }

  Backend& backend_;
  const InstructionSet set_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Matmul> create_matmul(Backend& backend, std::optional<InstructionSet> set) {
  const InstructionSet best = instruction_sets().back();
  return std::make_unique<CpuMatmul>(backend, std::min(set.value_or(best), best));
}

}  // namespace nvllm::kernels::cpu
