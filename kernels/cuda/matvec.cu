#include <algorithm>
#include <cmath>

#include "device/cuda/stream.h"
#include "kernels/cuda/matvec.cuh"
#include "kernels/cuda/matvec.h"

namespace nvllm::kernels::cuda {
namespace {

using Before = Linear::Before;

// RMSNorm in the same kernel, which every block does again, costs less than a kernel of its own only
// for so many elements of x, and only where all blocks run at once.
constexpr std::int64_t kMaxNormRows = 4, kMaxNormElements = 8192;

// SiLU in the same kernel, which every block does again, likewise; of one row it always does.
constexpr int kMaxActivatedRows = 4;

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

Plan plan_of(const Instance& instance, int outputs, int inputs, int multiprocessors) {
  const int slices = ceil_div(inputs, kSliceInputs);
  const int in_a_round = instance.slices * instance.warps;
  const int rounds = ceil_div(slices, in_a_round);
  const double filled = static_cast<double>(slices) / (rounds * in_a_round);
  const int most = instance.tiles * kTileOutputs;
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
      static_cast<double>(neighbours) * in_a_round * plan.share * kSliceInputs * 2;
  plan.efficiency =
      filled * spread * started * std::sqrt(std::min(1.0, on_the_way / kBytesOnTheWay));
  return plan;
}

template <int... kParameters>
struct InstanceOf;
template <int kTiles, int kSlices, int kWarps, int kBlocks>
struct InstanceOf<kTiles, kSlices, kWarps, kBlocks> {
  static constexpr Instance value{kTiles, kSlices, kWarps, kBlocks};

  template <typename T, Linear::Before kBefore, int kMaxRows>
  static auto kernel() {
    return &matvec_kernel<T, kBefore, kMaxRows, kTiles, kSlices, kWarps, kBlocks>;
  }
};

// Of instances that are estimated to be equally good the first is taken.
template <typename... Instances>
struct Choice {
  static Plan best(int outputs, int inputs, int multiprocessors, int* which) {
    Plan best;
    int index = 0;
    const auto consider = [&](const Instance& instance) {
      const Plan plan = plan_of(instance, outputs, inputs, multiprocessors);
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

using UpTo8Rows = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<3, 4, 16, 1>, InstanceOf<1, 5, 8, 4>,
                         InstanceOf<2, 6, 16, 1>, InstanceOf<2, 8, 8, 2>>;
using UpTo16Rows = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<1, 4, 16, 2>, InstanceOf<2, 5, 8, 2>>;
using WithNorm = Choice<InstanceOf<3, 4, 8, 2>, InstanceOf<3, 4, 16, 1>, InstanceOf<2, 6, 16, 1>>;
using WithActivation = WithNorm;

// --- launching --------------------------------------------------------------------------------------

template <typename T, Linear::Before kBefore, int kMaxRows, typename Instances>
void launch(const LinearParams<T>& p, int multiprocessors, bool early, cudaStream_t stream) {
  int which = 0;
  const Plan plan = Instances::best(p.outputs, p.inputs, multiprocessors, &which);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.share)));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  if (kBefore == Before::rms_norm) {
    config.dynamicSmemBytes = normed_shared_bytes(p.rows, p.inputs);
  }
  Instances::with(which, [&](auto instance) {
    config.blockDim = dim3(instance.value.warps * 32);
    nvllm::cuda::check(cudaLaunchKernelEx(&config, instance.template kernel<T, kBefore, kMaxRows>(),
                                          p, plan.share, plan.asks_for_all),
                       "launching linear");
  });
}

template <typename Instances>
Plan plan_of(const Linear& args, int multiprocessors) {
  int which = 0;
  return Instances::best(static_cast<int>(args.out.shape[1]),
                         static_cast<int>(args.weight.shape[1]), multiprocessors, &which);
}

bool whole_vectors(const TensorView& tensor) {
  const bool rows_aligned = tensor.rank == 1 || tensor.shape[0] <= 1 || tensor.stride[0] % 8 == 0;
  return tensor.aligned(16) && tensor.shape[tensor.rank - 1] % 8 == 0 && rows_aligned;
}

}  // namespace

Matvec::Matvec()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      early_(nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {}

bool Matvec::takes(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  if (args.weight.dtype == DType::f32 || rows > kMatvecMaxRows || inputs == 0) return false;
  if (args.after != Linear::After::nothing) return false;
  if (!whole_vectors(args.weight) || !whole_vectors(args.x)) return false;
  switch (args.before) {
    case Before::nothing: return true;
    case Before::rms_norm: return takes_norm(args);
    case Before::gated_activation: return takes_activation(args);
  }
  return false;
}

bool Matvec::takes_norm(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0], inputs = args.weight.shape[1];
  if (rows > kMaxNormRows || rows * inputs > kMaxNormElements) return false;
  return whole_vectors(args.norm_weight) && plan_of<WithNorm>(args, multiprocessors_).all_run;
}

bool Matvec::takes_activation(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0];
  if (args.activation != Activation::silu || rows > kMaxActivatedRows) return false;
  return rows == 1 || plan_of<WithActivation>(args, multiprocessors_).all_run;
}

bool Matvec::asks_for_all(const Linear& args) const {
  const bool few = args.out.shape[0] <= 8;
  const Plan plan = few ? plan_of<UpTo8Rows>(args, multiprocessors_)
                        : plan_of<UpTo16Rows>(args, multiprocessors_);
  return plan.asks_for_all;
}

template <typename T>
void Matvec::enqueue_as(const Linear& args, Stream& stream) const {
  const LinearParams<T> p(args);
  const auto enqueue = [&]<Before kBefore, int kMaxRows, typename Instances>() {
    launch<T, kBefore, kMaxRows, Instances>(p, multiprocessors_, early_,
                                            nvllm::cuda::native(stream));
  };
  switch (args.before) {
    case Before::rms_norm: return enqueue.template operator()<Before::rms_norm, 8, WithNorm>();
    case Before::gated_activation: {
      constexpr Before kGated = Before::gated_activation;
      if (p.rows == 1) return enqueue.template operator()<kGated, 1, WithActivation>();
      if (p.rows == 2) return enqueue.template operator()<kGated, 2, WithActivation>();
      return enqueue.template operator()<kGated, kMaxActivatedRows, WithActivation>();
    }
    case Before::nothing: break;
  }
  if (p.rows <= 8) return enqueue.template operator()<Before::nothing, 8, UpTo8Rows>();
  enqueue.template operator()<Before::nothing, 16, UpTo16Rows>();
}

void Matvec::enqueue(const Linear& args, Stream& stream) const {
  if (args.weight.dtype == DType::bf16) return enqueue_as<Bf16>(args, stream);
  enqueue_as<F16>(args, stream);
}

}  // namespace nvllm::kernels::cuda
