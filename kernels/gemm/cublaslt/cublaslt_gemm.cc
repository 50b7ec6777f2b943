#include "kernels/gemm/cublaslt/cublaslt_gemm.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/text.h"
#include "device/cuda/stream.h"
#include "device/libraries.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/cublaslt/tuning.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_steps.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = kGemmBytes;

// On any thread.
cublasLtHandle_t create_handle(int device) {
  nvllm::cuda::check(cudaSetDevice(device), "choosing the device");
  if (const char* why = load_cublaslt()) fail("loading cuBLASLt: ", why);
  cublasLtHandle_t handle = nullptr;
  check_cublaslt(cublasLtCreate(&handle), "starting cuBLASLt");
  return handle;
}

int current_device() {
  int device = 0;
  nvllm::cuda::check(cudaGetDevice(&device), "asking for the device");
  return device;
}

// The largest M for which a measurement with `rows` rows holds: four sizes from one power of two to
// the next, at least 8 apart. With far more rows, or far fewer, another algorithm is the fastest.
std::int64_t measured_rows(std::int64_t rows) {
  const auto below =
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 2) - 1));
  const std::int64_t step = std::max<std::int64_t>(8, static_cast<std::int64_t>(below / 4));
  return (rows + step - 1) / step * step;
}

}  // namespace

CublasltGemm::Shape::Shape(const GemmCall& call)
    : type(call.weight.values.dtype),
      out_type(call.operands.out.dtype),
      bias(call.weight.bias.data != nullptr),
      residual(call.operands.residual.data != nullptr),
      blocks(call.weight.quantized.blocks),
      outputs(call.weight.outputs()),
      inputs(call.weight.inputs()),
      x_stride(row_stride(x_of(call))),
      out_stride(row_stride(out_of(call))),
      residual_stride(residual ? row_stride(call.operands.residual) : 0),
      x_alignment(alignment_of(x_of(call).data)),
      weight_alignment(alignment_of(call.weight.values.data)),
      out_alignment(alignment_of(out_of(call).data)),
      residual_alignment(alignment_of(call.operands.residual.data)),
      rows(call.operands.out.shape[0]) {}

std::string CublasltGemm::Shape::text() const {
  return str(name_of(type), "->", name_of(out_type), bias ? " bias" : "", " outputs=", outputs,
             " inputs=", inputs, " rows=", rows, " x=", x_stride, "/", x_alignment,
             " weight=", weight_alignment, " out=", out_stride, "/", out_alignment,
             residual ? str(" residual=", residual_stride, "/", residual_alignment) : "");
}

CublasltGemm::Shape CublasltGemm::class_of(const GemmCall& call) {
  Shape shape(call);
  shape.rows = measured_rows(shape.rows);
  return shape;
}

CublasltGemm::CublasltGemm(Backend& backend, bool invariant)
    : backend_(backend),
      split_k_(!invariant),
      workspace_(backend.allocate(MemoryKind::device, kWorkspaceBytes, "cuBLASLt workspace")),
      handle_(std::async(std::launch::async, create_handle, current_device()).share()) {}

CublasltGemm::~CublasltGemm() {
  try {
    cublasLtDestroy(handle_.get());
  } catch (const std::exception&) {
    // It was never there.
  }
}

const std::string& CublasltGemm::machine() {
  if (machine_.empty()) {
    handle_.get();  // the library is there
    int driver = 0;
    nvllm::cuda::check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    const int multiprocessors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
    machine_ =
        str(backend_.description(), " (", multiprocessors, " multiprocessors), driver ", driver,
            ", cuBLASLt ", cublasLtGetVersion(), split_k_ ? "" : ", no split K", ": ");
  }
  return machine_;
}

std::size_t CublasltGemm::known() {
  const auto here = [&](const auto& choice) { return choice.first.starts_with(machine()); };
  return static_cast<std::size_t>(std::ranges::count_if(remembered_, here));
}

const cublasLtMatmulAlgo_t* CublasltGemm::measured(const GemmCall& call, GemmProblem& problem) {
  const Shape shape = class_of(call);
  auto found = measured_.find(shape);
  if (found == measured_.end()) {
    std::optional<cublasLtMatmulAlgo_t> algorithm;
    if (!remembered_.empty()) {
      const auto choice = remembered_.find(machine() + shape.text());
      const auto config =
          choice == remembered_.end() ? std::nullopt : parse_gemm_config(choice->second);
      if (config) algorithm = problem.algorithm_of(handle_.get(), *config, kWorkspaceBytes);
    }
    found = measured_.emplace(shape, algorithm).first;
  }
  return found->second.has_value() ? &*found->second : nullptr;
}

const cublasLtMatmulAlgo_t* CublasltGemm::guess(const Shape& shape, GemmProblem& problem) {
  auto found = guessed_.find(shape);
  if (found == guessed_.end()) {
    const auto first = problem.candidates(handle_.get(), kWorkspaceBytes, 1);
    std::optional<cublasLtMatmulAlgo_t> algorithm;
    if (!first.empty()) algorithm = first.front();
    found = guessed_.emplace(shape, algorithm).first;
  }
  return found->second.has_value() ? &*found->second : nullptr;
}

bool CublasltGemm::enqueue(GemmProblem& problem, const cublasLtMatmulAlgo_t* algorithm,
                           Stream& stream) {
  if (algorithm == nullptr) return false;
  const cublasStatus_t status = problem.enqueue(handle_.get(), *algorithm, workspace_.data(),
                                                kWorkspaceBytes, nvllm::cuda::native(stream));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    return false;  // what was measured need not fit fewer rows
  }
  check_cublaslt(status, "gemm");
  return true;
}

bool CublasltGemm::enqueue(const GemmCall& call, Stream& stream) {
  if (!GemmProblem::possible(call)) return false;
  handle_.get();
  GemmProblem problem(call, split_k_);
  return enqueue(problem, measured(call, problem), stream) ||
         enqueue(problem, guess(Shape(call), problem), stream);
}

bool CublasltGemm::enqueue_segments(const SegmentedGemm& gemm, Stream& stream) {
  const GemmCall first{GemmPlan{}, gemm.weight_of(0), gemm.operands_of(0)};
  handle_.get();
  GemmProblem problem(first, split_k_);
  problem.repeat(gemm);
  Shape shape(first);
  shape.segments = gemm.segments();
  return enqueue(problem, guess(shape, problem), stream);
}

bool CublasltGemm::enqueue_fp8(const GemmCall& call, const ScaledOperands& scaled, Stream& stream) {
  handle_.get();
  GemmProblem problem(call, scaled);
  return enqueue(problem, guess(Shape(call), problem), stream);
}

void CublasltGemm::tune(std::span<const GemmCall> alike, Stream& stream) {
  if (!GemmProblem::possible(alike.front())) return;
  const cublasLtHandle_t handle = handle_.get();
  GemmProblem problem(alike.front(), split_k_);
  if (measured(alike.front(), problem) != nullptr) return;
  const std::optional<GemmConfig> best =
      GemmTuning(handle, workspace_, backend_, stream, split_k_).fastest(alike);
  if (!best) return;
  const Shape shape = class_of(alike.front());
  measured_[shape] = problem.algorithm_of(handle, *best, kWorkspaceBytes);
  found_[machine() + shape.text()] = text_of(*best);
}

}  // namespace nvllm::kernels::cuda
