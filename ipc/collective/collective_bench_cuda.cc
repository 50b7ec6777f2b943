// The collectives of GPUs, each in a graph of kCalls calls that is replayed; see
// collective_bench.cc. For each number of GPUs, one group of processes measures all sizes and
// methods when the first of these benchmarks runs; the benchmarks report its measurements.
//
// Counters: us (per call), to_nccl, the ratio to NCCL's time for the same collective and size (for
// all_reduce_rms_norm: to NCCL's all_reduce alone), ranks, bytes as in peer/algorithm.h. start_ms
// of nccl_start: the time of ncclCommInitRank including its preparation.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/topology.h"
#include "ipc/collective/nccl/nccl_communicator.h"
#include "ipc/collective/peer/algorithm.h"
#include "ipc/collective/peer/peer_communicator.h"
#include "ipc/collective/testing/bench_ranks.h"

namespace nvllm::ipc {
namespace {

constexpr int kCalls = 50;
constexpr int kReplays = 20;
constexpr int kSizes = 16;
constexpr std::size_t kMinBytes = 2048;  // then doubled, up to 64 MiB

// The implementations compared: the algorithms over peer memory, and NCCL.
struct Contender {
  const char* name;
  std::optional<Algorithm> algorithm;  // none: NCCL
};
const std::array kContenders = {Contender{"one_shot", Algorithm::one_shot},
                                Contender{"two_shot", Algorithm::two_shot}, Contender{"nccl", {}}};
constexpr std::size_t kNccl = 2;
constexpr std::array kCollectives = {Collective::all_reduce,     Collective::all_reduce_rms_norm,
                                     Collective::reduce_scatter, Collective::all_gather,
                                     Collective::gather,         Collective::broadcast};
constexpr const char* kCollectiveNames[kCollectives.size()] = {
    "all_reduce", "all_reduce_rms_norm", "reduce_scatter", "all_gather", "gather", "broadcast"};
constexpr std::size_t kMaxBytes = kMinBytes << (kSizes - 1);
constexpr unsigned char kPattern = 0x3c;  // 0.0115 in bf16 and fp32

// Microseconds per call by collective, contender and size; 0: not measured.
struct GpuTimes {
  double call_us[kCollectives.size()][kContenders.size()][kSizes];
  double nccl_start_ms;
  double peer_start_ms;
};

// Combinations that would take far too long are not measured.
bool is_measured(Collective collective, const Contender& contender, std::size_t bytes, int ranks) {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const bool reduces =
      collective == Collective::all_reduce || collective == Collective::all_reduce_rms_norm;
  const std::size_t all = reduces ? bytes : bytes * static_cast<std::size_t>(ranks);
  if (all > kMaxBytes) return false;
  if (!contender.algorithm) return true;
  return *contender.algorithm == Algorithm::one_shot ? !reduces || bytes <= 8 * MiB : reduces;
}

// The tensors of all calls. Their bytes are small numbers in every type; sums in place may
// overflow, which does not change the time.
class Bench {
 public:
  explicit Bench(Backend& backend)
      : backend_(backend),
        stream_(backend.create_stream()),
        start_(backend.create_event(true)),
        end_(backend.create_event(true)) {
    for (Buffer* buffer : {&data_, &other_, &residual_, &weight_}) {
      *buffer = backend.allocate(MemoryKind::device, kMaxBytes, "benchmark");
      backend.fill(buffer->data(), kPattern, kMaxBytes, *stream_);
    }
    stream_->synchronize();
  }

  double measure(Communicator& comm, Collective collective, std::size_t bytes) {
    for (int i = 0; i < 3; ++i) call(comm, collective, bytes);
    comm.wait(*stream_);
    const auto graph = backend_.capture(*stream_, [&] {
      for (int i = 0; i < kCalls; ++i) call(comm, collective, bytes);
    });
    std::vector<double> times;
    for (int replay = 0; replay < kReplays + 2; ++replay) {
      comm.barrier(*stream_);
      start_->record(*stream_);
      graph->launch(*stream_);
      end_->record(*stream_);
      comm.wait(*stream_);
      if (replay >= 2) times.push_back(end_->seconds_since(*start_) * 1e6 / kCalls);
    }
    return bench::median(times);
  }

 private:
  TensorView part(const Buffer& buffer, std::size_t bytes) const {
    return TensorView(buffer.data(), DType::bf16, {static_cast<std::int64_t>(bytes / 2)});
  }

