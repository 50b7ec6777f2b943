#include <algorithm>
#include <cmath>

#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm80/gemv.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::int64_t kMaxRows = 16;

// Every block repeats an RMSNorm in the same kernel, which costs less than a kernel of its own only
// for so many elements of x, and only where all blocks run at once; but up to 8 rows also where a
// warp has its part of them in registers.
constexpr std::int64_t kMaxNormRows = 4, kMaxNormElements = 8192;
constexpr std::int64_t kMaxNormRowsInRegisters = 8;

constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// --- which instance of the kernel, and which share of the outputs a block gets
// ---------------------

struct Instance {
  int tiles, slices, warps, blocks;  // as the kernel's parameters
};

struct Plan {
  int share = 0;                   // outputs of a block
  bool all_run = false;            // all blocks run at once
  bool loads_all_at_once = false;  // and load all of the weight at once
  double efficiency = -1;          // an estimate of the share of the bandwidth that is reached
};

// The estimate's constants, fitted to measurements of 13 shapes on an H200.
constexpr double kBytesInFlight = 72 << 10;  // per multiprocessor, that hide the memory's latency
constexpr double kStartRounds = 0.3;         // the cost of a block's start, in rounds
constexpr int kManyWaves = 3;                // of blocks, so that their ends no longer matter

// So many outputs per block that multiprocessors get about equally many.
int balanced_share(int outputs, int max_share, int multiprocessors) {
  if (ceil_div(outputs, max_share) > 4 * multiprocessors) return max_share;
  int best = max_share, min_outputs = outputs + max_share;
  for (int share = max_share; share > max_share / 2; --share) {
    const int busiest = ceil_div(ceil_div(outputs, share), multiprocessors) * share;
    if (busiest < min_outputs) min_outputs = busiest, best = share;
  }
  return best;
}

// gated: `outputs` and the share are of gates, of which each comes with another output.
Plan plan_of(const Instance& instance, int outputs, int inputs, bool gated, int multiprocessors) {
  const int slices = ceil_div(inputs, kSliceInputs);
  const int in_a_round = instance.slices * instance.warps;
  const int rounds = ceil_div(slices, in_a_round);
  const double filled = static_cast<double>(slices) / (rounds * in_a_round);
  const int width = gated ? 2 : 1;
  const int max_share = instance.tiles * kTileOutputs / width;
  const int resident_blocks = instance.blocks * multiprocessors;
  if (rounds == 1 && ceil_div(outputs, max_share) <= resident_blocks) {
    return {max_share, true, true, filled};
  }
  Plan plan;
  plan.share = balanced_share(outputs, max_share, multiprocessors);
  const int blocks = ceil_div(outputs, plan.share);
  plan.all_run = blocks <= resident_blocks;
  const int at_once = plan.all_run ? multiprocessors : resident_blocks;
  const bool many = blocks > kManyWaves * resident_blocks;
  const double spread =
      many ? 1.0 : static_cast<double>(blocks) / (ceil_div(blocks, at_once) * at_once);
  const double started = many ? 1.0 : rounds / (rounds + kStartRounds);
  const int neighbours = std::min(instance.blocks, ceil_div(blocks, multiprocessors));
  const double in_flight =
      static_cast<double>(neighbours) * in_a_round * plan.share * width * kSliceInputs * 2;
  plan.efficiency =
      filled * spread * started * std::sqrt(std::min(1.0, in_flight / kBytesInFlight));
  return plan;
}

template <int... kParameters>
struct InstanceOf;
template <int kTiles, int kSlices, int kWarps, int kBlocks>
struct InstanceOf<kTiles, kSlices, kWarps, kBlocks> {
  static constexpr Instance value{kTiles, kSlices, kWarps, kBlocks};

  template <typename T, Prepare kPrepare, bool kGated, int kMaxRows>
  static auto kernel() {
    return &gemv_kernel<T, kPrepare, kGated, kMaxRows, kTiles, kSlices, kWarps, kBlocks>;
  }
};

// Of instances that are estimated to be equally good the first is taken.
template <typename... Instances>
struct Choice {
  static Plan best(int outputs, int inputs, bool gated, int multiprocessors, int* which) {
    Plan best;
    int index = 0;
    const auto consider = [&](const Instance& instance) {
      const Plan plan = plan_of(instance, outputs, inputs, gated, multiprocessors);
      if (plan.efficiency > best.efficiency + 0.005) best = plan, *which = index;
      ++index;
    };
    (consider(Instances::value), ...);
    return best;
  }

  // Calls function(instance) for instance number `which`.
  template <typename Function>
  static void with(int which, Function&& function) {
    int index = 0;
    ((index++ == which ? function(Instances{}) : void()), ...);
  }
};

using UpTo4Rows = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<3, 4, 16, 1>, InstanceOf<1, 5, 8, 4>,
                         InstanceOf<2, 6, 16, 1>, InstanceOf<2, 8, 8, 2>>;
// With more rows 64 blocks of 16 outputs were faster than 43 of 24, with fewer the other way round.
using UpTo8Rows = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<2, 4, 16, 1>, InstanceOf<3, 4, 16, 1>,
                         InstanceOf<1, 5, 8, 4>, InstanceOf<2, 6, 16, 1>, InstanceOf<2, 8, 8, 2>>;
