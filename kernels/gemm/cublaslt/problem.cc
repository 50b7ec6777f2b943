#include "kernels/gemm/cublaslt/problem.h"

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_steps.h"

namespace nvllm::kernels::cuda {
namespace {

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
    case DType::u8: return CUDA_R_8F_E4M3;
    default: return CUDA_R_16F;
  }
}

template <typename T>
void set(cublasLtMatmulDescOpaque_t& gemm, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_cublaslt(cublasLtMatmulDescSetAttribute(&gemm, attribute, &value, sizeof value),
                 "describing a GEMM");
}

template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name,
         T value) {
  check_cublaslt(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value),
                 "describing what to choose by");
}

void describe(cublasLtMatrixLayoutOpaque_t& layout, const TensorView& tensor) {
  check_cublaslt(cublasLtMatrixLayoutInit(
                     &layout, cuda_type(tensor.dtype), static_cast<std::uint64_t>(tensor.shape[1]),
                     static_cast<std::uint64_t>(tensor.shape[0]), row_stride(tensor)),
                 "describing a matrix");
}

// Makes the layout describe `count` matrices that are `distance` elements apart.
void repeat_layout(cublasLtMatrixLayoutOpaque_t& layout, std::int64_t count,
                   std::int64_t distance) {
  const auto matrices = static_cast<std::int32_t>(count);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    check_cublaslt(cublasLtMatrixLayoutSetAttribute(&layout, attribute, &value, sizeof value),
                   "describing matrices");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, matrices);
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, distance);
}

// What the result is added to: cuBLASLt wants a matrix also where nothing is.
TensorView adds_to(const GemmCall& call) {
  return call.operands.residual.data != nullptr ? call.operands.residual : out_of(call);
}

// `value` stays as it is if the algorithm has no such attribute.
template <typename T>
void read(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which,
          T& value) {
  std::size_t written = 0;
  T found{};
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &found, sizeof found, &written) ==
      CUBLAS_STATUS_SUCCESS) {
    value = found;
  }
}

// What an algorithm of a kind, its `id`, is configured by.
template <typename Config, typename Function>
void each_attribute(Config& config, const Function& function) {
  function(CUBLASLT_ALGO_CONFIG_TILE_ID, config.tile);
  function(CUBLASLT_ALGO_CONFIG_STAGES_ID, config.stages);
  function(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, config.splits);
  function(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, config.reduction);
  function(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, config.swizzle);
  function(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, config.custom);
  function(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, config.inner);
  function(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, config.cluster);
}

}  // namespace

void check_cublaslt(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail(what, ": cuBLASLt status ", static_cast<int>(status));
}

std::int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::int64_t>(address & -address);
}

std::int64_t row_stride(const TensorView& tensor) {
  return tensor.shape[0] > 1 ? tensor.stride[0] : tensor.shape[1];
}

GemmConfig config_of(const cublasLtMatmulAlgo_t& algorithm) {
  GemmConfig config;
  read(algorithm, CUBLASLT_ALGO_CONFIG_ID, config.id);
  each_attribute(config, [&](auto which, auto& value) { read(algorithm, which, value); });
  return config;
}