  void call(Communicator& comm, Collective collective, std::size_t bytes) {
    const std::size_t all = bytes * static_cast<std::size_t>(comm.size());
    switch (collective) {
      case Collective::all_reduce: return comm.all_reduce(part(data_, bytes), *stream_);
      case Collective::reduce_scatter:
        return comm.reduce_scatter(part(other_, bytes), part(data_, all), *stream_);
      case Collective::all_gather:
        return comm.all_gather(part(data_, all), part(other_, bytes), *stream_);
      case Collective::gather:
        return comm.gather(part(data_, all), part(other_, bytes), 0, *stream_);
      case Collective::broadcast: return comm.broadcast(part(data_, bytes), 0, *stream_);
      case Collective::all_reduce_rms_norm: break;
    }
    const auto columns = static_cast<std::int64_t>(std::min<std::size_t>(bytes / 2, 4096));
    const std::int64_t rows = static_cast<std::int64_t>(bytes / 2) / columns;
    kernels::RmsNorm norm;
    norm.x = TensorView(data_.data(), DType::bf16, {rows, columns});
    norm.out = TensorView(other_.data(), DType::bf16, {rows, columns});
    norm.residual = TensorView(residual_.data(), DType::bf16, {rows, columns});
    norm.weight = TensorView(weight_.data(), DType::bf16, {columns});
    comm.all_reduce_rms_norm(norm, *stream_);
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> start_, end_;
  Buffer data_, other_, residual_, weight_;
};

GpuTimes measure_rank(Member& member, const std::vector<std::string>& gpus) {
  constexpr int kStages = 1;
  setenv("CUDA_VISIBLE_DEVICES", gpus[static_cast<std::size_t>(member.rank())].c_str(), 1);
  const auto backend = create_backend(DeviceKind::cuda);
  GpuTimes times{};
  member.exchange({}, "its GPU");  // so that no rank's start time includes waiting for another
                                   // rank's driver
  std::int64_t start = now_ns();
  NcclCommunicator nccl(member, *backend, kStages);
  times.nccl_start_ms = seconds_since(start) * 1e3;
  start = now_ns();
  std::string why;
  const auto peer = PeerCommunicator::create(member, *backend, kStages, 1, why);
  times.peer_start_ms = seconds_since(start) * 1e3;

  Bench bench(*backend);
  for (std::size_t c = 0; c < kCollectives.size(); ++c) {
    for (std::size_t w = 0; w < kContenders.size(); ++w) {
      const Contender& contender = kContenders[w];
      if (contender.algorithm && peer == nullptr) continue;
      if (peer != nullptr) peer->force(contender.algorithm);
      Communicator& comm = contender.algorithm ? static_cast<Communicator&>(*peer) : nccl;
      for (int s = 0; s < kSizes; ++s) {
        const std::size_t bytes = kMinBytes << s;
        if (!is_measured(kCollectives[c], contender, bytes, member.size())) continue;
        times.call_us[c][w][s] = bench.measure(comm, kCollectives[c], bytes);
      }
    }
  }
  return times;
}

// Times of the slowest rank; measured at the first use.
class GpuResults {
 public:
  GpuResults(int ranks, std::vector<std::string> gpus) : ranks_(ranks), gpus_(std::move(gpus)) {}

  const GpuTimes& get() {
    if (times_ != nullptr) return *times_;
    times_ = std::make_unique<GpuTimes>();
    for (const GpuTimes& rank : bench::measure<GpuTimes>(
             ranks_, [&](Member& member) { return measure_rank(member, gpus_); })) {
      times_->nccl_start_ms = std::max(times_->nccl_start_ms, rank.nccl_start_ms);
      times_->peer_start_ms = std::max(times_->peer_start_ms, rank.peer_start_ms);
      const double* from = &rank.call_us[0][0][0];
      double* to = &times_->call_us[0][0][0];
      for (std::size_t i = 0; i < sizeof(rank.call_us) / sizeof(double); ++i) {
        to[i] = std::max(to[i], from[i]);
      }
    }
    return *times_;
  }

 private:
  const int ranks_;
  const std::vector<std::string> gpus_;
  std::unique_ptr<GpuTimes> times_;
};

void add(int ranks, std::size_t c, std::size_t w, int s,
         const std::shared_ptr<GpuResults>& results) {
  const std::size_t bytes = kMinBytes << s;
  std::string size = format_bytes(bytes);
  size.erase(std::remove(size.begin(), size.end(), ' '), size.end());
  const std::string name =
      str("cuda/", kCollectiveNames[c], "/", kContenders[w].name, "/", size, "/ranks:", ranks);
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 const GpuTimes& times = results->get();
                                 const double us = times.call_us[c][w][s];
                                 for (auto _ : state) state.SetIterationTime(us * 1e-6);
                                 if (us == 0) return state.SkipWithError("no peer memory here");
                                 // The fused kernel is compared with NCCL's all_reduce alone.
                                 const std::size_t plain =
                                     kCollectives[c] == Collective::all_reduce_rms_norm ? 0 : c;
                                 state.counters["us"] = us;
                                 state.counters["to_nccl"] = us / times.call_us[plain][kNccl][s];
                                 state.counters["ranks"] = ranks;
                                 state.counters["bytes"] = static_cast<double>(bytes);
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

void add_start(const char* what, int ranks, double GpuTimes::*start_ms,
               const std::shared_ptr<GpuResults>& results) {
  benchmark::RegisterBenchmark(str("cuda/", what, "/ranks:", ranks).c_str(),
                               [=](benchmark::State& state) {
                                 const double ms = results->get().*start_ms;
                                 for (auto _ : state) state.SetIterationTime(ms * 1e-3);
                                 state.counters["start_ms"] = ms;
                                 state.counters["ranks"] = ranks;
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  const std::vector<std::string> gpus = visible_gpus();
  for (int ranks : {2, 4, 8}) {
    if (ranks > static_cast<int>(gpus.size())) continue;
    const auto results = std::make_shared<GpuResults>(ranks, gpus);
    add_start("nccl_start", ranks, &GpuTimes::nccl_start_ms, results);
    add_start("peer_start", ranks, &GpuTimes::peer_start_ms, results);
    for (std::size_t c = 0; c < kCollectives.size(); ++c) {
      for (std::size_t w = 0; w < kContenders.size(); ++w) {
        for (int s = 0; s < kSizes; ++s) {
          if (is_measured(kCollectives[c], kContenders[w], kMinBytes << s, ranks)) {
            add(ranks, c, w, s, results);
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::ipc
