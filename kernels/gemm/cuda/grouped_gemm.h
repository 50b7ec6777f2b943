// Grouped GEMMs on the GPU: the kernels and their selection. Group boundaries are read only on the
// device; the launches depend on shapes alone, so they can be captured in a graph.
#pragma once

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm80/entry_points.h"

namespace nvllm::kernels::cuda {

enum class GroupedKernel : std::uint8_t {
  dot,         // the fallback: sm80/dot.cu
  few_rows,    // bound by reading the weights: sm80/grouped_gemv.cuh
  tiles,       // tensor cores, tiles of 64 rows: sm80/grouped_tiles.cu
  wgmma,       // Hopper's tensor cores, tiles of 128 rows: sm90/grouped_wgmma.cuh
  quantized,   // few rows, quantized weights: sm80/grouped_quantized.cuh
  small_m,     // few rows on Hopper: sm90/grouped_small_m.cuh
  fp8,         // fp8 weights in blocks by rows quantized to fp8, Hopper: sm90/grouped_fp8.cu
  dequantize,  // some groups' weights are dequantized into a workspace, for one of the others
};

class GroupedGemmRunner {
 public:
  // quantized: owns the workspace. invariant: the kernel does not depend on M.
  GroupedGemmRunner(QuantizedGemm& quantized, bool invariant);
  GroupedFusion fused_in(const GroupedGemm& grouped);
  void enqueue(const GroupedGemm& grouped, Stream& stream);
  // Enqueues both, if that is faster than separately: the output of gate_up can be passed in fp8,
  // or down can load weights while gate_up runs; otherwise returns false.
  bool enqueue_mlp(const GroupedGemm& gate_up, const GroupedGemm& down, Stream& stream);

 private:
  GroupedKernel kernel_of(const GroupedGemm& grouped) const;
  // Whether there are more groups than a tensor-core kernel takes at once, and no other kernel may
  // be used instead.
  bool in_parts(const GroupedGemm& grouped) const;
  // Dequantizes the weights of as many of the first groups as fit into the workspace.
  GroupedGemm as_floats(const GroupedGemm& grouped);
  static void enqueue(GroupedKernel kernel, const GroupedGemm& grouped, Stream& stream);
  void enqueue_dequantized(const GroupedGemm& grouped, Stream& stream);
  void enqueue_fp8(const GroupedGemm& grouped, Stream& stream);

  QuantizedGemm& quantized_;
  bool runs_sm90a_, invariant_;
};

// The kernels; each supports what GroupedGemmRunner selects it for.
void grouped_dot(const GroupedGemm& grouped, Stream& stream);
void grouped_gemv(const GroupedGemm& grouped, Stream& stream);
void grouped_quantized(const GroupedGemm& grouped, Stream& stream);
void grouped_tiles(const GroupedGemm& grouped, Stream& stream);
void grouped_wgmma(const GroupedGemm& grouped, Stream& stream);
// start_is_visible: `start` was written before the previous kernel began.
void grouped_small_m(const GroupedGemm& grouped, bool start_is_visible, Stream& stream);
// Whether such groups fit grouped_small_m's shared memory.
bool has_room_small_m(const GroupedGemm& grouped);
// Computes rows [first, first + count). x: these rows; or all, if they are gathered. out: receives
// a gated activation's results as fp8 rows; values == nullptr: they go to grouped.out.
void grouped_fp8(const GroupedGemm& grouped, const Fp8Rows& x, std::int64_t first,
                 std::int64_t count, const Fp8Rows& out, Stream& stream);

}  // namespace nvllm::kernels::cuda
