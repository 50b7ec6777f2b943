// Collectives and stage links between GPUs of two boxes.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "device/topology.h"
#include "ipc/collective/testing/gpu_box.h"
#include "ipc/collective/testing/pipeline_rank.h"
#include "ipc/testing/two_boxes.h"
#include "testing/skip.h"

namespace nvllm::ipc {
namespace {

using two_boxes::run_over_boxes;

constexpr std::int64_t kCount = 10'000;
constexpr int kRounds = 50;

void expect(bool good, const std::string& what) {
  if (!good) fail(what);
}

// A rank of a group over two boxes with a tensor of kCount numbers.
struct Rig : PipelineRank {
  Rig(Member& member, const std::vector<std::string>& gpus, int stages)
      : PipelineRank((settle_on_box(member, gpus), member), DeviceKind::cuda, {.stages = stages}),
        device(backend->allocate(MemoryKind::device, kCount * sizeof(float), "test")),
        host(backend->allocate(MemoryKind::pinned, kCount * sizeof(float), "test")),
        tensor(device.data(), DType::f32, {kCount}) {}

  float* values() const { return static_cast<float*>(host.data()); }
  // The tensor's element i is factor * (i + round), exact in float32.
  static float value(std::int64_t i, int round, int factor) {
    return static_cast<float>(factor * (static_cast<int>(i) + round));
  }
  void put(int round, int factor) {
    for (std::int64_t i = 0; i < kCount; ++i) values()[i] = value(i, round, factor);
    backend->copy(device.data(), values(), tensor.bytes(), *stream);
  }
  // Also waits for the stream.
  void expect_values(int round, int factor) {
    backend->copy(values(), device.data(), tensor.bytes(), *stream);
    communicator->wait(*stream);
    for (std::int64_t i = 0; i < kCount; ++i) {
      if (values()[i] == value(i, round, factor)) continue;
      fail("round ", round, ": element ", i, " is ", values()[i], ", not ",
           value(i, round, factor));
    }
  }

  Buffer device, host;
  TensorView tensor;
};

// All-reduces over the stage's ranks, in a captured graph.
void reduce_often(Rig& rig) {
  const int ranks = rig.communicator->size(), rank = rig.communicator->rank();
  rig.put(0, rank + 1);
  rig.communicator->all_reduce(rig.tensor, *rig.stream);
  rig.expect_values(0, ranks * (ranks + 1) / 2);
  const auto graph = rig.backend->capture(
      *rig.stream, [&] { rig.communicator->all_reduce(rig.tensor, *rig.stream); });
  for (int round = 0; round < kRounds; ++round) {
    rig.put(round, rank + 1);
    graph->launch(*rig.stream);
    rig.expect_values(round, ranks * (ranks + 1) / 2);
  }
  rig.settle();
}

// Two stages: the tensor is sent from the first to the second in a captured graph, and its first
// numbers return to rank 0's host as a step's result.
void pass_often(Rig& rig) {
  constexpr std::size_t kResult = 64;
  const int number = rig.communicator->rank() + 1;
  const bool gives_result = rig.stage == 1 && number == 1;
  const auto graph = rig.backend->capture(*rig.stream, [&] {
    rig.stage == 0 ? rig.link->send(rig.tensor, *rig.stream)
                   : rig.link->receive(rig.tensor, *rig.stream);
  });
  for (int round = 0; round < kRounds; ++round) {
    if (rig.stage == 0) rig.put(round, number);
    graph->launch(*rig.stream);
    rig.expect_values(round, number);
    if (gives_result) {
      rig.event->record(*rig.stream);
      rig.link->send_result(TensorView(rig.host.data(), DType::f32, {kResult}), *rig.event);
    }
    if (rig.member.rank() == 0) {
      float result[kResult] = {};
      rig.link->receive_result(result, sizeof(result));
      for (std::size_t i = 0; i < kResult; ++i) {
        expect(result[i] == Rig::value(static_cast<std::int64_t>(i), round, 1),
               str("result ", i, " of round ", round, " is ", result[i]));
      }
    }
    rig.member.exchange({}, "the result");  // the memory that is sent may change
  }
  rig.settle();
}

}  // namespace

TEST_CASE("gpu: NCCL sums up over the ranks of two boxes") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  CHECK(run_over_boxes(
            [&](Member& me) {
              Rig rig(me, gpus, 1);
              expect(rig.communicator->name() == "nccl", rig.communicator->name());
              reduce_often(rig);
            },
            {.box_ranks = {1, 2}}) == "");
}

TEST_CASE("gpu: a stage hands over to that of the other box, and gets results back") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  CHECK(run_over_boxes(
            [&](Member& me) {
              Rig rig(me, gpus, 2);
              pass_often(rig);
            },
            {.box_ranks = {1, 1}, .stages = 2}) == "");
}

TEST_CASE("gpu: stages of two ranks, each on a box, have peer memory beside the hand-over") {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.empty()) SKIP_TEST("needs 1 GPU, found 0");
  CHECK(run_over_boxes(
            [&](Member& me) {
              Rig rig(me, gpus, 2);
              expect(rig.communicator->name() == "peer", rig.communicator->name());
              reduce_often(rig);
              pass_often(rig);
            },
            {.box_ranks = {2, 2}, .stages = 2}) == "");
}

}  // namespace nvllm::ipc
