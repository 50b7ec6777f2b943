#include "ipc/collective/testing/suite.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "testing/sanitizers.h"

namespace nvllm::ipc::suite {
namespace {

int scaled(int count) {
  return std::max(1, static_cast<int>(count * scale()));
}

TensorView tensor(const Buffer& buffer, DType type, std::int64_t elements) {
  return TensorView(buffer.data(), type, {elements});
}

}  // namespace

double scale() {
  if (const char* wanted = std::getenv("NVLLM_TEST_SCALE")) return std::atof(wanted);
  return testing::kSanitized ? 0.05 : 1;
}

void single_calls(Rig& rig, std::uint64_t seed, int count, const CallLimits& limits) {
  for (int i = 0; i < scaled(count); ++i) {
    TestCalls call(rig, 1, seed + static_cast<std::uint64_t>(i), limits);
    call.load(0);
    call.enqueue();
    rig.comm->wait(*rig.stream);
    REQUIRE(call.verify() == "");
  }
}

void fused_rows(Rig& rig, std::uint64_t seed, std::int64_t max_elements) {
  for (std::int64_t columns : {8, 264, 520, 1000, 1288, 4096, 7000, 8192, 16384}) {
    single_calls(rig, seed, 1, {.elements = 1, .only_fused = columns});
    single_calls(rig, seed + 1, 3, {.elements = max_elements, .only_fused = columns});
  }
}

void back_to_back(Rig& rig, std::uint64_t seed, int batches, int batch, const CallLimits& limits) {
  TestCalls calls(rig, batch, seed, limits);
  for (int round = 0; round < scaled(batches); ++round) {
    calls.load(static_cast<std::uint64_t>(round));
    calls.enqueue(true);
    rig.comm->wait(*rig.stream);
    REQUIRE(calls.verify() == "");
  }
}

void in_a_graph(Rig& rig, std::uint64_t seed, int replays, int batch, const CallLimits& limits) {
  TestCalls outside(rig, batch, seed + 1, limits);
  TestCalls inside(rig, batch, seed, limits);
  // Everything must run once before it is captured: libraries load, connections open.
  outside.load(0);
  inside.load(0);
  outside.enqueue();
  inside.enqueue();
  rig.comm->wait(*rig.stream);
  const auto graph = rig.backend->capture(*rig.stream, [&] { inside.enqueue(); });
  for (int round = 1; round <= scaled(replays); ++round) {
    inside.load(static_cast<std::uint64_t>(round));
    outside.load(static_cast<std::uint64_t>(round));
    if (round % 2 == 0) outside.enqueue(true);
    graph->launch(*rig.stream);
    if (round % 2 == 1) outside.enqueue(true);
    rig.comm->wait(*rig.stream);
    REQUIRE(inside.verify() == "");
    REQUIRE(outside.verify() == "");
  }
}

void on_two_streams(Rig& rig, std::uint64_t seed, const CallLimits& limits) {
  const auto other = rig.backend->create_stream();
  const auto event = rig.backend->create_event();
  TestCalls calls(rig, scaled(100), seed, limits);
  calls.load(0);
  Stream* turns[] = {rig.stream.get(), other.get()};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Stream& stream = *turns[i % 2];
    if (i > 0) stream.wait(*event);
    calls.enqueue_on(stream, i);
    event->record(stream);
  }
  rig.comm->wait(*other);
  rig.comm->wait(*rig.stream);
  REQUIRE(calls.verify() == "");
}

void same_bits(Rig& rig, std::uint64_t seed, std::int64_t elements) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  const Buffer device = rig.backend->allocate(MemoryKind::device, bytes, "test");
  const Buffer host = rig.backend->allocate(MemoryKind::pinned, bytes, "test");
  auto* values = static_cast<float*>(host.data());
  std::uint64_t first = 0;
  for (int run = 0; run < 3; ++run) {
    for (std::int64_t i = 0; i < elements; ++i) {
      const auto key = split_mix(seed + static_cast<std::uint64_t>(rig.comm->rank())) +
                       static_cast<std::uint64_t>(i);
      values[i] = static_cast<float>(static_cast<std::int64_t>(split_mix(key))) * 0x1p-60f;
    }
    rig.backend->copy(device.data(), host.data(), bytes, *rig.stream);
    rig.comm->all_reduce(tensor(device, DType::f32, elements), *rig.stream);
    rig.backend->copy(host.data(), device.data(), bytes, *rig.stream);
    rig.comm->wait(*rig.stream);
    std::uint64_t hash = 0;
    for (std::int64_t i = 0; i < elements; ++i) {
      hash = split_mix(hash ^ std::bit_cast<std::uint32_t>(values[i]));
    }
    const auto all = rig.member.exchange(std::as_bytes(std::span(&hash, 1)), "a hash");
    for (const auto& theirs : all) CHECK(std::memcmp(theirs.data(), &hash, sizeof(hash)) == 0);
    if (run == 0) first = hash;
    CHECK(hash == first);
  }
}

