// Sums in two levels, over two boxes of two ranks each, which share GPUs where there are fewer.
#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <functional>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "device/topology.h"
#include "ipc/collective/testing/gpu_box.h"
#include "ipc/collective/testing/suite.h"
#include "ipc/collective/two_level/two_level_communicator.h"
#include "ipc/testing/two_boxes.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::ipc {
namespace {

using two_boxes::run_over_boxes;
using two_boxes::Shape;

constexpr TwoLevelAlgorithm kAlgorithms[] = {
    TwoLevelAlgorithm::every_rank, TwoLevelAlgorithm::slices, TwoLevelAlgorithm::first_ranks};
constexpr const char* kAlgorithmNames[] = {"every_rank", "slices", "first_ranks"};

TestSetup two_level(const std::string& implementation) {
  return {DeviceKind::cuda, implementation, /*exact=*/false};
}

// Runs the body on the ranks of two boxes. doctest's assertions work in it.
void on_two_boxes(const std::vector<std::string>& gpus, const Shape& shape,
                  const std::function<void(Member&)>& body) {
  CHECK(run_over_boxes(
            [&](Member& me) {
              settle_on_box(me, gpus);
              const std::string failures = testing::failures_of([&] { body(me); });
              if (failures.empty()) return;
              std::cerr << "rank " << me.rank() << ": " << failures << '\n';
              fail(failures);
            },
            shape) == "");
}

TwoLevelCommunicator& two_level_of(Rig& rig) {
  return dynamic_cast<TwoLevelCommunicator&>(*rig.comm);
}

// A tensor of the rig's device, the same memory for all sums of a test.
struct Sums {
  Sums(Rig& rig, DType type, std::int64_t elements)
      : rig(rig),
        bytes(static_cast<std::size_t>(elements) * size_of(type)),
        device(rig.backend->allocate(MemoryKind::device, bytes, "test")),
        host(rig.backend->allocate(MemoryKind::pinned, bytes, "test")),
        data(device.data(), type, {elements}) {}

  // Numbers of all magnitudes, different on each rank: their sum depends on its order.
  void load(std::uint64_t seed) const {
    const auto rank = static_cast<std::uint64_t>(rig.comm->rank());
    for (std::int64_t i = 0; i < data.elements(); ++i) {
      const std::uint64_t bits = split_mix(split_mix(seed + rank) + static_cast<std::uint64_t>(i));
      const float value = static_cast<float>(static_cast<std::int32_t>(bits)) *
                          (bits >> 63 != 0 ? 0x1p-10f : 0x1p-30f);
      // The upper half of a float32 is a bfloat16.
      const auto as_bits = std::bit_cast<std::uint32_t>(value);
      const auto upper = static_cast<std::uint16_t>(as_bits >> 16);
      auto* const to =
          static_cast<std::byte*>(host.data()) + static_cast<std::size_t>(i) * size_of(data.dtype);
      if (data.dtype == DType::f32) std::memcpy(to, &as_bits, sizeof(as_bits));
      if (data.dtype == DType::bf16) std::memcpy(to, &upper, sizeof(upper));
    }
    rig.backend->copy(device.data(), host.data(), bytes, *rig.stream);
  }

  // A hash of the sum, which is the same on all ranks.
  std::uint64_t hash() const {
    rig.backend->copy(host.data(), device.data(), bytes, *rig.stream);
    rig.comm->wait(*rig.stream);
    std::uint64_t hash = 0;
    for (const std::byte byte : std::span(static_cast<const std::byte*>(host.data()), bytes)) {
      hash = split_mix(hash ^ static_cast<std::uint64_t>(byte));
    }
    for (const auto& theirs : rig.member.exchange(std::as_bytes(std::span(&hash, 1)), "a hash")) {
      CHECK(std::memcmp(theirs.data(), &hash, sizeof(hash)) == 0);
    }
    return hash;
  }

