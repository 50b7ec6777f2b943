// GEMMs on the CPU: which kernels, and how their work is divided among threads.
#include <algorithm>

#include "device/cpu/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/cpu/gemm_kernels.h"
#include "kernels/gemm/gemm_steps.h"

namespace nvllm::kernels::cpu {
namespace {

using nvllm::cpu::ThreadPool;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

GemmTask task_of(const GemmCall& call) {
  const TensorView out = out_of(call), x = x_of(call);
  const TensorView& residual = call.operands.residual;
  return {.out = out.data,
          .x = x.data,
          .weight = call.weight.values.data,
          .bias = call.weight.bias.data,
          .residual = residual.data,
          .rows = out.shape[0],
          .outputs = call.weight.outputs(),
          .inputs = call.weight.inputs(),
          .out_stride = out.stride[0],
          .x_stride = x.stride[0],
          .residual_stride = residual.stride[0],
          .dtype = call.weight.type(),
          .out_f32 = out.dtype == DType::f32,
          .format = call.weight.format,
          .weight_only = call.weight.quantized.weight_only,
          .group = static_cast<std::int32_t>(call.weight.quantized.group),
          .scales = call.weight.quantized.scales.data};
}

const DotKernels& quantized_dots(InstructionSet set, const GemmTask& gemm) {
  if (set == InstructionSet::avx2) return quantized_dots_avx2(gemm);
  if (gemm.format == WeightFormat::fp8 && set >= InstructionSet::avx512_vnni && has_avx512_vbmi())
    return quantized_dots_avx512_vbmi();
  const bool floats = gemm.format == WeightFormat::fp8 || gemm.weight_only;
  if (floats || set == InstructionSet::avx512) return quantized_dots_avx512(gemm);
  return quantized_dots_avx512_vnni(gemm.format);
}

const BlockKernels& quantized_blocks(InstructionSet set, const GemmTask& gemm) {
  const bool bf16 = gemm.dtype == DType::bf16;
  if (bf16 && set == InstructionSet::amx_bf16) return quantized_blocks_amx_bf16();
  const bool integers = gemm.format != WeightFormat::fp8 && !gemm.weight_only && gemm.group >= 32;
  if (integers && set >= InstructionSet::avx512_vnni)
    return quantized_blocks_avx512_vnni(gemm.format);
  if (bf16 && set == InstructionSet::avx512_bf16) return quantized_blocks_avx512_bf16();
  return set == InstructionSet::avx2 ? quantized_blocks_avx2(gemm.dtype)
                                     : quantized_blocks_avx512(gemm.dtype);
}

// Whether a processor multiplies pairs of bfloat16 (AVX512-BF16) at half the rate of floats, as
// Intel's do that have AMX. A hypervisor may hide AMX.
bool has_slow_bf16_pairs() {
  return __builtin_cpu_is("intel") > 0;
}

const GemmKernels& float_kernels(InstructionSet set, DType type) {
  const bool bf16 = type == DType::bf16;
  if (bf16 && set == InstructionSet::amx_bf16) return gemm_kernels_amx_bf16();
  if (bf16 && set == InstructionSet::avx512_bf16) return gemm_kernels_avx512_bf16();
  return set == InstructionSet::avx2 ? gemm_kernels_avx2(type) : gemm_kernels_avx512(type);
}

GemmKernels kernels_of(InstructionSet set, const GemmTask& gemm) {
  if (!is_quantized(gemm.format)) return float_kernels(set, gemm.dtype);
  return {quantized_dots(set, gemm), quantized_blocks(set, gemm)};
}

// The fastest of a processor whose best set this is.
GemmKernels fastest_kernels(InstructionSet best, const GemmTask& gemm) {
  const bool bf16 = !is_quantized(gemm.format) && gemm.dtype == DType::bf16;
  if (bf16 && best == InstructionSet::avx512_bf16 && has_slow_bf16_pairs())
    return gemm_kernels_avx512(DType::bf16);
  return kernels_of(best, gemm);
}

std::int64_t weight_bytes(const GemmTask& gemm) {  // of an output
  if (!is_quantized(gemm.format))
    return gemm.inputs * static_cast<std::int64_t>(size_of(gemm.dtype));
  return QuantizedShape{gemm.format, gemm.outputs, gemm.inputs, gemm.group}.row_bytes();
}

// How the rows and outputs of a gemm are divided: into cells as even as can be, one per thread.
struct Grid {
  std::int64_t row_cells, output_cells;
  std::int64_t rows, outputs;  // of a cell, at most

