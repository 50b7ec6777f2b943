// The stage links of GPUs: peer and nccl. Each rank is a process that sees one GPU.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/topology.h"
#include "ipc/collective/peer/hand_over.h"
#include "ipc/collective/testing/pipeline_rank.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::ipc {
namespace {

using testing::RankProcesses;
using testing::run_ranks;

// Call before a rank uses CUDA. If there are fewer GPUs than ranks, ranks share them.
void take_gpu(const Member& me, const std::vector<std::string>& gpus) {
  setenv("CUDA_VISIBLE_DEVICES", gpus[static_cast<std::size_t>(me.rank()) % gpus.size()].c_str(),
         1);
}

// A rank of a pipeline with some device memory.
struct Rig : PipelineRank {
  Rig(Member& member, const std::vector<std::string>& gpus, const CommunicatorOptions& options,
      std::size_t bytes = 1 << 20)
      : PipelineRank((take_gpu(member, gpus), member), DeviceKind::cuda, options),
        device(backend->allocate(MemoryKind::device, bytes, "test")),
        host(backend->allocate(MemoryKind::pinned, bytes, "test")) {
    backend->fill(device.data(), 0, bytes, *stream);
  }

  TensorView view(std::size_t offset, std::size_t bytes) const {
    return {device.as_bytes() + offset, DType::u8, {static_cast<std::int64_t>(bytes)}};
  }

  // Buffer with a byte pointer.
  struct Memory {
    explicit Memory(Buffer buffer) : buffer(std::move(buffer)) {}
    unsigned char* as_bytes() const { return static_cast<unsigned char*>(buffer.data()); }
    void* data() const { return buffer.data(); }
    Buffer buffer;
  };

  Memory device, host;
};

// Byte number `place` of tensor number `tensor`, for the rank with this number in its stage.
unsigned char byte_of(std::size_t tensor, std::size_t place, int rank) {
  std::uint64_t x = tensor * 0x9e3779b97f4a7c15u + place + static_cast<std::uint64_t>(rank) * 7919;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdu;
  return static_cast<unsigned char>(x >> 40);
}

// Sends tensors with these offsets and sizes through all stages in order. Returns a description of
// errors in the last stage.
struct Piece {
  std::size_t offset, bytes;
};
std::string pass(Rig& rig, const std::vector<Piece>& tensors) {
  std::string wrong;
  const int rank = rig.communicator->rank();
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const auto [offset, bytes] = tensors[n];
    unsigned char* const host = rig.host.as_bytes() + offset;
    const TensorView data = rig.view(offset, bytes);
    if (rig.stage == 0) {
      for (std::size_t i = 0; i < bytes; ++i) host[i] = byte_of(n, i, rank);
      rig.backend->copy(data.data, host, bytes, *rig.stream);
    } else {
      rig.link->receive(data, *rig.stream);
    }
    if (rig.stage < rig.last) rig.link->send(data, *rig.stream);
    if (rig.stage == rig.last) rig.backend->copy(host, data.data, bytes, *rig.stream);
    rig.communicator->wait(*rig.stream);
    if (rig.stage < rig.last || !wrong.empty()) continue;
    for (std::size_t i = 0; i < bytes && wrong.empty(); ++i) {
      if (host[i] != byte_of(n, i, rank)) {
        wrong = str("tensor ", n, " of ", bytes, " bytes at ", offset, ": byte ", i);
      }
    }
  }
  rig.settle();
  return wrong;
}

