// Compares variants of the one-shot kernels on 2 and 4 GPUs; prints a table.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda/stream.h"
#include "device/topology.h"
#include "ipc/collective/bench_ranks.h"
#include "ipc/collective/nccl_communicator.h"
#include "ipc/collective/peer_communicator.h"
#include "ipc/collective/peer_experiment.h"

namespace nvllm::ipc {
namespace {

using peer::Variant;

constexpr int kCalls = 50;
constexpr int kReplays = 20;
constexpr int kSizes = 8;  // 2 KiB, doubled up to 256 KiB
constexpr std::size_t kLeast = 2048;
constexpr std::size_t kMost = kLeast << (kSizes - 1);

constexpr Variant kFused[] = {
    {"base (2 vectors, serial, early ticket)", "base"},
    {"v2 serial late-ticket", "v2serial"},
    {"v2 batched", "v2"},
    {"v2 batched pdl-late", "v2", 1, 1},
    {"v2 batched pdl-early", "v2", 1, 2},
    {"v1 batched", "v1"},
    {"v1 batched pdl-early", "v1", 1, 2},
    {"v1 cluster 1 pdl-early", "v1c", 1, 2},
    {"v1 cluster 2 pdl-early", "v1c", 2, 2},
    {"v1 cluster 4 pdl-early", "v1c", 4, 2},
    {"v1 cluster 8 pdl-early", "v1c", 8, 2},
    {"v2 cluster 2 pdl-early", "v2c", 2, 2},
    {"v2 cluster 4 pdl-early", "v2c", 4, 2},
    {"v1 cluster 4", "v1c", 4, 0},
    {"v1 cluster 4 pdl-late", "v1c", 4, 1},
    {"v1 cluster 4 pdl-early predicated", "v1c-predicated", 4, 2},
    {"v1 cluster 4 pdl-early serial", "v1c-serial", 4, 2},
    {"v1 cluster 4 pdl-early weak stores", "v1c-weak", 4, 2},
    {"v1 cluster 4 pdl-early gpu-scope looks", "v1c-gpu", 4, 2},
    {"v1 cluster 4 pdl-early early ticket", "v1c-early", 4, 2},
    {"v1 cluster 4 pdl-early exact scale", "v1c-exact", 4, 2},
    {"v1 cluster 4 pdl-early bulk sends", "v1c-bulk", 4, 2},
};
constexpr Variant kPlain[] = {
    {"base (serial, early ticket)", "base"},
    {"batched 128", "plain", 1, 0, 128},
    {"batched 128 pdl-late", "plain", 1, 1, 128},
    {"batched 128 pdl-early", "plain", 1, 2, 128},
    {"batched 64 pdl-early", "plain", 1, 2, 64},
    {"batched 256 pdl-early", "plain", 1, 2, 256},
    {"batched 512 pdl-early", "plain", 1, 2, 512},
    {"batched 128 pdl-early predicated", "predicated", 1, 2, 128},
    {"batched 128 pdl-early weak stores", "weak", 1, 2, 128},
    {"batched 128 pdl-early gpu-scope looks", "gpu", 1, 2, 128},
    {"batched 128 pdl-early early ticket", "early", 1, 2, 128},
    {"batched 128 pdl-early bulk sends", "bulk", 1, 2, 128},
    {"batched 512 pdl-early bulk sends", "bulk", 1, 2, 512},
};
constexpr std::size_t kFusedCount = std::size(kFused);
constexpr std::size_t kPlainCount = std::size(kPlain);

struct Results {
  double fused[kFusedCount][kSizes];
  int fused_differences[kFusedCount];  // from base, over all sizes
  int fused_distance[kFusedCount];     // the largest, in units of the last place
  double plain[kPlainCount][kSizes];
  int plain_differences[kPlainCount];
  double nccl[kSizes];
  bool peer;
};

class Experiment {
 public:
  Experiment(Member& member, Backend& backend, NcclCommunicator& nccl, PeerCommunicator* peer)
      : rank_(member.rank()),
        backend_(backend),
        nccl_(nccl),
        peer_(peer),
        stream_(backend.create_stream()),
        start_(backend.create_event(true)),
        end_(backend.create_event(true)) {
    for (Buffer* buffer : {&x_, &out_, &residual_, &weight_}) {
      *buffer = backend.allocate(MemoryKind::device, kMost, "experiment");
    }
    host_ = backend.allocate(MemoryKind::pinned, kMost, "experiment");
  }

