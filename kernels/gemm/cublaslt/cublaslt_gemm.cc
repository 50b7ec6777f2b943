#include "kernels/gemm/sm80/gemm.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/text.h"
#include "device/cuda/stream.h"
#include "device/libraries.h"
#include "kernels/gemm/sm80/gemm_tuning.h"
#include "kernels/gemm/sm80/linear.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = kMatmulBytes;

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

// The most rows that are measured with as many as `rows` are: four sizes from one power of two to the next,
// at least 8 apart. With far more rows, or far fewer, another algorithm is the fastest.
std::int64_t measured_rows(std::int64_t rows) {
  const auto below =
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 2) - 1));
  const std::int64_t step = std::max<std::int64_t>(8, static_cast<std::int64_t>(below / 4));
  return (rows + step - 1) / step * step;
}

}  // namespace

CublasltGemm::Shape::Shape(const Linear& args)
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

std::string CublasltGemm::Shape::text() const {
  return str(name_of(type), "->", name_of(out_type), bias ? " bias" : "", " outputs=", outputs,
             " inputs=", inputs, " rows=", rows, " x=", x_stride, "/", x_alignment,
             " weight=", weight_alignment, " out=", out_stride, "/", out_alignment,
             residual ? str(" residual=", residual_stride, "/", residual_alignment) : "");
}

CublasltGemm::Shape CublasltGemm::class_of(const Linear& args) {
  Shape shape(args);
  shape.rows = measured_rows(shape.rows);
  return shape;
}

CublasltGemm::CublasltGemm(Backend& backend)
    : backend_(backend),
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
    machine_ = str(backend_.description(), " (", multiprocessors, " multiprocessors), driver ",
                   driver, ", cuBLASLt ", cublasLtGetVersion(), ": ");
  }
  return machine_;
}

std::size_t CublasltGemm::known() {
  const auto here = [&](const auto& choice) { return choice.first.starts_with(machine()); };
  return static_cast<std::size_t>(std::ranges::count_if(remembered_, here));
}

const cublasLtMatmulAlgo_t* CublasltGemm::measured(const Linear& args, GemmProblem& problem) {
  const Shape shape = class_of(args);
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

bool CublasltGemm::enqueue(const Linear& args, cudaStream_t stream) {
  if (!GemmProblem::possible(args)) return false;
  const cublasLtHandle_t handle = handle_.get();
  GemmProblem problem(args);
  const auto works = [&](const cublasLtMatmulAlgo_t* algorithm) {
    if (algorithm == nullptr) return false;
    const cublasStatus_t status =
        problem.enqueue(handle, *algorithm, workspace_.data(), kWorkspaceBytes, stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
      return false;  // what was measured need not fit fewer rows
    }
    check_cublaslt(status, "linear");
    return true;
  };
  return works(measured(args, problem)) || works(guess(Shape(args), problem));
}

void CublasltGemm::tune(std::span<const Linear> alike, Stream& stream) {
  if (!GemmProblem::possible(alike.front())) return;
  const cublasLtHandle_t handle = handle_.get();
  GemmProblem problem(alike.front());
  if (measured(alike.front(), problem) != nullptr) return;
  const std::optional<GemmConfig> best =
      GemmTuning(handle, workspace_, backend_, stream).fastest(alike);
  if (!best) return;
  const Shape shape = class_of(alike.front());
  measured_[shape] = problem.algorithm_of(handle, *best, kWorkspaceBytes);
  found_[machine() + shape.text()] = text_of(*best);
}

}  // namespace nvllm::kernels::cuda