  Grid(const GemmKernels& kernels, const GemmTask& gemm, std::int64_t row_cells,
       std::int64_t output_cells)
      : row_cells(row_cells),
        output_cells(output_cells),
        rows(share(gemm.rows, kernels.unit_rows, row_cells)),
        outputs(share(gemm.outputs, kernels.unit_outputs, output_cells)) {}

  std::int64_t cells() const { return row_cells * output_cells; }

  // A cell's, in dot products of two rows.
  std::int64_t cost(const GemmKernels& kernels) const {
    return rows * outputs + rows * kernels.row_cost + outputs * kernels.output_cost;
  }

  static Grid cheapest(const GemmKernels& kernels, const GemmTask& gemm, int threads) {
    const std::int64_t max_row_cells = divide_up(gemm.rows, kernels.unit_rows);
    const std::int64_t max_output_cells = divide_up(gemm.outputs, kernels.unit_outputs);
    Grid best(kernels, gemm, 1, 1);
    for (std::int64_t row_cells = std::min<std::int64_t>(threads, max_row_cells); row_cells > 0;
         --row_cells) {
      const Grid grid(kernels, gemm, row_cells, std::min(threads / row_cells, max_output_cells));
      if (grid.cost(kernels) < best.cost(kernels)) best = grid;
    }
    return best;
  }

  // Where part i of `parts` of `count` begins: at a multiple of `unit`, or the end.
  static std::int64_t border(std::int64_t count, std::int64_t unit, std::int64_t parts,
                             std::int64_t i) {
    return std::min(count, divide_up(count, unit) * i / parts * unit);
  }

 private:
  static std::int64_t share(std::int64_t count, std::int64_t unit, std::int64_t parts) {
    return divide_up(divide_up(count, unit), parts) * unit;
  }
};

class CpuGemm final : public Gemm {
 public:
  // Without a set: what is fastest on this processor.
  CpuGemm(Backend& backend, std::optional<InstructionSet> set)
      : backend_(backend),
        best_(instruction_sets().back()),
        set_(set ? std::min(*set, best_) : set) {}

 protected:
  // Prologues and epilogues are kernels of their own.
  GemmPlan make_plan(const GemmShape& shape) override {
    const GemmFusion& fusion = shape.fusion;
    return {.shape = shape,
            .kernel = GemmKernel::cpu,
            .prologue = fusion.prologue,
            .prologue_kernel = fusion.prologue != Prologue::none,
            .epilogue = fusion.epilogue,
            .epilogue_kernel = fusion.epilogue != Epilogue::none,
            .tiling = {}};
  }

  void enqueue(const GemmCall& call, Stream& stream) override {
    if (call.plan.prologue == Prologue::rms_norm) rms_norm(norm_of(call), stream);
    if (call.plan.prologue == Prologue::gated_activation) {
      gated_activation(prologue_activation(call), stream);
    }
    submit(call, stream);
    if (call.plan.epilogue_kernel) gated_activation(epilogue_activation(call), stream);
  }

  // There is nothing to choose; but memory that the GEMM needs is there afterwards.
  void measure(std::span<const GemmCall> alike, Stream& stream) override {
    const GemmTask gemm = task_of(alike.front());
    stream.synchronize();
    reserve(packed_floats(kernels_for(gemm), gemm));
  }

 private:
  // The one task of a GEMM; small enough for a stream to store in place.
  void submit(const GemmCall& call, Stream& stream) {
    auto& queue = nvllm::cpu::stream(stream);
    if (pool_ == nullptr) pool_ = &queue.thread_pool();
    const auto task = [this, gemm = task_of(call)] { run_task(gemm, *pool_); };
    static_assert(sizeof(task) <= nvllm::cpu::Task::kInlineBytes);
    queue.submit(task);
  }

  GemmKernels kernels_for(const GemmTask& gemm) const {
    return set_ ? kernels_of(*set_, gemm) : fastest_kernels(best_, gemm);
  }

  static bool few_rows(const GemmTask& gemm) {
    return gemm.rows <= GemmKernels::kMaxDotRows || gemm.inputs == 0;
  }

  static std::int64_t packed_floats(const GemmKernels& kernels, const GemmTask& gemm) {
    if (few_rows(gemm)) return GemmKernels::kMaxDotRows * kernels.row_floats(gemm.inputs);
    return divide_up(gemm.rows, kernels.panel_rows) * kernels.panel_floats(gemm.inputs);
  }

