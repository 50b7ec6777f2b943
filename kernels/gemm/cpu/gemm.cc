// Products on the CPU: which kernels, and how their work is divided among threads.
#include "kernels/gemm/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "device/cpu/stream.h"
#include "kernels/gemm/cpu/linear_kernels.h"
#include "kernels/gemm/linear_before.h"

namespace nvllm::kernels::cpu {
namespace {

using nvllm::cpu::ThreadPool;

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

// How the rows and outputs of a product are divided: into cells as even as can be, one per thread.
struct Grid {
  std::int64_t row_cells, output_cells;
  std::int64_t rows, outputs;  // of a cell, at most

  Grid(const LinearKernels& kernels, const Product& product, std::int64_t row_cells,
       std::int64_t output_cells)
      : row_cells(row_cells),
        output_cells(output_cells),
        rows(share(product.rows, kernels.unit_rows, row_cells)),
        outputs(share(product.outputs, kernels.unit_outputs, output_cells)) {}

  std::int64_t cells() const { return row_cells * output_cells; }

  // A cell's, in products of two rows.
  std::int64_t cost(const LinearKernels& kernels) const {
    return rows * outputs + rows * kernels.row_cost + outputs * kernels.output_cost;
  }

  static Grid cheapest(const LinearKernels& kernels, const Product& product, int threads) {
    const std::int64_t most_rows = divide_up(product.rows, kernels.unit_rows);
    const std::int64_t most_outputs = divide_up(product.outputs, kernels.unit_outputs);
    Grid best(kernels, product, 1, 1);
    for (std::int64_t row_cells = std::min<std::int64_t>(threads, most_rows); row_cells > 0;
         --row_cells) {
      const Grid grid(kernels, product, row_cells, std::min(threads / row_cells, most_outputs));
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

class CpuMatmul final : public Matmul {
 public:
  CpuMatmul(Backend& backend, InstructionSet set) : backend_(backend), set_(set) {}

  void linear(const Linear& args, Stream& stream) override {
    check_linear(args);
    NVLLM_CHECK(!kernels::begins_norm(args), "no norm can be begun here");
    enqueue_before(args, stream);
    submit(args, stream);
    enqueue_after(args, stream);
  }

  void tune(std::span<const Linear> alike, Stream& stream) override {
    for (const Linear& args : alike) check_linear(args);
    const Product product = product_of(product_after(alike.front()));
    stream.synchronize();
    reserve(packed_floats(kernels_of(set_, product.dtype), product));
  }

 private:
  // The one task of a product; small enough for a stream to store in place.
  void submit(const Linear& args, Stream& stream) {
    auto& queue = nvllm::cpu::stream(stream);
    const Product product = product_of(product_after(args));
    const auto task = [this, product, &pool = queue.thread_pool()] { run(product, pool); };
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
  void run(const Product& product, ThreadPool& pool) {
    if (product.rows == 0 || product.outputs == 0) return;
    const LinearKernels& kernels = kernels_of(set_, product.dtype);
    reserve(packed_floats(kernels, product));
    if (few_rows(product)) {
      run_dots(kernels, product, pool);
    } else {
      run_blocks(kernels, product, pool);
    }
  }

  void run_dots(const LinearKernels& kernels, const Product& product, ThreadPool& pool) {
    // A thread takes kPieceBytes of x or of weights at least, which it reads in a few microseconds.
    constexpr std::int64_t kPieceBytes = 32 << 10, kOutputs = LinearKernels::kDotOutputs,
                           kInputs = LinearKernels::kPrepareInputs;
    const std::int64_t size = size_of(product.dtype);
    const auto grain = [&](std::int64_t elements) {
      return std::max<std::int64_t>(1, kPieceBytes / (elements * size + 1));
    };
    for (std::int64_t first = 0; first < product.rows; first += LinearKernels::kMaxDotRows) {
      const int rows = static_cast<int>(
          std::min<std::int64_t>(product.rows - first, LinearKernels::kMaxDotRows));
      pool.run(divide_up(product.inputs, kInputs), grain(kInputs * rows),
               [&](std::int64_t begin, std::int64_t end) {
                 kernels.prepare(product, first, rows, begin * kInputs,
                                 std::min(end * kInputs, product.inputs), packed());
               });
      pool.run(divide_up(product.outputs, kOutputs), grain(kOutputs * product.inputs),
               [&](std::int64_t begin, std::int64_t end) {
                 kernels.dot(product, first, rows, packed(), begin * kOutputs,
                             std::min(end * kOutputs, product.outputs));
               });
    }
  }

  void run_blocks(const LinearKernels& kernels, const Product& product, ThreadPool& pool) {
    const std::int64_t panel_floats = kernels.panel_floats(product.inputs);
    pool.run(divide_up(product.rows, kernels.panel_rows),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t panel = begin; panel < end; ++panel) {
                 kernels.pack_panel(product, panel, packed() + panel * panel_floats);
               }
             });
    // Some blocks per cell, so that who is done early can help. They come cell by cell: a thread's share is
    // a cell.
    constexpr std::int64_t kLeastBlocks = 3;
    const Grid grid = Grid::cheapest(kernels, product, pool.size());
    const std::int64_t blocks =
        std::max(divide_up(grid.outputs, kernels.block_outputs),
                 std::min(kLeastBlocks, divide_up(grid.outputs, kernels.unit_outputs)));
    pool.run(grid.cells() * blocks, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t cell = i / blocks;
        run_block(kernels, product, grid, cell / grid.output_cells,
                  cell % grid.output_cells * blocks + i % blocks, grid.output_cells * blocks);
      }
    });
  }

  // Block `block` of `blocks` of the outputs, for all rows of a cell.
  void run_block(const LinearKernels& kernels, const Product& product, const Grid& grid,
                 std::int64_t row_cell, std::int64_t block, std::int64_t blocks) {
    const auto output = [&](std::int64_t i) {
      return Grid::border(product.outputs, kernels.unit_outputs, blocks, i);
    };
    const auto row = [&](std::int64_t i) {
      return Grid::border(product.rows, kernels.unit_rows, grid.row_cells, i);
    };
    const std::int64_t begin = output(block), end = output(block + 1);
    if (begin == end) return;
    for (std::int64_t first = row(row_cell), last = row(row_cell + 1); first < last;
         first += kernels.block_rows) {
      kernels.block(product, packed(), begin, end, first,
                    std::min<std::int64_t>(last - first, kernels.block_rows));
    }
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
