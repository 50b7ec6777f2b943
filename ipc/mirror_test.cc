// Groups over several boxes, simulated: each "box" is a group of its own on this machine, and the
// test transports what their mirrors collect.
#include "ipc/mirror.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/backend.h"
#include "ipc/collective/shm/copy_methods.h"
#include "ipc/collective/shm/shm_exchange.h"
#include "ipc/collective/shm/shm_stage_link.h"
#include "ipc/rpc.h"
#include "ipc/testing/two_boxes.h"
#include "testing/sanitizers.h"

namespace nvllm::ipc {
namespace {

using two_boxes::Boxes;
using two_boxes::Carrier;
using two_boxes::run_over_boxes;
using two_boxes::Shape;

constexpr int kRanks = 3;

void expect(bool good, const std::string& what) {
  if (!good) fail(what);
}

// The input of rank `rank`: fractions, so that another order of addition gives other bits.
std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 1.0f / static_cast<float>(3 + (i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
  }
  return values;
}

std::vector<float> sum_of(std::size_t count) {
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> sources;
  for (int rank = 0; rank < kRanks; ++rank) inputs.push_back(values_of(rank, count));
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<float> sum(count);
  sum_cpu(DType::f32, sum.data(), sources, count);
  return sum;
}

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

TensorView view(std::vector<float>& values) {
  return TensorView(values.data(), DType::f32, {std::ssize(values)});
}

// Sends tensors of these sizes through all stages, each of which sums over its ranks; so rank 0
// receives a multiple of its input.
void go_through_stages(Member& me, int stages, const std::vector<std::size_t>& sizes) {
  const StageMap map{.ranks = me.size(), .stages = stages};
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto computed = backend->create_event();
  ShmExchange exchange(me, stages);
  ShmStageLink link(me, stages);
  std::vector<std::vector<float>> sent;
  sent.reserve(sizes.size());
  for (const std::size_t size : sizes) {
    std::vector<float>& values = sent.emplace_back(values_of(0, size));
    if (me.rank() >= map.of_stage()) link.receive(view(values), *stream);
    stream->host_call([&] { exchange.all_reduce(bytes_of(values), DType::f32, values.size()); });
    if (me.rank() < map.last_stage()) link.send(view(values), *stream);
    if (me.rank() != map.last_stage()) continue;
    computed->record(*stream);
    link.send_result(view(values), *computed);
  }
  float factor = 1;
  for (int stage = 0; stage < stages; ++stage) factor *= static_cast<float>(map.of_stage());
  for (const std::size_t size : sizes) {
    if (me.rank() != 0) break;
    std::vector<float> got(size), want = values_of(0, size);
    link.receive_result(got.data(), size * sizeof(float));
    for (float& value : want) value *= factor;
    expect(got == want, str("a result of ", size, " values"));
  }
  stream->synchronize();
  const std::string last = "all results are there";
  me.exchange(std::as_bytes(std::span(last)), "the end");
  link.drop_results();
}

}  // namespace

TEST_CASE("sums over boxes have the bits of sums in rank order, whatever their size") {
  CHECK(run_over_boxes([](Member& me) {
          ShmExchange exchange(me);
          for (int round = 0; round < 60; ++round) {
            for (const std::size_t count : {1, 1000, 3000, 40'000}) {
              std::vector<float> data = values_of(me.rank(), count);
              exchange.all_reduce(bytes_of(data), DType::f32, count);
              expect(data == sum_of(count), str("all_reduce of ", count, " in round ", round));
            }
          }
        }) == "");
}

TEST_CASE("the other collectives cross boxes, too") {
  CHECK(run_over_boxes([](Member& me) {
          ShmExchange exchange(me);
          constexpr std::size_t kCount = 5000;
          const auto rank = static_cast<std::size_t>(me.rank());
          for (int round = 0; round < 50; ++round) {
            std::vector<float> own = values_of(me.rank(), kCount), all(kRanks * kCount);
            exchange.all_gather(bytes_of(all), bytes_of(own), kCount * sizeof(float));
            for (int from = 0; from < kRanks; ++from) {
              const std::vector<float> want = values_of(from, kCount);
              expect(
                  std::equal(want.begin(), want.end(), all.begin() + from * std::ptrdiff_t{kCount}),
                  str("all_gather, part of rank ", from));
            }
            std::vector<float> sums(kCount), in = values_of(me.rank(), kRanks * kCount);
            exchange.reduce_scatter(bytes_of(sums), bytes_of(in), DType::f32, kCount);
            const std::vector<float> want = sum_of(kRanks * kCount);
            expect(std::equal(sums.begin(), sums.end(),
                              want.begin() + static_cast<std::ptrdiff_t>(rank * kCount)),
                   "reduce_scatter");
            const int root = round % kRanks;
            std::vector<float> data = values_of(me.rank(), kCount);
            exchange.broadcast(bytes_of(data), kCount * sizeof(float), root);
            expect(data == values_of(root, kCount), str("broadcast of rank ", root));
            std::vector<float> gathered(kRanks * kCount);
            exchange.gather(bytes_of(gathered), bytes_of(own), kCount * sizeof(float), root);
            expect(me.rank() != root || gathered == all, str("gather on rank ", root));
            exchange.barrier();
          }
        }) == "");
}

TEST_CASE(
    "calls of rank 0 reach the ranks of other boxes, and their replies and errors come back") {
  CHECK(run_over_boxes([](Member& me) {
          Registry methods;
          methods.bind("echo", [](std::vector<std::byte> bytes) { return bytes; });
          methods.bind("rank", [&me] { return me.rank(); });
          methods.bind("fail_on", [&me](int rank) {
            if (me.rank() == rank) fail("as asked");
            return 0;
          });
          if (me.rank() > 0) return GroupServer(me, methods).serve();
          GroupCaller caller(me, methods);
          // Less than a slot, many slots, and more than the ring.
          for (const std::size_t size :
               {std::size_t{10}, std::size_t{100'000}, std::size_t{2} << 20}) {
            const std::vector<std::byte> bytes(size, std::byte{7});
            for (const auto& echo : caller.call<std::vector<std::byte>>("echo", bytes)) {
              expect(echo == bytes, str("echo of ", size, " bytes"));
            }
          }
          expect(caller.call<int>("rank") == std::vector<int>{0, 1, 2}, "replies in rank order");
          for (int i = 0; i < 200; ++i) caller.notify("rank");
          std::string message;
          try {
            caller.call<int>("fail_on", 2);
          } catch (const RemoteError& error) {
            message = error.what();
          }
          expect(message == "rank 2: as asked", message);
          caller.stop();
        }) == "");
}

TEST_CASE("exchange() gives every rank all blobs, round after round") {
  CHECK(run_over_boxes([](Member& me) {
          for (int round = 0; round < 20; ++round) {
            const std::string mine = str("round ", round, " of ", me.rank());
            const auto all = me.exchange(std::as_bytes(std::span(mine)), "a blob");
            for (int rank = 0; rank < kRanks; ++rank) {
              const auto& blob = all[static_cast<std::size_t>(rank)];
              const std::string got(reinterpret_cast<const char*>(blob.data()), blob.size());
              expect(got == str("round ", round, " of ", rank), got);
            }
          }
        }) == "");
}

TEST_CASE("what pipeline stages hand over crosses boxes in order, whatever its size") {
  // Stages that fill boxes; a stage that is on both; two stages on the first box. Sums of 1, 2 and
  // 4 equal numbers are exact.
  for (const Shape& shape :
       {Shape{{1, 1}, 2}, {{2, 2}, 2}, {{1, 3}, 2}, {{3, 1}, 2}, {{2, 1}, 3}, {{4, 4}, 4}}) {
    CAPTURE(shape.box_ranks[0]);
    CAPTURE(shape.stages);
    CHECK(run_over_boxes(
              [&](Member& me) {
                go_through_stages(me, shape.stages, {1, 7, 4096, 1, 50'000, 3, 3, 20'000});
              },
              shape) == "");
  }
}

TEST_CASE("who waits for a stage on another box is woken") {
  // Five pieces each. Without a bell, a sleeper checks only after 200 ms.
  constexpr int kPasses = 30;
  constexpr std::size_t kCount = 10'000;
  CHECK(run_over_boxes(
            [&](Member& me) {
              const auto backend = create_backend(DeviceKind::cpu);
              const auto stream = backend->create_stream();
              const auto computed = backend->create_event();
              ShmStageLink link(me, 2);
              std::vector<float> values = values_of(0, kCount), got(kCount);
              std::vector<std::vector<float>> results;
              const std::int64_t start = now_ns();
              for (int pass = 0; pass < kPasses; ++pass) {
                if (me.rank() == 0) {
                  link.send(view(values), *stream);
                  link.receive_result(got.data(), kCount * sizeof(float));
                  continue;
                }
                link.receive(view(values), *stream);
                computed->record(*stream);
                stream->synchronize();
                // In a separate buffer: ThreadSanitizer does not see that rank 0 has it before more
                // is sent.
                link.send_result(view(results.emplace_back(values)), *computed);
              }
              stream->synchronize();
              expect(seconds_since(start) < 3 * testing::kLoad,
                     str(kPasses, " passes take too long"));
              me.exchange(std::vector<std::byte>(), "the end");
              link.drop_results();
            },
            {{1, 1}, 2}) == "");
}

TEST_CASE("what a pipeline stage on one box sums up stays there") {
  for (const int stages : {1, 2}) {
    Boxes boxes({.box_ranks = {2, 2}, .stages = stages});
    Carrier carrier(boxes);
    Member ranks[2] = {boxes.first.join(0), boxes.first.join(1)};
    const auto sum_up = [&](Member& me) {
      ShmExchange exchange(me, stages);
      std::vector<float> data = values_of(me.rank(), 100);
      // With one stage, ranks on other boxes take part in this step.
      if (stages == 1) me.flags(me.rank())[kStepFlag].value.store(1);
      for (int i = 0; stages == 2 && i < 20; ++i) {
        exchange.all_reduce(bytes_of(data), DType::f32, data.size());
      }
    };
    std::thread other([&] { sum_up(ranks[1]); });
    sum_up(ranks[0]);
    other.join();
    CHECK(carrier.mirror(0).has_output() == (stages == 1));
  }
}

TEST_CASE("an abort crosses with its reason and the box that it comes from, and not back") {
  Boxes boxes;
  Carrier carrier(boxes);
  boxes.second.abort("rank 2 broke");
  carrier.carry();
  carrier.carry();
  CHECK(boxes.first.abort_reason() == "rank 2 broke");
  CHECK(boxes.first.abort_box() == 1);
  CHECK(boxes.second.abort_box() == Group::kThisBox);
}

TEST_CASE("a record crosses with ages, and with what its launcher has seen of it") {
  Boxes boxes;
  Carrier carrier(boxes);
  Member rank2 = boxes.second.join(2);
  rank2.set_phase(Phase::ready);
  rank2.set_step(12);
  const Member::ActivityScope doing(rank2, Member::Activity::call, "call step");
  boxes.second.note_worker(2, SIGKILL, SIGSTOP);
  carrier.carry_records();
  const RankSnapshot seen = boxes.first.snapshot(2);
  CHECK(seen.pid == getpid());
  CHECK(seen.phase == Phase::ready);
  CHECK(seen.step == 12);
  CHECK(seen.call.text == "call step");
  CHECK(seen.wait_status == SIGKILL);
  CHECK(seen.stopped_by == SIGSTOP);
  CHECK(seconds_since(seen.heartbeat_ns) < 1);
  // The message says which of them has not joined.
  CHECK(boxes.first.snapshot(1).pid == 0);
}

TEST_CASE("the end of a box crosses, and is known of that box alone") {
  Boxes boxes;
  Carrier carrier(boxes);
  GroupMirror::Outboxes out(2);
  carrier.mirror(1).collect_end(out);
  CHECK(!carrier.mirror(0).ended(1));
  carrier.mirror(0).apply(1, out[0]);
  CHECK(carrier.mirror(0).ended(1));
  CHECK(!carrier.mirror(0).ended(0));
}

TEST_CASE("what cannot come from a box is refused") {
  Boxes boxes;
  Carrier carrier(boxes);
  GroupMirror::Outboxes out(2);
  carrier.mirror(1).collect_records(out);
  const std::vector<std::byte> records = out[0];
  CHECK_NOTHROW(carrier.mirror(0).apply(1, records));
  // Records of ranks 1 and 2 from box 0; half a message; a kind that does not exist.
  CHECK_THROWS_AS(carrier.mirror(1).apply(0, records), Error);
  CHECK_THROWS_AS(carrier.mirror(0).apply(1, Bytes(records).first(records.size() - 1)), Error);
  std::vector<std::byte> unknown = records;
  unknown[4] = std::byte{99};
  CHECK_THROWS_AS(carrier.mirror(0).apply(1, unknown), Error);
  // A piece of a stage link, in a group of one stage; its rank, 2, has no receiver.
  std::vector<std::byte> piece(24);
  piece[4] = std::byte{5};
  piece[5] = std::byte{2};
  CHECK_THROWS_WITH(carrier.mirror(0).apply(1, piece), "rank 2 hands over to nobody on box 0");
}

TEST_CASE("groups of one box have no link") {
  const Group group = Group::create({.size = 2, .box_ranks = {2}});
  CHECK(group.boxes() == 1);
  CHECK(group.is_here(1));
  CHECK_THROWS_AS(group.join(kLink), Error);
}

}  // namespace nvllm::ipc