std::vector<Piece> random_pieces(int count, std::size_t max_bytes) {
  std::vector<Piece> pieces;
  std::uint64_t seed = 1;
  const auto next = [&](std::size_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(seed >> 33) % below;
  };
  for (int i = 0; i < count; ++i) {
    const std::size_t offset = next(3) == 0 ? next(100) : 16 * next(16);
    pieces.push_back({offset, 1 + next(i % 10 == 0 ? max_bytes - 512 : 20'000)});
  }
  return pieces;
}

// Sends values through all stages in order, with few host waits. late: a stage that is delayed at
// times.
void hand_over_often(Rig& rig, int rounds, int late) {
  const TensorView value(rig.device.data(), DType::f32, {64});
  for (int round = 0; round < rounds; ++round) {
    if (rig.stage == late && round % 100 == 0) usleep(2000);
    if (rig.stage > 0) rig.link->receive(value, *rig.stream);
    if (rig.stage == 0) {
      rig.backend->fill(value.data, static_cast<unsigned char>(round), value.bytes(), *rig.stream);
    }
    if (rig.stage < rig.last) {
      rig.link->send(value, *rig.stream);
    } else {
      unsigned char* const results = rig.host.as_bytes() + static_cast<std::size_t>(round);
      rig.backend->copy(results, value.data, 1, *rig.stream);
    }
    if (round % 64 == 63) rig.communicator->wait(*rig.stream);
  }
  rig.settle();
  if (rig.stage < rig.last) return;
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    const unsigned char got = rig.host.as_bytes()[round];
    if (got != static_cast<unsigned char>(round)) ++wrong;
  }
  CHECK(wrong == 0);
}

#define GPUS_OR_SKIP(gpus, count)                       \
  const std::vector<std::string> gpus = visible_gpus(); \
  if (std::ssize(gpus) < (count)) SKIP_TEST(str("needs ", count, " GPUs, found ", gpus.size()))

const GroupOptions kImpatient{.step_timeout = std::chrono::seconds(2)};

const CommunicatorOptions kPeer{.implementation = "peer", .stages = 2};

// Runs a test with each of the two links.
void with_each_link(int stages, const std::function<void(const CommunicatorOptions&)>& run) {
  for (const char* link : {"peer", "nccl"}) {
    MESSAGE(std::string(link));
    run({.implementation = link, .stages = stages});
  }
}

}  // namespace

TEST_CASE("gpu: tensors of all sizes and alignments go from stage to stage, bit for bit") {
  GPUS_OR_SKIP(gpus, 2);
  const int stages = static_cast<int>(std::min<std::size_t>(4, gpus.size()));
  with_each_link(stages, [&](const CommunicatorOptions& options) {
    run_ranks(stages, [&](Member& me) {
      Rig rig(me, gpus, options);
      CHECK(pass(rig, random_pieces(400, std::size_t{1} << 20)) == "");
    });
  });
}

TEST_CASE("gpu: a tensor of several pieces goes from stage to stage, bit for bit") {
  GPUS_OR_SKIP(gpus, 2);
  constexpr std::size_t kBytes = 3 * peer::kLinkSlotBytes + 1'000'003;
  with_each_link(2, [&](const CommunicatorOptions& options) {
    run_ranks(2, [&](Member& me) {
      Rig rig(me, gpus, options, kBytes + 64);
      CHECK(pass(rig, {{0, kBytes}, {0, 5}, {16, peer::kLinkSlotBytes}, {3, kBytes}}) == "");
    });
  });
}

TEST_CASE("gpu: thousands of hand-overs in a row, with stages that come late, keep their order") {
  GPUS_OR_SKIP(gpus, 2);
  const int stages = static_cast<int>(std::min<std::size_t>(4, gpus.size()));
  with_each_link(stages, [&](const CommunicatorOptions& options) {
    for (int late = 0; late < stages; ++late) {
      run_ranks(stages, [&](Member& me) {
        Rig rig(me, gpus, options);
        hand_over_often(rig, 10'000, late);
      });
    }
  });
}

TEST_CASE("gpu: stages of two ranks hand over beside their collectives") {
  GPUS_OR_SKIP(gpus, 4);
  with_each_link(2, [&](const CommunicatorOptions& options) {
    run_ranks(4, [&](Member& me) {
      Rig rig(me, gpus, options);
      REQUIRE(rig.communicator->size() == 2);
      CHECK(rig.communicator->rank() == me.rank() % 2);
      auto* const host = static_cast<float*>(rig.host.data());
      const TensorView value(rig.device.data(), DType::f32, {1000});
      std::fill_n(host, 1000, static_cast<float>(1 << me.rank()));
      rig.backend->copy(value.data, host, value.bytes(), *rig.stream);
      for (int round = 0; round < 100; ++round) {
        if (rig.stage == 1) rig.link->receive(value, *rig.stream);
        if (round == 0) rig.communicator->all_reduce(value, *rig.stream);
        if (rig.stage == 0) rig.link->send(value, *rig.stream);
      }
      rig.backend->copy(host, value.data, value.bytes(), *rig.stream);
      rig.settle();
      // Stage 0 sums 1 + 2; stage 1 received the result 100 times, and summed the first two.
      CHECK(std::count(host, host + 1000, 3.0f) == 1000);
    });
  });
}

TEST_CASE("gpu: a captured graph hands over in every replay") {
  GPUS_OR_SKIP(gpus, 2);
  with_each_link(2, [&](const CommunicatorOptions& options) {
    run_ranks(2, [&](Member& me) {
      Rig rig(me, gpus, options);
      const TensorView value = rig.view(0, 4096);
      const auto graph = rig.backend->capture(*rig.stream, [&] {
        me.rank() == 0 ? rig.link->send(value, *rig.stream) : rig.link->receive(value, *rig.stream);
      });
      int wrong = 0;
      for (int round = 0; round < 2000; ++round) {
        const auto byte = static_cast<unsigned char>(round * 7);
        if (me.rank() == 0) rig.backend->fill(value.data, byte, value.bytes(), *rig.stream);
        graph->launch(*rig.stream);
        if (me.rank() == 0) continue;
        rig.backend->copy(rig.host.data(), value.data, value.bytes(), *rig.stream);
        rig.communicator->wait(*rig.stream);
        if (std::count(rig.host.as_bytes(), rig.host.as_bytes() + 4096, byte) != 4096) ++wrong;
      }
      rig.settle();
      CHECK(wrong == 0);
    });
  });
}

TEST_CASE("gpu: results of the last stage come to rank 0's host in order") {
  GPUS_OR_SKIP(gpus, 2);
  run_ranks(2, [&](Member& me) {
    Rig rig(me, gpus, kPeer);
    for (int round = 0; round < 1000; ++round) {
      if (me.rank() == 1) {
        rig.backend->fill(rig.device.data(), static_cast<unsigned char>(round), 64, *rig.stream);
        rig.backend->copy(rig.host.data(), rig.device.data(), 64, *rig.stream);
        rig.event->record(*rig.stream);
        rig.link->send_result({rig.host.data(), DType::u8, {64}}, *rig.event);
        me.exchange({}, "taking the result");
        continue;
      }
      unsigned char got[64] = {};
      rig.link->receive_result(got, sizeof(got));
      REQUIRE(std::count(got, got + 64, static_cast<unsigned char>(round)) == 64);
      me.exchange({}, "taking the result");
    }
    rig.settle();
  });
}

TEST_CASE("gpu: a stage runs no further ahead than the next one has room, and waits for it") {
  GPUS_OR_SKIP(gpus, 2);
  run_ranks(2, [&](Member& me) {
    Rig rig(me, gpus, kPeer);
    const TensorView value = rig.view(0, 1000);
    if (me.rank() == 0) {
      for (int i = 0; i < 6; ++i) rig.link->send(value, *rig.stream);
      CHECK_FALSE(rig.stream->synchronize_for(std::chrono::milliseconds(500)));
      me.exchange({}, "its sends");
    } else {
      me.exchange({}, "its sends");
      for (int i = 0; i < 6; ++i) rig.link->receive(value, *rig.stream);
    }
    rig.settle();
  });
}

TEST_CASE("gpu: a stage that expects another size than it is handed is told so") {
  GPUS_OR_SKIP(gpus, 2);
  run_ranks(2, [&](Member& me) {
    Rig rig(me, gpus, kPeer);
    if (me.rank() == 0) {
      rig.link->send(rig.view(0, 40), *rig.stream);
      rig.communicator->wait(*rig.stream);
      while (!me.group().aborted()) usleep(1000);
      return;
    }
    rig.link->receive(rig.view(0, 44), *rig.stream);
    CHECK_THROWS_WITH(rig.communicator->wait(*rig.stream),
                      "rank 0 hands over 40 bytes, and rank 1 expects 44; enqueue the same steps "
                      "on all stages");
  });
}

TEST_CASE("gpu: a stage that does not come is named by the deadline") {
  GPUS_OR_SKIP(gpus, 2);
  // More than NCCL has in flight.
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  with_each_link(2, [&](const CommunicatorOptions& options) {
    for (const bool sends : {false, true}) {  // whether the other rank waits in a send or a receive
      CAPTURE(sends);
      run_ranks(
          2,
          [&](Member& me) {
            const Heartbeat heartbeat(me);
            Rig rig(me, gpus, options, kBytes);
            const int waiting = sends ? 0 : 1;
            if (me.rank() != waiting) {
              while (!me.group().aborted()) usleep(1000);
              return;
            }
            for (int i = 0; i < 3; ++i) {
              sends ? rig.link->send(rig.view(0, kBytes), *rig.stream)
                    : rig.link->receive(rig.view(0, kBytes), *rig.stream);
            }
            const std::int64_t start = now_ns();
            int named = -1;
            try {
              rig.communicator->wait(*rig.stream);
            } catch (const PeerTimeout& error) {
              named = error.peer();
              const char* const words = options.implementation == "peer" ? "on the GPU for rank"
                                                                         : "for a collective with";
              CHECK(std::string(error.what()).find(words) != std::string::npos);
            }
            CHECK(named == 1 - waiting);
            CHECK(seconds_since(start) < 10);
            CHECK(rig.stream->synchronize_for(std::chrono::seconds(2)));  // nothing waits any more
          },
          kImpatient);
    }
  });
}

TEST_CASE("gpu: an abort ends a wait on the device long before its deadline") {
  GPUS_OR_SKIP(gpus, 2);
  with_each_link(2, [&](const CommunicatorOptions& options) {
    run_ranks(2, [&](Member& me) {
      Rig rig(me, gpus, options);
      if (me.rank() == 0) {
        usleep(500'000);
        return rig.communicator->abort("the test says so");
      }
      rig.link->receive(rig.view(0, 100), *rig.stream);
      const std::int64_t start = now_ns();
      CHECK_THROWS_AS(rig.communicator->wait(*rig.stream), GroupAborted);
      CHECK(seconds_since(start) < 10);
      CHECK(rig.stream->synchronize_for(std::chrono::seconds(2)));
      CHECK_THROWS_AS(rig.link->receive(rig.view(0, 100), *rig.stream), GroupAborted);
    });
  });
}

TEST_CASE("gpu: a killed stage ends the others' wait once the group is aborted") {
  GPUS_OR_SKIP(gpus, 2);
  with_each_link(2, [&](const CommunicatorOptions& options) {
    for (const int victim : {0, 1}) {
      RankProcesses processes(2, [&](Member& me) {
        Rig rig(me, gpus, options);
        for (int round = 0;; ++round) {
          if (me.rank() == victim && round == 100) raise(SIGKILL);
          me.rank() == 0 ? rig.link->send(rig.view(0, 1000), *rig.stream)
                         : rig.link->receive(rig.view(0, 1000), *rig.stream);
          rig.communicator->wait(*rig.stream);
        }
      });
      const auto ends = processes.wait_all(true);
      const auto& other = ends[static_cast<std::size_t>(1 - victim)];
      INFO(other.describe());
      CHECK(!other.hung);
      CHECK(other.report.find(str("rank ", victim)) != std::string::npos);
      CHECK(other.report.find("SIGKILL") != std::string::npos);
    }
  });
}

TEST_CASE("gpu: two stages that share a GPU hand over to each other") {
  // Slow, since ranks take turns on the GPU, but it needs only one, so memory checkers can run it.
  GPUS_OR_SKIP(gpus, 1);
  run_ranks(2, [&](Member& me) {
    Rig rig(me, {gpus[0]}, kPeer);
    CHECK(pass(rig, random_pieces(20, std::size_t{1} << 20)) == "");
  });
}

}  // namespace nvllm::ipc