  void run(Results& results) {
    results.peer = peer_ != nullptr;
    for (int s = 0; s < kSizes; ++s) {
      fill();
      results.nccl[s] = measure([&] { nccl_.all_reduce(tensor(kLeast << s), *stream_); });
    }
    if (peer_ == nullptr) return;
    for (const bool bulk : {false, true}) run_variants(results, bulk);  // the riskiest last
  }

 private:
  void run_variants(Results& results, bool bulk) {
    const auto left_out = [&](const Variant& variant) {
      return (std::strstr(variant.kernel, "bulk") != nullptr) != bulk &&
             std::strcmp(variant.kernel, "base") != 0;
    };
    std::vector<std::uint16_t> right[kSizes];
    for (std::size_t i = 0; i < kPlainCount; ++i) {
      if (left_out(kPlain[i])) continue;
      for (int s = 0; s < kSizes; ++s) {
        const std::size_t bytes = kLeast << s;
        fill();
        if (!plain(kPlain[i], bytes)) continue;
        const auto got = fetch(x_, bytes);
        if (i == 0) right[s] = got;
        for (std::size_t e = 0; e < got.size(); ++e) {
          results.plain_differences[i] += got[e] != right[s][e];
        }
        results.plain[i][s] = measure([&] { plain(kPlain[i], bytes); });
        progress("all_reduce", kPlain[i], bytes, results.plain[i][s]);
      }
    }
    for (std::size_t i = 0; i < kFusedCount; ++i) {
      if (left_out(kFused[i])) continue;
      for (int s = 0; s < kSizes; ++s) {
        const std::size_t bytes = kLeast << s;
        fill();
        if (!fused(kFused[i], bytes)) continue;
        auto got = fetch(out_, bytes);
        const auto more = fetch(residual_, bytes);
        got.insert(got.end(), more.begin(), more.end());
        if (i == 0) right[s] = got;
        for (std::size_t e = 0; e < got.size(); ++e) {
          results.fused_differences[i] += got[e] != right[s][e];
          results.fused_distance[i] =
              std::max(results.fused_distance[i], std::abs(int{got[e]} - int{right[s][e]}));
        }
        results.fused[i][s] = measure([&] { fused(kFused[i], bytes); });
        progress("all_reduce_rms_norm", kFused[i], bytes, results.fused[i][s]);
      }
    }
  }

  void progress(const char* what, const Variant& variant, std::size_t bytes, double us) const {
    if (rank_ != 0) return;
    std::fprintf(stderr, "%d GPUs %s, %s, %zu: %.2f\n", nccl_.size(), what, variant.name, bytes,
                 us);
  }

  TensorView tensor(std::size_t bytes) const {
    return TensorView(x_.data(), DType::bf16, {static_cast<std::int64_t>(bytes / 2)});
  }

  void fill() {
    auto* values = static_cast<std::uint16_t*>(host_.data());
    unsigned state = 1;
    int which = 0;
    for (const Buffer* buffer : {&x_, &residual_, &weight_}) {
      for (std::size_t i = 0; i < kMost / 2; ++i) {
        state = state * 1664525u + 1013904223u +
                (which == 0 ? static_cast<unsigned>(rank_) * 7919u : 0u);
        // Both signs, from 1/4 to 1.
        values[i] =
            static_cast<std::uint16_t>((state >> 31 << 15) | (0x3e80 + (state >> 16) % 0x100));
      }
      state = 77;
      ++which;
      backend_.copy(buffer->data(), host_.data(), kMost, *stream_);
      stream_->synchronize();
    }
    backend_.fill(out_.data(), 0, kMost, *stream_);
    stream_->synchronize();
  }

  std::vector<std::uint16_t> fetch(const Buffer& buffer, std::size_t bytes) {
    nccl_.wait(*stream_);
    if (peer_ != nullptr) peer_->wait(*stream_);
    backend_.copy(host_.data(), buffer.data(), bytes, *stream_);
    stream_->synchronize();
    const auto* values = static_cast<const std::uint16_t*>(host_.data());
    return {values, values + bytes / 2};
  }

  bool plain(const Variant& variant, std::size_t bytes) {
    const peer::Links links = peer_->links_for_experiment(peer::Operation::all_reduce);
    if (std::strcmp(variant.kernel, "base") == 0) {
      peer_->force(Method::one_shot);
      peer_->all_reduce(tensor(bytes), *stream_);
      return true;
    }
    return peer::launch_plain_variant(links, x_.data(), static_cast<std::int64_t>(bytes / 2),
                                      variant, cuda::native(*stream_));
  }