  Rig& rig;
  std::size_t bytes;
  Buffer device, host;
  TensorView data;
};

// Every possible algorithm, called and in a graph.
void same_bits_of_all_algorithms(Rig& rig, DType type, std::int64_t elements, std::uint64_t seed) {
  INFO(str(elements, " elements of ", name_of(type)));
  TwoLevelCommunicator& comm = two_level_of(rig);
  const Sums sums(rig, type, elements);
  comm.force({});
  sums.load(seed);
  comm.all_reduce(sums.data, *rig.stream);
  const std::uint64_t expected = sums.hash();
  for (const TwoLevelAlgorithm algorithm : kAlgorithms) {
    if (algorithm == TwoLevelAlgorithm::slices && !can_be_sliced(elements, size_of(type), 2)) {
      continue;
    }
    INFO(std::string(kAlgorithmNames[static_cast<int>(algorithm)]));
    comm.force(algorithm);
    sums.load(seed);
    comm.all_reduce(sums.data, *rig.stream);
    CHECK(sums.hash() == expected);
    const auto graph =
        rig.backend->capture(*rig.stream, [&] { comm.all_reduce(sums.data, *rig.stream); });
    for (int round = 0; round < 3; ++round) {
      sums.load(seed);
      graph->launch(*rig.stream);
      CHECK(sums.hash() == expected);
    }
  }
  comm.force({});
}

}  // namespace

TEST_CASE("gpu: two-level sums over two boxes are what a communicator promises") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  const std::uint64_t seed = fresh_seed();
  constexpr CallLimits kSmall{.elements = 20'000};
  on_two_boxes(gpus, {.box_ranks = {2, 2}, .limit_s = 400}, [&](Member& me) {
    Rig rig(me, two_level("auto"));
    REQUIRE(rig.comm->name() == "two-level");
    CHECK(rig.comm->order_is_fixed());
    suite::single_calls(rig, seed, 60, kSmall);
    suite::single_calls(rig, seed + 1000, 4, {.elements = 6'000'000, .only_reduce = true});
    suite::fused_rows(rig, seed, 100'000);
    suite::back_to_back(rig, seed, 3, 50, {.elements = 3000});
    suite::in_a_graph(rig, seed, 5, 15, kSmall);
    suite::in_a_graph(rig, seed + 7, 3, 5, {.elements = 500'000, .only_reduce = true});
    suite::on_two_streams(rig, seed, {.elements = 3000});
    suite::same_bits(rig, seed, 100'003);
    suite::refuses_wrong_arguments(rig);
    suite::ends_when_aborted(rig);  // last: it leaves the group aborted
  });
}

TEST_CASE("gpu: two-level sums have the same bits with every algorithm, on all ranks") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  const std::uint64_t seed = fresh_seed();
  on_two_boxes(gpus, {.box_ranks = {2, 2}, .limit_s = 400}, [&](Member& me) {
    Rig rig(me, two_level("two-level"));
    for (const DType type : {DType::bf16, DType::f32}) {
      const auto limit = static_cast<std::int64_t>(kEveryRankLimit / size_of(type));
      for (const std::int64_t elements :
           {std::int64_t{1}, std::int64_t{16}, std::int64_t{1001}, limit - 1, limit, limit + 1,
            limit + 16, 16 * limit, 16 * limit + 3}) {
        same_bits_of_all_algorithms(rig, type, elements, seed);
      }
    }
  });
}

TEST_CASE("gpu: two-level sums name a rank that does not take part") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  constexpr int kMissing = 3;
  const Shape shape{.box_ranks = {2, 2}, .step_timeout = std::chrono::seconds(8)};
  for (const TwoLevelAlgorithm algorithm : kAlgorithms) {
    MESSAGE(std::string(kAlgorithmNames[static_cast<int>(algorithm)]));
    on_two_boxes(gpus, shape, [&](Member& me) {
      Rig rig(me, two_level("two-level"));
      two_level_of(rig).force(algorithm);
      const Sums sums(rig, DType::f32, 1024);
      sums.load(1);
      const auto reduce = [&] {
        rig.comm->all_reduce(sums.data, *rig.stream);
        rig.comm->wait(*rig.stream);
      };
      reduce();
      if (me.rank() == kMissing) {
        while (!me.group().aborted()) ::usleep(1000);
        return;
      }
      const std::int64_t start = now_ns();
      CHECK_THROWS_WITH_AS(reduce(), doctest::Contains("rank 3 (pid"), Error);
      CHECK(seconds_since(start) < 8 + 5);
    });
  }
}

TEST_CASE("gpu: two-level sums over uneven boxes are refused") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  on_two_boxes(gpus, {.box_ranks = {1, 2}}, [&](Member& me) {
    CHECK_THROWS_WITH_AS(Rig(me, two_level("two-level")),
                         doctest::Contains("such as 1 and 2; use auto"), Error);
  });
}

}  // namespace nvllm::ipc
