// Grouped GEMMs on the GPU: the kernels, and which of them computes what. Where groups begin is
// read on the device alone; what is launched depends on shapes only, so it can be in a graph.
#pragma once

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm80/quantized_gemm.h"

namespace nvllm::kernels::cuda {

enum class GroupedKernel : std::uint8_t {
  dot,         // what no other kernel takes: sm80/grouped_dot.cu
  few_rows,    // bound by the reading of the weights: sm80/grouped_few_rows.cuh
  tiles,       // tensor cores, tiles of 64 rows: sm80/grouped_tiles.cuh
  wgmma,       // Hopper's tensor cores, tiles of 128 rows: sm90/grouped_wgmma.cuh
  quantized,   // few rows, quantized weights: sm80/grouped_quantized.cuh
  small_m,     // few rows on Hopper: sm90/grouped_small_m.cuh
  fp8,         // fp8 weights in blocks by rows that become fp8, Hopper: sm90/grouped_fp8.cu
  dequantize,  // some groups' weights become floats in a workspace, for one of the others
};

class GroupedGemms {
 public:
  // quantized: has the workspace. invariant: the kernel does not depend on M.
  GroupedGemms(QuantizedGemm& quantized, bool invariant);
  GroupedFusion fused_in(const GroupedGemm& grouped);
  void enqueue(const GroupedGemm& grouped, Stream& stream);
  // Of both, if that is faster than one by one: what gate_up makes can be handed over in fp8, or
  // down can read weights while gate_up is at work; else false.
  bool enqueue_mlp(const GroupedGemm& gate_up, const GroupedGemm& down, Stream& stream);

 private:
  GroupedKernel kernel_of(const GroupedGemm& grouped) const;
  // Whether there are more groups than a kernel with tensor cores takes at once, and no other one
  // may take their place.
  bool in_parts(const GroupedGemm& grouped) const;
  // With the weights of as many of the first groups as there is room for as floats.
  GroupedGemm as_floats(const GroupedGemm& grouped);
  static void enqueue(GroupedKernel kernel, const GroupedGemm& grouped, Stream& stream);
  void enqueue_dequantized(const GroupedGemm& grouped, Stream& stream);
  void enqueue_fp8(const GroupedGemm& grouped, Stream& stream);

  QuantizedGemm& quantized_;
  bool is_hopper_, invariant_;
};

// The kernels; each takes what GroupedGemms chooses it for.
void grouped_dot(const GroupedGemm& grouped, Stream& stream);
void grouped_few_rows(const GroupedGemm& grouped, Stream& stream);
void grouped_quantized(const GroupedGemm& grouped, Stream& stream);
void grouped_tiles(const GroupedGemm& grouped, Stream& stream);
void grouped_wgmma(const GroupedGemm& grouped, Stream& stream);
// start_is_old: `start` was there before the kernel before this one began.
void grouped_small_m(const GroupedGemm& grouped, bool start_is_old, Stream& stream);
// Whether grouped_small_m has room for such groups on a multiprocessor.
bool has_room_small_m(const GroupedGemm& grouped);
// Of rows [first, first + count). x: these rows; or all, if they are gathered. out: where a gated
// activation's results go as rows in fp8; values == nullptr: they go to grouped.out.
void grouped_fp8(const GroupedGemm& grouped, const Fp8Rows& x, std::int64_t first,
                 std::int64_t count, const Fp8Rows& out, Stream& stream);

}  // namespace nvllm::kernels::cuda