  bool fused(const Variant& variant, std::size_t bytes) {
    const auto columns = static_cast<std::int64_t>(std::min<std::size_t>(bytes / 2, 4096));
    const std::int64_t rows = static_cast<std::int64_t>(bytes / 2) / columns;
    kernels::RmsNorm norm;
    norm.x = TensorView(x_.data(), DType::bf16, {rows, columns});
    norm.out = TensorView(out_.data(), DType::bf16, {rows, columns});
    norm.residual = TensorView(residual_.data(), DType::bf16, {rows, columns});
    norm.weight = TensorView(weight_.data(), DType::bf16, {columns});
    const peer::Links links = peer_->links_for_experiment(peer::Operation::all_reduce_rms_norm);
    if (std::strcmp(variant.kernel, "base") == 0) {
      peer_->force(Method::one_shot);
      peer_->all_reduce_rms_norm(norm, *stream_);
      return true;
    }
    return peer::launch_fused_variant(links, norm, variant, cuda::native(*stream_));
  }

  template <typename Call>
  double measure(Call call) {
    const auto graph = backend_.capture(*stream_, [&] {
      for (int i = 0; i < kCalls; ++i) call();
    });
    std::vector<double> times;
    for (int replay = 0; replay < kReplays + 2; ++replay) {
      barrier();
      start_->record(*stream_);
      graph->launch(*stream_);
      end_->record(*stream_);
      barrier();
      if (replay >= 2) times.push_back(end_->seconds_since(*start_) * 1e6 / kCalls);
    }
    return bench::median(times);
  }

  void barrier() {
    Communicator& comm = peer_ != nullptr ? static_cast<Communicator&>(*peer_) : nccl_;
    comm.barrier(*stream_);
    comm.wait(*stream_);
  }

  const int rank_;
  Backend& backend_;
  NcclCommunicator& nccl_;
  PeerCommunicator* peer_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> start_, end_;
  Buffer x_, out_, residual_, weight_, host_;
};

Results measure_rank(Member& member, const std::vector<std::string>& gpus) {
  setenv("CUDA_VISIBLE_DEVICES", gpus[static_cast<std::size_t>(member.rank())].c_str(), 1);
  const auto backend = create_backend(DeviceKind::cuda);
  NcclCommunicator nccl(member, *backend);
  std::string why;
  const auto peer = PeerCommunicator::create(member, *backend, why);
  if (peer == nullptr) std::fprintf(stderr, "%s\n", why.c_str());
  Results results{};
  Experiment(member, *backend, nccl, peer.get()).run(results);
  return results;
}

void print_line(const char* name, const double (&us)[kSizes]) {
  std::printf("%-42s", name);
  for (double time : us) std::printf(" %6.2f", time);
}

void compare(int ranks, const std::vector<std::string>& gpus) {
  Results slowest{};
  GroupOptions options;
  options.step_timeout = std::chrono::seconds(5);
  for (const Results& each : bench::measure<Results>(
           ranks, [&](Member& member) { return measure_rank(member, gpus); }, options)) {
    const auto merge = [](auto& to, const auto& from) {
      for (std::size_t i = 0; i < std::size(to); ++i) to[i] = std::max(to[i], from[i]);
    };
    for (std::size_t i = 0; i < kFusedCount; ++i) merge(slowest.fused[i], each.fused[i]);
    for (std::size_t i = 0; i < kPlainCount; ++i) merge(slowest.plain[i], each.plain[i]);
    merge(slowest.nccl, each.nccl);
    merge(slowest.fused_differences, each.fused_differences);
    merge(slowest.fused_distance, each.fused_distance);
    merge(slowest.plain_differences, each.plain_differences);
  }
  std::printf("\n%d GPUs, us per call; KiB:                ", ranks);
  for (int s = 0; s < kSizes; ++s) std::printf(" %6zu", (kLeast << s) / 1024);
  std::printf("\n");
  print_line("nccl all_reduce", slowest.nccl);
  std::printf("\nall_reduce\n");
  for (std::size_t i = 0; i < kPlainCount; ++i) {
    print_line(kPlain[i].name, slowest.plain[i]);
    std::printf("  different: %d\n", slowest.plain_differences[i]);
  }
  std::printf("all_reduce_rms_norm\n");
  for (std::size_t i = 0; i < kFusedCount; ++i) {
    print_line(kFused[i].name, slowest.fused[i]);
    std::printf("  different: %d (%d ulp)\n", slowest.fused_differences[i],
                slowest.fused_distance[i]);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace nvllm::ipc

int main() {
  const std::vector<std::string> gpus = nvllm::visible_gpus();
  for (int ranks : {2, 4}) {
    if (ranks > static_cast<int>(gpus.size())) continue;
    try {
      nvllm::ipc::compare(ranks, gpus);
    } catch (const std::exception& error) {
      std::printf("%d GPUs: %s\n", ranks, error.what());
    }
  }
}
