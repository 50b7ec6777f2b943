#include <algorithm>
#include <cmath>

#include "device/cuda/stream.h"
#include "kernels/gemm/sm80/matvec.cuh"
#include "kernels/gemm/sm80/matvec.h"

namespace nvllm::kernels::cuda {
namespace {

using Before = Linear::Before;

// RMSNorm in the same kernel, which every block does again, costs less than a kernel of its own only
// for so many elements of x, and only where all blocks run at once; but up to 8 rows also where a warp
// has its part of them in registers.
constexpr std::int64_t kMaxNormRows = 4, kMaxNormElements = 8192;
constexpr std::int64_t kMaxNormRowsInRegisters = 8;

constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// --- which instance of the kernel, and which share of the outputs a block gets ----------------------

struct Instance {
  int tiles, slices, warps, blocks;  // as the kernel's parameters
};

struct Plan {
  int share = 0;              // outputs of a block
  bool all_run = false;       // all blocks run at once
  bool asks_for_all = false;  // and ask for all of the matrix at once
  double efficiency = -1;     // an estimate of the share of the bandwidth that is reached
};

// The estimate's constants, fitted to measurements of 13 shapes on an H200.
constexpr double kBytesOnTheWay = 72 << 10;  // per multiprocessor, that hide the memory's latency
constexpr double kStartRounds = 0.3;         // what it costs a block to start, in rounds
constexpr int kManyWaves = 3;                // of blocks, so that their ends no longer matter

// So many outputs per block that multiprocessors get about equally many.
int balanced_share(int outputs, int most, int multiprocessors) {
  if (ceil_div(outputs, most) > 4 * multiprocessors) return most;
  int best = most, least = outputs + most;
  for (int share = most; share > most / 2; --share) {
    const int busiest = ceil_div(ceil_div(outputs, share), multiprocessors) * share;
    if (busiest < least) least = busiest, best = share;
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
  const int most = instance.tiles * kTileOutputs / width;
  const int places = instance.blocks * multiprocessors;
  if (rounds == 1 && ceil_div(outputs, most) <= places) {
    return {most, true, true, filled};
  }
  Plan plan;
  plan.share = balanced_share(outputs, most, multiprocessors);
  const int blocks = ceil_div(outputs, plan.share);
  plan.all_run = blocks <= places;
  const int at_once = plan.all_run ? multiprocessors : places;
  const bool many = blocks > kManyWaves * places;
  const double spread =
      many ? 1.0 : static_cast<double>(blocks) / (ceil_div(blocks, at_once) * at_once);
  const double started = many ? 1.0 : rounds / (rounds + kStartRounds);
  const int neighbours = std::min(instance.blocks, ceil_div(blocks, multiprocessors));
  const double on_the_way =
      static_cast<double>(neighbours) * in_a_round * plan.share * width * kSliceInputs * 2;
  plan.efficiency =
      filled * spread * started * std::sqrt(std::min(1.0, on_the_way / kBytesOnTheWay));
  return plan;
}

template <int... kParameters>
struct InstanceOf;
template <int kTiles, int kSlices, int kWarps, int kBlocks>
struct InstanceOf<kTiles, kSlices, kWarps, kBlocks> {
  static constexpr Instance value{kTiles, kSlices, kWarps, kBlocks};

  template <typename T, Prepare kPrepare, bool kGated, int kMaxRows>
  static auto kernel() {
    return &matvec_kernel<T, kPrepare, kGated, kMaxRows, kTiles, kSlices, kWarps, kBlocks>;
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

// --- launching --------------------------------------------------------------------------------------

template <typename T, Prepare kPrepare, bool kGated, int kMaxRows, typename Instances>
void launch(const LinearParams<T>& p, int multiprocessors, bool early, cudaStream_t stream) {
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
    nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p, plan.share, plan.asks_for_all),
                       "launching linear");
  });
}

template <typename Instances>
Plan plan_of(const Linear& args, int multiprocessors) {
  int which = 0;
  return Instances::best(static_cast<int>(args.out.shape[1]),
                         static_cast<int>(args.weight.shape[1]), is_gated(args), multiprocessors,
                         &which);
}

// Calls function.template operator()<kMaxRows, Instances>() with those for so many rows and nothing before them.
template <typename Function>
auto with_instances(std::int64_t rows, const Function& function) {
  if (rows <= 4) return function.template operator()<8, UpTo4Rows>();
  if (rows <= 8) return function.template operator()<8, UpTo8Rows>();
  return function.template operator()<16, UpTo16Rows>();
}

}  // namespace

Matvec::Matvec()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      early_(nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {}

bool Matvec::takes(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  if (args.weight.dtype == DType::f32 || rows > kMatvecMaxRows || inputs == 0) return false;
  if (is_gated(args) && args.activation != Activation::silu) return false;
  if (!whole_vectors(args.weight) || !whole_vectors(args.x)) return false;
  return args.before == Before::nothing || (args.before == Before::rms_norm && takes_norm(args));
}

bool Matvec::norm_in_registers(const Linear& args) const {
  return args.out.shape[0] <= kMaxNormRowsInRegisters &&
         plan_of<WithNormAtOnce>(args, multiprocessors_).asks_for_all;
}

bool Matvec::takes_norm(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  if (!whole_vectors(args.norm_weight)) return false;
  if (norm_in_registers(args)) return true;
  const Plan plan = plan_of<WithNorm>(args, multiprocessors_);
  return plan.all_run && rows <= kMaxNormRows && rows * inputs <= kMaxNormElements;
}

bool Matvec::asks_for_all(const Linear& args) const {
  return with_instances(args.out.shape[0], [&]<int, typename Instances>() {
    return plan_of<Instances>(args, multiprocessors_).asks_for_all;
  });
}

template <typename T>
void Matvec::enqueue_as(const Linear& args, Stream& stream) const {
  const LinearParams<T> p(args);
  const auto enqueue = [&]<Prepare kPrepare, bool kGated, int kMaxRows, typename Instances>() {
    launch<T, kPrepare, kGated, kMaxRows, Instances>(p, multiprocessors_, early_,
                                                     nvllm::cuda::native(stream));
  };
  const auto enqueue_gated_or_not = [&]<bool kGated>() {
    if (args.before == Before::rms_norm) {
      if (norm_in_registers(args)) {
        return enqueue.template operator()<Prepare::norm_in_registers, kGated, 8, WithNormAtOnce>();
      }
      return enqueue.template operator()<Prepare::norm_in_shared, kGated, 8, WithNorm>();
    }
    with_instances(p.rows, [&]<int kMaxRows, typename Instances>() {
      enqueue.template operator()<Prepare::nothing, kGated, kMaxRows, Instances>();
    });
  };
  is_gated(args) ? enqueue_gated_or_not.template operator()<true>()
                 : enqueue_gated_or_not.template operator()<false>();
}

void Matvec::enqueue(const Linear& args, Stream& stream) const {
  if (args.weight.dtype == DType::bf16) return enqueue_as<Bf16>(args, stream);
  enqueue_as<F16>(args, stream);
}

}  // namespace nvllm::kernels::cuda
