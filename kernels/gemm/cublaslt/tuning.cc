#include "kernels/gemm/cublaslt/tuning.h"

#include <algorithm>
#include <limits>

#include "device/cuda/stream.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kProposals = 16;         // more than the heuristic has, so far
constexpr std::size_t kField = 8;      // of the candidates, measured with more care
constexpr std::size_t kProblems = 16;  // their weights together are more than caches hold
constexpr int kRoughLaunches = 3, kMaxLaunches = 8, kRounds = 6;
constexpr double kRoundSeconds = 0.5e-3;
constexpr double kClearly = 0.98;  // of another's time
constexpr double kNever = std::numeric_limits<double>::infinity();

// Fillings of the workspace ahead of a measurement. They take longer than the host takes to enqueue
// what is measured, which without them would be measured instead, and empty the caches.
constexpr int kFillings = 3;

}  // namespace

GemmTuning::GemmTuning(cublasLtHandle_t handle, const Buffer& workspace, Backend& backend,
                       Stream& stream, bool split_k)
    : handle_(handle),
      workspace_(workspace),
      backend_(backend),
      stream_(stream),
      split_k_(split_k),
      begin_(backend.create_event(true)),
      end_(backend.create_event(true)) {}

// Only those that their configuration gives back are of use to a later run.
std::vector<GemmTuning::Candidate> GemmTuning::candidates(GemmProblem& problem,
                                                          bool few_rows) const {
  std::vector<Candidate> found;
  const auto add = [&](const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
    for (const cublasLtMatmulAlgo_t& one : algorithms) {
      const GemmConfig config = config_of(one);
      const auto same = [&](const Candidate& other) { return other.config == config; };
      if (std::ranges::any_of(found, same)) continue;
      const auto again = problem.algorithm_of(handle_, config, workspace_.bytes());
      if (again) found.push_back({config, *again, 0});
    }
  };
  // Those that need no workspace are not always among the first.
  add(problem.candidates(handle_, workspace_.bytes(), kProposals));
  add(problem.candidates(handle_, 0, kProposals));
  if (few_rows) add(problem.shortlist(handle_, workspace_.bytes()));
  return found;
}

bool GemmTuning::enqueue(const Candidate& candidate) {
  GemmProblem& problem = *problems_[next_++ % problems_.size()];
  return problem.enqueue(handle_, candidate.algorithm, workspace_.data(), workspace_.bytes(),
                         nvllm::cuda::native(stream_)) == CUBLAS_STATUS_SUCCESS;
}

double GemmTuning::seconds_of(const Candidate& candidate, int launches) {
  for (int i = 0; i < kFillings; ++i) {
    backend_.fill(workspace_.data(), 0, workspace_.bytes(), stream_);
  }
  begin_->record(stream_);
  for (int i = 0; i < launches; ++i) {
    if (!enqueue(candidate)) return kNever;
  }
  end_->record(stream_);
  stream_.synchronize();
  return end_->seconds_since(*begin_) / launches;
}

std::optional<GemmConfig> GemmTuning::fastest(std::span<const GemmCall> alike) {
  problems_.clear();
  for (const GemmCall& call : alike.first(std::min(alike.size(), kProblems))) {
    problems_.push_back(std::make_unique<GemmProblem>(call, split_k_));
  }
  const bool few_rows = alike.front().operands.out.shape[0] <= GemmProblem::kShortlistRows;
  std::vector<Candidate> all = candidates(*problems_.front(), few_rows);
  if (all.empty()) return std::nullopt;
  const GemmConfig proposed = all.front().config;
  for (Candidate& one : all) {
    const bool works = enqueue(one);  // the first launch loads the kernel
    one.seconds = works ? seconds_of(one, kRoughLaunches) : kNever;
  }
  const auto faster = [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; };
  std::ranges::stable_sort(all, faster);
  std::vector<Candidate> field;
  for (const Candidate& one : all) {
    const bool wanted = field.size() < kField || one.config == proposed;
    if (wanted && one.seconds < kNever) field.push_back(one);
  }
  if (field.empty()) return std::nullopt;

  // The fastest again, in turns: the GPU slows down when it gets warm, by more than they differ.
  const int launches = static_cast<int>(
      std::clamp(kRoundSeconds / field.front().seconds, 1.0, double{kMaxLaunches}));
  for (Candidate& one : field) one.seconds = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& one : field) one.seconds += seconds_of(one, launches);
  }
  const Candidate& best = *std::ranges::min_element(field, faster);
  // What is measured alone is not all: what the heuristic proposes stays unless it is clearly
  // slower.
  const auto first = std::ranges::find(field, proposed, &Candidate::config);
  const bool clearly = first == field.end() || best.seconds < kClearly * first->seconds;
  return clearly ? best.config : first->config;
}

}  // namespace nvllm::kernels::cuda