GemmProblem::GemmProblem(const GemmCall& call, const ScaledOperands* scaled)
    : type(cuda_type(call.weight.values.dtype)),
      out_type(cuda_type(call.operands.out.dtype)),
      weight_data(call.weight.values.data),
      x_data(scaled != nullptr ? scaled->x : x_of(call).data),
      residual_data(adds_to(call).data),
      out_data(out_of(call).data),
      beta(call.operands.residual.data != nullptr ? 1.0f : 0.0f) {
  // float32 is float32: no TF32.
  check_cublaslt(cublasLtMatmulDescInit(&gemm, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "describing a GEMM");
  set(gemm, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (call.weight.bias.data != nullptr) {
    set(gemm, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set<const void*>(gemm, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.weight.bias.data);
  }
  if (scaled != nullptr) {
    const auto groups = static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    const auto blocks = static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(gemm, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scaled->blocks ? blocks : groups);
    set(gemm, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, groups);
    set<const void*>(gemm, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scaled->weight_scales);
    set<const void*>(gemm, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scaled->x_scales);
  }
  const TensorView multiplied = x_of(call);
  describe(weight, call.weight.values);
  describe(x, scaled == nullptr
                  ? multiplied
                  : TensorView(nullptr, DType::u8, {multiplied.shape[0], multiplied.shape[1]}));
  describe(out, out_of(call));
  describe(residual, adds_to(call));
}

bool GemmProblem::possible(const GemmCall& call) {
  const bool adds = call.weight.bias.data != nullptr || call.operands.residual.data != nullptr;
  return call.weight.inputs() > 0 && (!adds || call.operands.out.dtype == call.weight.type());
}

void GemmProblem::repeat(const SegmentedGemm& gemm) {
  const std::int64_t count = gemm.segments(), inputs = gemm.weight.inputs();
  repeat_layout(weight, count, gemm.outputs() * inputs);
  repeat_layout(x, count, inputs);
  repeat_layout(residual, count, gemm.m() * gemm.outputs());
  repeat_layout(out, count, gemm.m() * gemm.outputs());
}

cublasStatus_t GemmProblem::enqueue(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                                    void* workspace, std::size_t workspace_bytes,
                                    cudaStream_t stream) {
  const float alpha = 1;
  return cublasLtMatmul(handle, &gemm, &alpha, weight_data, &weight, x_data, &x, &beta,
                        residual_data, &residual, out_data, &out, &algorithm, workspace,
                        workspace_bytes, stream);
}

std::vector<cublasLtMatmulAlgo_t> GemmProblem::candidates(cublasLtHandle_t handle,
                                                          std::size_t workspace_bytes, int count) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_cublaslt(cublasLtMatmulPreferenceInit(&preference), "describing what to choose by");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Sums of a K-split are never rounded to 16 bits.
  set<std::uint32_t>(
      preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      split_k ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE);
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
      handle, &gemm, &weight, &x, &residual, &out, &preference, count, results.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS) found = 0;  // there is none
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (split_k || config_of(results[i].algo).splits <= 1) algorithms.push_back(results[i].algo);
  }
  return algorithms;
}

std::vector<cublasLtMatmulAlgo_t> GemmProblem::shortlist(cublasLtHandle_t handle,
                                                         std::size_t workspace_bytes) {
  int ids[64], count = 0;
  check_cublaslt(cublasLtMatmulAlgoGetIds(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type,
                                          out_type, out_type, 64, ids, &count),
                 "asking for algorithms");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  const auto add = [&](cublasLtMatmulAlgo_t algorithm, std::uint32_t tile, std::uint16_t cluster,
                       std::uint32_t swizzle) {
    configure(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
    configure<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, kHopperStages);
    configure(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster);
    configure(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, &gemm, &weight, &x, &residual, &out, &algorithm, &result);
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

std::optional<cublasLtMatmulAlgo_t> GemmProblem::algorithm_of(cublasLtHandle_t handle,
                                                              const GemmConfig& config,
                                                              std::size_t workspace_bytes) {
  if (!split_k && config.splits > 1) return std::nullopt;
  if (config.reduction != CUBLASLT_REDUCTION_SCHEME_NONE &&
      config.reduction != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
    return std::nullopt;
  }
  cublasLtMatmulAlgo_t algorithm{};
  if (cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, out_type, out_type,
                             config.id, &algorithm) != CUBLAS_STATUS_SUCCESS) {
    return std::nullopt;
  }
  each_attribute(config, [&](auto which, auto value) { configure(algorithm, which, value); });
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, &gemm, &weight, &x, &residual, &out, &algorithm, &result);
  // What was refused has stayed as it was, and so would not be what the configuration says.
  const bool fits = status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes &&
                    config_of(algorithm) == config;
  return fits ? std::optional(algorithm) : std::nullopt;
}

}  // namespace nvllm::kernels::cuda