using UpTo16Rows = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<1, 4, 16, 1>, InstanceOf<1, 6, 16, 1>,
                          InstanceOf<1, 4, 16, 2>, InstanceOf<2, 5, 8, 2>>;
using WithNorm = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<3, 4, 16, 1>, InstanceOf<2, 6, 16, 1>>;
using WithNormAtOnce = Choice<InstanceOf<6, 4, 8, 1>, InstanceOf<3, 4, 8, 2>,
                              InstanceOf<3, 4, 16, 1>, InstanceOf<2, 6, 16, 1>>;

// --- launching
// -------------------------------------------------------------------------------------

template <typename T, Prepare kPrepare, bool kGated, int kMaxRows, typename Instances>
void launch(const GemmParams<T>& p, int multiprocessors, bool early, cudaStream_t stream) {
  int which = 0;
  const Plan plan = Instances::best(p.outputs, p.inputs, kGated, multiprocessors, &which);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.share)));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  if (kPrepare == Prepare::norm_in_shared) {
    config.dynamicSmemBytes = normed_shared_bytes(p.rows, p.inputs);
  }
  Instances::with(which, [&](auto instance) {
    config.blockDim = dim3(instance.value.warps * 32);
    const auto kernel = instance.template kernel<T, kPrepare, kGated, kMaxRows>();
    nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p, plan.share, plan.loads_all_at_once),
                       "launching a GEMV");
  });
}

// The columns of out.
int out_columns(const GemmShape& shape) {
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  return static_cast<int>(gated ? shape.outputs / 2 : shape.outputs);
}

template <typename Instances>
Plan plan_of(const GemmShape& shape, int multiprocessors) {
  int which = 0;
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  return Instances::best(out_columns(shape), static_cast<int>(shape.inputs), gated, multiprocessors,
                         &which);
}

// Calls function.template operator()<kMaxRows, Instances>() with those for M without prologue.
template <typename Function>
auto with_instances(std::int64_t m, const Function& function) {
  if (m <= 4) return function.template operator()<8, UpTo4Rows>();
  if (m <= 8) return function.template operator()<8, UpTo8Rows>();
  return function.template operator()<16, UpTo16Rows>();
}

}  // namespace

Gemv::Gemv()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      early_(nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {}

bool Gemv::takes(const GemmShape& shape) const {
  const GemmFusion& fusion = shape.fusion;
  if (shape.type == DType::f32 || shape.m > kMaxRows || shape.inputs == 0) return false;
  if (fusion.epilogue == Epilogue::gated_activation && fusion.activation != Activation::silu)
    return false;
  if (!shape.vectors.weight || !shape.vectors.x) return false;
  return fusion.prologue == Prologue::none ||
         (fusion.prologue == Prologue::rms_norm && takes_norm(shape));
}

bool Gemv::norm_in_registers(const GemmShape& shape) const {
  return shape.m <= kMaxNormRowsInRegisters &&
         plan_of<WithNormAtOnce>(shape, multiprocessors_).loads_all_at_once;
}

bool Gemv::takes_norm(const GemmShape& shape) const {
  if (!shape.vectors.norm_weight) return false;
  if (norm_in_registers(shape)) return true;
  const Plan plan = plan_of<WithNorm>(shape, multiprocessors_);
  return plan.all_run && shape.m <= kMaxNormRows && shape.m * shape.inputs <= kMaxNormElements;
}

bool Gemv::loads_all_at_once(const GemmShape& shape) const {
  return with_instances(shape.m, [&]<int, typename Instances>() {
    return plan_of<Instances>(shape, multiprocessors_).loads_all_at_once;
  });
}

template <typename T>
void Gemv::enqueue_as(const GemmCall& call, Stream& stream) const {
  const GemmParams<T> p(call);
  const auto enqueue = [&]<Prepare kPrepare, bool kGated, int kMaxRowsOf, typename Instances>() {
    launch<T, kPrepare, kGated, kMaxRowsOf, Instances>(p, multiprocessors_, early_,
                                                       nvllm::cuda::native(stream));
  };
  const auto enqueue_gated_or_not = [&]<bool kGated>() {
    if (is_normed(call)) {
      if (norm_in_registers(call.plan.shape)) {
        return enqueue.template operator()<Prepare::norm_in_registers, kGated, 8, WithNormAtOnce>();
      }
      return enqueue.template operator()<Prepare::norm_in_shared, kGated, 8, WithNorm>();
    }
    with_instances(p.rows, [&]<int kMaxRowsOf, typename Instances>() {
      enqueue.template operator()<Prepare::nothing, kGated, kMaxRowsOf, Instances>();
    });
  };
  is_gated(call) ? enqueue_gated_or_not.template operator()<true>()
                 : enqueue_gated_or_not.template operator()<false>();
}

void Gemv::enqueue(const GemmCall& call, Stream& stream) const {
  if (call.weight.format == WeightFormat::bf16) return enqueue_as<Bf16>(call, stream);
  enqueue_as<F16>(call, stream);
}

}  // namespace nvllm::kernels::cuda
