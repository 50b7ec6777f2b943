// GEMMs on the CPU: which kernels, and how their work is divided among threads.
#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <span>
#include <vector>

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

// All groups as one GEMM, of which group_of() takes a part.
GemmTask task_of(const GroupedGemm& grouped) {
  GemmCall call;
  call.weight = grouped.weight;
  call.operands.out = grouped.out;
  call.operands.x = grouped.x;
  return task_of(call);
}

std::int64_t weight_bytes(const GemmTask& gemm) {  // of an output
  if (!is_quantized(gemm.format))
    return gemm.inputs * static_cast<std::int64_t>(size_of(gemm.dtype));
  return QuantizedShape{gemm.format, gemm.outputs, gemm.inputs, gemm.group}.row_bytes();
}

std::int64_t scale_bytes(const GemmTask& gemm) {  // of an output
  if (!is_quantized(gemm.format)) return 0;
  const QuantizedShape output{gemm.format, 1, gemm.inputs, gemm.group};
  return static_cast<std::int64_t>(output.scale_bytes());
}

const void* at(const void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}

// The GEMM of one group: `outputs` outputs, and the rows [begin, end) of x and out.
GemmTask group_of(const GemmTask& all, std::int64_t group, std::int64_t outputs, std::int64_t begin,
                  std::int64_t end) {
  const auto element = static_cast<std::int64_t>(size_of(all.dtype));
  const std::int64_t first = group * outputs;
  GemmTask gemm = all;
  gemm.out = static_cast<std::byte*>(all.out) + begin * all.out_stride * element;
  gemm.x = at(all.x, begin * all.x_stride * element);
  gemm.weight = at(all.weight, first * weight_bytes(all));
  gemm.scales = at(all.scales, first * scale_bytes(all));
  gemm.bias = at(all.bias, first * element);
  gemm.rows = end - begin;
  gemm.outputs = outputs;
  return gemm;
}

const DotKernels& quantized_dots(InstructionSet set, const GemmTask& gemm) {
  if (set == InstructionSet::avx2) return quantized_dots_avx2(gemm);
  if (gemm.format == WeightFormat::fp8 && set >= InstructionSet::avx512_vnni && has_avx512_vbmi())
    return quantized_dots_avx512_vbmi();
  const bool floats = has_float_values(gemm.format) || gemm.weight_only;
  if (floats || set == InstructionSet::avx512) return quantized_dots_avx512(gemm);
  return quantized_dots_avx512_vnni(gemm.format);
}

