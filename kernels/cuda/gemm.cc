#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "device/cublaslt.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/linear.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = kMatmulBytes;
constexpr int kCandidates = 16;    // more than the heuristic proposes, so far
constexpr std::size_t kField = 8;  // of the candidates, measured with more care

void check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail(what, ": cuBLASLt status ", static_cast<int>(status));
}

// The stages that Hopper's own kernels choose for themselves, and what was fast with them.
constexpr std::uint32_t kHopperStages = CUBLASLT_MATMUL_STAGES_64xAUTO;
constexpr std::uint32_t kShortTiles[] = {
    CUBLASLT_MATMUL_TILE_64x256,  CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_256x64,
    CUBLASLT_MATMUL_TILE_96x128,  CUBLASLT_MATMUL_TILE_160x128, CUBLASLT_MATMUL_TILE_96x192,
    CUBLASLT_MATMUL_TILE_104x128, CUBLASLT_MATMUL_TILE_152x128, CUBLASLT_MATMUL_TILE_168x128,
    CUBLASLT_MATMUL_TILE_176x128};
constexpr std::uint16_t kShortClusters[] = {
    CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1};

template <typename T>
void configure(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which,
               T value) {
  // A value that the algorithm does not have is found by the check that follows.
  cublasLtMatmulAlgoConfigSetAttribute(&algorithm, which, &value, sizeof value);
}

cudaDataType_t cuda_type(DType type) {
  switch (type) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_16F;
  }
}

// The largest power of two, at most 256, that divides an address.
std::int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::int64_t>(address & -address);
}

// Elements from one row to the next; of a single row any, so the least.
std::int64_t row_stride(const TensorView& tensor) {
  return tensor.shape[0] > 1 ? tensor.stride[0] : tensor.shape[1];
}

template <typename T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof value),
        "describing a product");
}

template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name,
         T value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value),
        "describing what to choose by");
}

void describe(cublasLtMatrixLayoutOpaque_t& layout, const TensorView& tensor) {
  check(cublasLtMatrixLayoutInit(&layout, cuda_type(tensor.dtype),
                                 static_cast<std::uint64_t>(tensor.shape[1]),
                                 static_cast<std::uint64_t>(tensor.shape[0]), row_stride(tensor)),
        "describing a matrix");
}

// On any thread.
cublasLtHandle_t create_handle(int device) {
  nvllm::cuda::check(cudaSetDevice(device), "choosing the device");
  if (const char* why = load_cublaslt()) fail("loading cuBLASLt: ", why);
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "starting cuBLASLt");
  return handle;
}

int current_device() {
  int device = 0;
  nvllm::cuda::check(cudaGetDevice(&device), "asking for the device");
  return device;
}

}  // namespace

GemmProblem::GemmProblem(const Linear& args)
    : type(cuda_type(args.weight.dtype)),
      out_type(cuda_type(args.out.dtype)),
      weight_data(args.weight.data),
      x_data(args.x.data),
      residual_data(args.residual.data != nullptr ? args.residual.data : args.out.data),
      out_data(args.out.data),
      beta(args.residual.data != nullptr ? 1.0f : 0.0f) {
  // float32 is float32: no TF32.
  check(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (args.bias.data != nullptr) {
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set<const void*>(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data);
  }
  describe(weight, args.weight);
  describe(x, args.x);
  describe(out, args.out);
  describe(residual, args.residual.data != nullptr ? args.residual : args.out);
}

bool GemmProblem::possible(const Linear& args) {
  const bool adds = args.bias.data != nullptr || args.residual.data != nullptr;
  return args.weight.shape[1] > 0 && (!adds || args.out.dtype == args.weight.dtype);
}

cublasStatus_t GemmProblem::enqueue(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                                    void* workspace, std::size_t workspace_bytes,
                                    cudaStream_t stream) {
  const float alpha = 1;
  return cublasLtMatmul(handle, &product, &alpha, weight_data, &weight, x_data, &x, &beta,
                        residual_data, &residual, out_data, &out, &algorithm, workspace,
                        workspace_bytes, stream);
}

std::vector<cublasLtMatmulAlgo_t> GemmProblem::candidates(cublasLtHandle_t handle,
                                                          std::size_t workspace_bytes, int count) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(cublasLtMatmulPreferenceInit(&preference), "describing what to choose by");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Partial sums are never rounded to 16 bits.
  set<std::uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                     CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t name, const void* data) {
    set<std::uint32_t>(preference, name, static_cast<std::uint32_t>(alignment_of(data)));
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, weight_data);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_data);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, residual_data);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_data);

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &product, &weight, &x, &residual, &out, &preference, count, results.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS) found = 0;  // there is none
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  return algorithms;
}

std::vector<cublasLtMatmulAlgo_t> GemmProblem::shortlist(cublasLtHandle_t handle,
                                                         std::size_t workspace_bytes) {
  int ids[64], count = 0;
  check(cublasLtMatmulAlgoGetIds(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, out_type,
                                 out_type, 64, ids, &count),
        "asking for algorithms");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  const auto add = [&](cublasLtMatmulAlgo_t algorithm, std::uint32_t tile, std::uint16_t cluster,
                       std::uint32_t swizzle) {
    configure(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
    configure<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, kHopperStages);
    configure(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster);
    configure(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, &product, &weight, &x, &residual,
                                                          &out, &algorithm, &result);
    const bool fits = status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
    if (fits) algorithms.push_back(algorithm);
  };
  for (int i = 0; i < count; ++i) {
    cublasLtMatmulAlgo_t algorithm{};
    if (cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, out_type,
                               out_type, ids[i], &algorithm) != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    for (const std::uint32_t tile : kShortTiles) {
      for (const std::uint16_t cluster : kShortClusters) {
        for (const std::uint32_t swizzle : {0u, 1u}) add(algorithm, tile, cluster, swizzle);
      }
    }
  }
  return algorithms;
}