void refuses_wrong_arguments(Rig& rig) {
  Communicator& comm = *rig.comm;
  Stream& stream = *rig.stream;
  const Buffer memory = rig.backend->allocate(MemoryKind::device, 1 << 16, "test");
  const TensorView floats = tensor(memory, DType::f32, 16);
  const TensorView far(static_cast<std::byte*>(memory.data()) + 8192, DType::f32, {16});
  TensorView strided = floats;
  strided.stride[0] = 2;

  CHECK_THROWS_WITH_AS(comm.all_reduce(tensor(memory, DType::i32, 16), stream),
                       doctest::Contains("cannot be summed"), Error);
  CHECK_THROWS_AS(comm.all_reduce(strided, stream), Error);
  CHECK_THROWS_AS(comm.all_reduce(TensorView(nullptr, DType::f32, {4}), stream), Error);
  CHECK_THROWS_WITH_AS(comm.broadcast(floats, comm.size(), stream), doctest::Contains("is no rank"),
                       Error);
  CHECK_THROWS_AS(comm.broadcast(floats, -1, stream), Error);
  CHECK_THROWS_AS(comm.gather(floats, far, comm.size(), stream), Error);
  CHECK_THROWS_WITH_AS(
      comm.all_gather(tensor(memory, DType::f32, 16 * comm.size() + 1), far, stream),
      doctest::Contains("times the elements"), Error);
  CHECK_THROWS_WITH_AS(comm.all_gather(tensor(memory, DType::bf16, 16 * comm.size()), far, stream),
                       doctest::Contains("one type"), Error);
  CHECK_THROWS_AS(comm.reduce_scatter(floats, tensor(memory, DType::f32, 17), stream), Error);
  kernels::RmsNorm norm;
  norm.x = norm.out = TensorView(memory.data(), DType::f32, {2, 8});
  norm.weight = tensor(memory, DType::f32, 7);
  CHECK_THROWS_AS(comm.all_reduce_rms_norm(norm, stream), Error);
  norm.weight = far.rows(0, 8);
  norm.weight_offset = 1;
  CHECK_THROWS_WITH_AS(comm.all_reduce_rms_norm(norm, stream),
                       "all_reduce_rms_norm: weight_offset is 1; it must be 0", Error);
  norm.weight_offset = 0;
  norm.x.data = norm.x.as<float>() + 1;
  CHECK_THROWS_WITH_AS(comm.all_reduce_rms_norm(norm, stream),
                       doctest::Contains("x float32 [2, 8] has rows of whole vectors"), Error);
  if (comm.size() > 1) {
    const TensorView inside(static_cast<std::byte*>(memory.data()) + 4, DType::f32, {16});
    CHECK_THROWS_WITH_AS(
        comm.all_gather(tensor(memory, DType::f32, 16 * comm.size()), inside, stream),
        doctest::Contains("overlap"), Error);
  }
  // The rejected calls have left the ranks synchronized.
  comm.barrier(stream);
  comm.wait(stream);
}

void ends_when_aborted(Rig& rig) {
  const Buffer memory = rig.backend->allocate(MemoryKind::device, 4096, "test");
  rig.backend->fill(memory.data(), 0, 4096, *rig.stream);
  const TensorView floats = tensor(memory, DType::f32, 1024);
  const auto reduce = [&] {
    rig.comm->all_reduce(floats, *rig.stream);
    rig.comm->wait(*rig.stream);
  };
  if (rig.comm->rank() == 0) {
    reduce();
    rig.comm->abort("rank 0 had enough");
  } else {
    // Rank 0 does not take part in the second one; its abort may already end the first.
    CHECK_THROWS_WITH_AS((reduce(), reduce()), doctest::Contains("had enough"), Error);
  }
  CHECK_THROWS_WITH_AS(rig.comm->all_reduce(floats, *rig.stream), doctest::Contains("had enough"),
                       Error);
}

}  // namespace nvllm::ipc::suite