  // On the stream's thread, as all that follows.
  void run_task(const GemmTask& gemm, ThreadPool& pool) {
    if (gemm.rows == 0 || gemm.outputs == 0) return;
    const GemmKernels kernels = kernels_for(gemm);
    reserve(packed_floats(kernels, gemm));
    if (few_rows(gemm)) {
      run_dots(kernels, gemm, pool);
    } else {
      run_blocks(kernels, gemm, pool);
    }
  }

  void run_dots(const GemmKernels& kernels, const GemmTask& gemm, ThreadPool& pool) {
    // A thread takes kPieceBytes of x or of weights at least, which it reads in a few microseconds.
    constexpr std::int64_t kPieceBytes = 32 << 10, kOutputs = GemmKernels::kDotOutputs,
                           kInputs = GemmKernels::kPrepareInputs;
    const auto grain = [&](std::int64_t bytes) {
      return std::max<std::int64_t>(1, kPieceBytes / (bytes + 1));
    };
    const auto x_bytes = static_cast<std::int64_t>(size_of(gemm.dtype)) * kInputs;
    for (std::int64_t first = 0; first < gemm.rows; first += GemmKernels::kMaxDotRows) {
      const int rows =
          static_cast<int>(std::min<std::int64_t>(gemm.rows - first, GemmKernels::kMaxDotRows));
      pool.run(divide_up(gemm.inputs, kInputs), grain(x_bytes * rows),
               [&](std::int64_t begin, std::int64_t end) {
                 kernels.prepare(gemm, first, rows, begin * kInputs,
                                 std::min(end * kInputs, gemm.inputs), packed());
               });
      pool.run(divide_up(gemm.outputs, kOutputs), grain(kOutputs * weight_bytes(gemm)),
               [&](std::int64_t begin, std::int64_t end) {
                 kernels.dot(gemm, first, rows, packed(), begin * kOutputs,
                             std::min(end * kOutputs, gemm.outputs));
               });
    }
  }

  void run_blocks(const GemmKernels& kernels, const GemmTask& gemm, ThreadPool& pool) {
    const std::int64_t panel_floats = kernels.panel_floats(gemm.inputs);
    pool.run(divide_up(gemm.rows, kernels.panel_rows), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t panel = begin; panel < end; ++panel) {
        kernels.pack_panel(gemm, panel, packed() + panel * panel_floats);
      }
    });
    // Some blocks per cell, so that who is done early can help. They come cell by cell: a thread's
    // share is a cell.
    constexpr std::int64_t kMinBlocks = 3;
    const Grid grid = Grid::cheapest(kernels, gemm, pool.size());
    const std::int64_t blocks =
        std::max(divide_up(grid.outputs, kernels.block_outputs),
                 std::min(kMinBlocks, divide_up(grid.outputs, kernels.unit_outputs)));
    pool.run(grid.cells() * blocks, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t cell = i / blocks;
        run_block(kernels, gemm, grid, cell / grid.output_cells,
                  cell % grid.output_cells * blocks + i % blocks, grid.output_cells * blocks);
      }
    });
  }

  // Block `block` of `blocks` of the outputs, for all rows of a cell.
  void run_block(const GemmKernels& kernels, const GemmTask& gemm, const Grid& grid,
                 std::int64_t row_cell, std::int64_t block, std::int64_t blocks) {
    const auto output = [&](std::int64_t i) {
      return Grid::border(gemm.outputs, kernels.unit_outputs, blocks, i);
    };
    const auto row = [&](std::int64_t i) {
      return Grid::border(gemm.rows, kernels.unit_rows, grid.row_cells, i);
    };
    const std::int64_t begin = output(block), end = output(block + 1);
    if (begin == end) return;
    for (std::int64_t first = row(row_cell), last = row(row_cell + 1); first < last;
         first += kernels.block_rows) {
      kernels.block(gemm, packed(), begin, end, first,
                    std::min<std::int64_t>(last - first, kernels.block_rows));
    }
  }

  float* packed() { return static_cast<float*>(workspace_.data()); }

  void reserve(std::int64_t floats) {
    const std::size_t bytes = floats * sizeof(float);
    if (bytes <= workspace_.bytes()) return;
    workspace_ = Buffer();
    workspace_ = backend_.allocate(MemoryKind::device, bytes, "GEMM: packed activations");
  }

  Backend& backend_;
  const InstructionSet best_;
  const std::optional<InstructionSet> set_;
  ThreadPool* pool_ = nullptr;  // of the streams that it is used with
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Gemm> create_gemm(Backend& backend, std::optional<InstructionSet> set) {
  return std::make_unique<CpuGemm>(backend, set);
}

}  // namespace nvllm::kernels::cpu