Gemm::Shape::Shape(const Linear& args)
    : type(args.weight.dtype),
      out_type(args.out.dtype),
      bias(args.bias.data != nullptr),
      residual(args.residual.data != nullptr),
      outputs(args.weight.shape[0]),
      inputs(args.weight.shape[1]),
      x_stride(row_stride(args.x)),
      out_stride(row_stride(args.out)),
      residual_stride(residual ? row_stride(args.residual) : 0),
      x_alignment(alignment_of(args.x.data)),
      weight_alignment(alignment_of(args.weight.data)),
      out_alignment(alignment_of(args.out.data)),
      residual_alignment(alignment_of(args.residual.data)),
      rows(args.out.shape[0]) {}

bool Gemm::Shape::like(const Shape& other) const {
  Shape copy = other;
  copy.rows = rows;
  return copy == *this;
}

Gemm::Gemm(Backend& backend)
    : backend_(backend),
      workspace_(backend.allocate(MemoryKind::device, kWorkspaceBytes, "cuBLASLt workspace")),
      handle_(std::async(std::launch::async, create_handle, current_device()).share()) {}

Gemm::~Gemm() {
  try {
    cublasLtDestroy(handle_.get());
  } catch (const std::exception&) {
    // It was never there.
  }
}

const cublasLtMatmulAlgo_t* Gemm::measured(const Shape& shape) const {
  // It holds for a little fewer rows too; of far fewer the heuristic knows better.
  const auto found = measured_.lower_bound(shape);
  if (found == measured_.end() || !found->first.like(shape)) return nullptr;
  return found->first.rows * 7 <= shape.rows * 8 ? &found->second : nullptr;
}

const cublasLtMatmulAlgo_t* Gemm::guess(const Shape& shape, GemmProblem& problem) {
  auto found = guessed_.find(shape);
  if (found == guessed_.end()) {
    const auto first = problem.candidates(handle_.get(), kWorkspaceBytes, 1);
    std::optional<cublasLtMatmulAlgo_t> algorithm;
    if (!first.empty()) algorithm = first.front();
    found = guessed_.emplace(shape, algorithm).first;
  }
  return found->second.has_value() ? &*found->second : nullptr;
}

bool Gemm::enqueue(const Linear& args, cudaStream_t stream) {
  if (!GemmProblem::possible(args)) return false;
  const cublasLtHandle_t handle = handle_.get();
  GemmProblem problem(args);
  const Shape shape(args);
  const auto works = [&](const cublasLtMatmulAlgo_t* algorithm) {
    if (algorithm == nullptr) return false;
    const cublasStatus_t status =
        problem.enqueue(handle, *algorithm, workspace_.data(), kWorkspaceBytes, stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
      return false;  // what was measured need not fit fewer rows
    }
    check(status, "linear");
    return true;
  };
  return works(measured(shape)) || works(guess(shape, problem));
}

double Gemm::seconds_of(GemmProblem& problem, const cublasLtMatmulAlgo_t& algorithm, int repeats,
                        Stream& stream) {
  const auto begin = backend_.create_event(true), end = backend_.create_event(true);
  begin->record(stream);
  for (int i = 0; i < repeats; ++i) {
    const cublasStatus_t status = problem.enqueue(handle_.get(), algorithm, workspace_.data(),
                                                  kWorkspaceBytes, nvllm::cuda::native(stream));
    if (status != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<double>::infinity();
  }
  end->record(stream);
  stream.synchronize();
  return end->seconds_since(*begin) / repeats;
}

void Gemm::tune(const Linear& args, Stream& stream) {
  if (!GemmProblem::possible(args)) return;
  const cublasLtHandle_t handle = handle_.get();
  GemmProblem problem(args);
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    double seconds;
  };
  std::vector<Candidate> candidates;
  const auto try_all = [&](const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
    for (const auto& algorithm : algorithms) {
      const auto same = [&](const Candidate& other) {
        return std::memcmp(&other.algorithm, &algorithm, sizeof algorithm) == 0;
      };
      if (std::any_of(candidates.begin(), candidates.end(), same)) continue;
      seconds_of(problem, algorithm, 1, stream);  // the first launch loads the kernel
      candidates.push_back({algorithm, seconds_of(problem, algorithm, 2, stream)});
    }
  };
  // Those that need no workspace are not always among the first.
  try_all(problem.candidates(handle, kWorkspaceBytes, kCandidates));
  try_all(problem.candidates(handle, 0, kCandidates));
  if (args.out.shape[0] <= GemmProblem::kShortlistRows) {
    try_all(problem.shortlist(handle, kWorkspaceBytes));
  }
  if (candidates.empty()) return;
  const auto faster = [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; };
  std::stable_sort(candidates.begin(), candidates.end(), faster);
  if (candidates.size() > kField) candidates.resize(kField);
  // The fastest again, in turns: the GPU slows down when it gets warm, by more than they differ.
  const int repeats = static_cast<int>(std::clamp(0.5e-3 / candidates.front().seconds, 1.0, 10.0));
  for (Candidate& one : candidates) one.seconds = 0;
  for (int round = 0; round < 6; ++round) {
    for (Candidate& one : candidates) {
      one.seconds += seconds_of(problem, one.algorithm, repeats, stream);
    }
  }
  const auto best = std::min_element(candidates.begin(), candidates.end(), faster);
  measured_[Shape(args)] = best->algorithm;
}

}  // namespace nvllm::kernels::cuda