const BlockKernels& quantized_blocks(InstructionSet set, const GemmTask& gemm) {
  const bool bf16 = gemm.dtype == DType::bf16;
  if (bf16 && set == InstructionSet::amx_bf16) return quantized_blocks_amx_bf16();
  const bool integers = !has_float_values(gemm.format) && !gemm.weight_only && gemm.group >= 32;
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
  CpuGemm(Backend& backend, std::optional<InstructionSet> set, bool invariant)
      : backend_(backend),
        best_(instruction_sets().back()),
        set_(set ? std::min(*set, best_) : set),
        invariant_(invariant) {}

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

  GroupedFusion fused_in(const GroupedGemm& /*grouped*/) override { return {}; }

  void enqueue_grouped(const GroupedGemm& grouped, Stream& stream) override {
    queue_of(stream).submit([this, all = task_of(grouped), outputs = grouped.outputs(),
                             start = grouped.start.as<const std::int32_t>(),
                             groups = grouped.groups()] {
      run_groups(all, outputs, {start, static_cast<std::size_t>(groups) + 1}, *pool_);
    });
  }

  // There is nothing to choose; but memory that the GEMM needs is there afterwards.
  void measure(std::span<const GemmCall> alike, Stream& stream) override {
    const GemmTask gemm = task_of(alike.front());
    stream.synchronize();
    reserve(packed_floats(kernels_for(gemm), gemm));
  }

 private:
  nvllm::cpu::Stream& queue_of(Stream& stream) {
    nvllm::cpu::Stream& queue = nvllm::cpu::stream(stream);
    if (pool_ == nullptr) pool_ = &queue.thread_pool();
    return queue;
  }

  // The one task of a GEMM; small enough for a stream to store in place.
  void submit(const GemmCall& call, Stream& stream) {
    nvllm::cpu::Stream& queue = queue_of(stream);
    const auto task = [this, gemm = task_of(call)] { run_task(gemm, *pool_); };
    static_assert(sizeof(task) <= nvllm::cpu::Task::kInlineBytes);
    queue.submit(task);
  }

  GemmKernels kernels_for(const GemmTask& gemm) const {
    return set_ ? kernels_of(*set_, gemm) : fastest_kernels(best_, gemm);
  }

  // Blocks add in the order of dot products, but those of quantized weights do not.
  bool as_dots(const GemmTask& gemm) const {
    return gemm.rows <= GemmKernels::kMaxDotRows || gemm.inputs == 0 ||
           (invariant_ && is_quantized(gemm.format));
  }

  std::int64_t packed_floats(const GemmKernels& kernels, const GemmTask& gemm) const {
    if (as_dots(gemm)) return GemmKernels::kMaxDotRows * kernels.row_floats(gemm.inputs);
    return divide_up(gemm.rows, kernels.panel_rows) * kernels.panel_floats(gemm.inputs);
  }

  // On the stream's thread, as all that follows.
  void run_task(const GemmTask& gemm, ThreadPool& pool) {
    if (gemm.rows == 0 || gemm.outputs == 0) return;
    const GemmKernels kernels = kernels_for(gemm);
    reserve(packed_floats(kernels, gemm));
    if (as_dots(gemm)) {
      run_dots(kernels, gemm, pool);
    } else {
      run_blocks(kernels, gemm, pool);
    }
  }

  // The minimum number of pieces of `bytes` bytes, of x or of weights, per thread: what it reads in
  // a few microseconds.
  static std::int64_t piece_grain(std::int64_t bytes) {
    constexpr std::int64_t kPieceBytes = 32 << 10;
    return std::max<std::int64_t>(1, kPieceBytes / (bytes + 1));
  }

  void run_dots(const GemmKernels& kernels, const GemmTask& gemm, ThreadPool& pool) {
    constexpr std::int64_t kOutputs = GemmKernels::kDotOutputs,
                           kInputs = GemmKernels::kPrepareInputs;
    const auto x_bytes = static_cast<std::int64_t>(size_of(gemm.dtype)) * kInputs;
    for (std::int64_t first = 0; first < gemm.rows; first += GemmKernels::kMaxDotRows) {
      const int rows =
          static_cast<int>(std::min<std::int64_t>(gemm.rows - first, GemmKernels::kMaxDotRows));
      pool.run(divide_up(gemm.inputs, kInputs), piece_grain(x_bytes * rows),
               [&](std::int64_t begin, std::int64_t end) {
                 kernels.prepare(gemm, first, rows, begin * kInputs,
                                 std::min(end * kInputs, gemm.inputs), packed());
               });
      pool.run(divide_up(gemm.outputs, kOutputs), piece_grain(kOutputs * weight_bytes(gemm)),
               [&](std::int64_t begin, std::int64_t end) {
                 kernels.dot(gemm, first, rows, packed(), begin * kOutputs,
                             std::min(end * kOutputs, gemm.outputs));
               });
    }
  }

  static constexpr std::int64_t kPreparedRows = 512;  // of groups that go together

  // Groups of few rows go together, so that threads wait for each other once, not once per group;
  // each of the others is a GEMM of its own.
  void run_groups(const GemmTask& all, std::int64_t outputs, std::span<const std::int32_t> start,
                  ThreadPool& pool) {
    const GemmKernels kernels = kernels_for(all);
    std::vector<GemmTask> together;
    std::int64_t rows = 0;
    for (std::size_t group = 0; group + 1 < start.size(); ++group) {
      if (start[group] == start[group + 1]) continue;
      const GemmTask gemm =
          group_of(all, static_cast<std::int64_t>(group), outputs, start[group], start[group + 1]);
      if (gemm.rows > GemmKernels::kMaxDotRows) {
        run_task(gemm, pool);
        continue;
      }
      if (rows + kernels.prepared_rows(gemm.rows) > kPreparedRows) {
        run_dots_together(kernels, together, pool);
        together.clear();
        rows = 0;
      }
      together.push_back(gemm);
      rows += kernels.prepared_rows(gemm.rows);
    }
    if (!together.empty()) run_dots_together(kernels, together, pool);
  }

  // GEMMs of one shape but for their rows, of which each has few.
  void run_dots_together(const GemmKernels& kernels, std::span<const GemmTask> gemms,
                         ThreadPool& pool) {
    constexpr std::int64_t kOutputs = GemmKernels::kDotOutputs;
    const std::int64_t row_floats = kernels.row_floats(gemms.front().inputs),
                       outputs = gemms.front().outputs, pieces = divide_up(outputs, kOutputs);
    std::vector<std::int64_t> prepared;  // where each one's rows are in packed()
    std::int64_t rows = 0;
    for (const GemmTask& gemm : gemms) {
      prepared.push_back(rows * row_floats);
      rows += kernels.prepared_rows(gemm.rows);
    }
    reserve(rows * row_floats);
    const auto count = static_cast<std::int64_t>(gemms.size());
    const std::int64_t prepares = gemms.front().inputs > 0 ? count : 0;
    pool.run(prepares, piece_grain(weight_bytes(gemms.front())),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t i = begin; i < end; ++i) {
                 const GemmTask& gemm = gemms[i];
                 kernels.prepare(gemm, 0, static_cast<int>(gemm.rows), 0, gemm.inputs,
                                 packed() + prepared[i]);
               }
             });
    pool.run(count * pieces, piece_grain(kOutputs * weight_bytes(gemms.front())),
             [&](std::int64_t begin, std::int64_t end) {
               while (begin < end) {  // the pieces of one GEMM
                 const std::int64_t i = begin / pieces, first = begin % pieces;
                 const std::int64_t last = std::min(pieces, first + end - begin);
                 kernels.dot(gemms[i], 0, static_cast<int>(gemms[i].rows), packed() + prepared[i],
                             first * kOutputs, std::min(last * kOutputs, outputs));
                 begin += last - first;
               }
             });
  }

  void run_blocks(const GemmKernels& kernels, const GemmTask& gemm, ThreadPool& pool) {
    const std::int64_t panel_floats = kernels.panel_floats(gemm.inputs);
    pool.run(divide_up(gemm.rows, kernels.panel_rows), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t panel = begin; panel < end; ++panel) {
        kernels.pack_panel(gemm, panel, packed() + panel * panel_floats);
      }
    });
    // Some blocks per cell, so that a thread that finishes early can help. They are ordered by
    // cell: a thread's share is a cell.
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
  const bool invariant_;
  ThreadPool* pool_ = nullptr;  // of the streams that it is used with
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Gemm> create_gemm(Backend& backend, std::optional<InstructionSet> set,
                                  bool invariant) {
  return std::make_unique<CpuGemm>(backend, set, invariant);
}

}  // namespace nvllm::kernels::cpu
