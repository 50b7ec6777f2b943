// Pipeline stages on the CPU: sending tensors, returning results, collectives within a stage, and
// the culprit that is named if a rank does not respond.
#include "ipc/collective/stage_link.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ipc/collective/testing/pipeline_rank.h"
#include "testing/ranks.h"

namespace nvllm::ipc {
namespace {

using testing::run_ranks;

// The values of all passes, which outlive the link: it may still be sending them.
struct Values {
  std::deque<std::vector<std::int32_t>> values;
};
struct Rig : Values, PipelineRank {
  Rig(Member& member, int stages) : PipelineRank(member, DeviceKind::cpu, {.stages = stages}) {}
};

TensorView view(std::vector<std::int32_t>& values) {
  return TensorView(values.data(), DType::i32, {static_cast<std::int64_t>(values.size())});
}

// Sends vectors of these sizes through the pipeline; each stage adds 1 to all elements. Rank 0 gets
// the last stage's as results. Returns a description of errors at the end.
std::string pass(Rig& rig, const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t size : sizes) {
    std::vector<std::int32_t>& values = rig.values.emplace_back(static_cast<std::size_t>(size));
    if (rig.stage == 0) std::iota(values.begin(), values.end(), static_cast<std::int32_t>(size));
    if (rig.stage > 0) rig.link->receive(view(values), *rig.stream);
    rig.stream->host_call([&values] {
      for (std::int32_t& value : values) ++value;
    });
    if (rig.stage < rig.last) rig.link->send(view(values), *rig.stream);
    if (rig.stage == rig.last && rig.communicator->rank() == 0) {
      rig.event->record(*rig.stream);
      rig.link->send_result(view(values), *rig.event);
    }
  }
  std::string wrong;
  for (const std::int64_t size : sizes) {
    if (rig.member.rank() > 0) break;
    std::vector<std::int32_t> got(static_cast<std::size_t>(size));
    rig.link->receive_result(got.data(), got.size() * sizeof(std::int32_t));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto right = static_cast<std::int32_t>(size + rig.last + 1) + static_cast<int>(i);
      if (got[i] != right) wrong = str("of ", size, ", value ", i, " is ", got[i]);
    }
  }
  rig.communicator->wait(*rig.stream);
  return wrong;
}

TEST_CASE("tensors of all sizes go from stage to stage, and to rank 0, in order") {
  struct Case {
    int ranks, stages;
  };
  for (const Case& each : {Case{2, 2}, {3, 3}, {4, 2}, {6, 3}, {8, 8}}) {
    CAPTURE(each.ranks);
    CAPTURE(each.stages);
    run_ranks(each.ranks,
              [&](Member& me) {
                Rig rig(me, each.stages);
                CHECK(pass(rig, {1, 7, 4096, 1, 100'000, 3, 3, 50'000}) == "");
                CHECK(pass(rig, {2}) == "");
              },
              {.staging_bytes = 64 << 10});
  }
}

TEST_CASE("collectives are of a stage's ranks, beside what the stages hand over") {
  run_ranks(
      4,
      [](Member& me) {
        Rig rig(me, 2);
        CHECK(rig.communicator->size() == 2);
        CHECK(rig.communicator->rank() == me.rank() % 2);
        // Large enough to fill all of the collectives' memory many times.
        std::vector<std::int32_t> handed(9'000, me.rank());
        std::vector<float> numbers(60'000, static_cast<float>(1 << me.rank()));
        const TensorView values(numbers.data(), DType::f32, {std::ssize(numbers)});
        rig.communicator->all_reduce(values, *rig.stream);
        rig.stage == 0 ? rig.link->send(view(handed), *rig.stream)
                       : rig.link->receive(view(handed), *rig.stream);
        rig.communicator->all_reduce(values, *rig.stream);
        rig.communicator->wait(*rig.stream);
        CHECK(std::ranges::count(numbers, rig.stage == 0 ? 6.0f : 24.0f) == std::ssize(numbers));
        CHECK(std::ranges::count(handed, me.rank() % 2) == std::ssize(handed));
      },
      {.staging_bytes = 32 << 10});
}

TEST_CASE("a stage that expects another size than it is handed is told so") {
  run_ranks(2, [](Member& me) {
    Rig rig(me, 2);
    std::vector<std::int32_t> values(me.rank() == 0 ? 10 : 11);
    if (me.rank() == 0) {
      rig.link->send(view(values), *rig.stream);
      return rig.communicator->wait(*rig.stream);
    }
    rig.link->receive(view(values), *rig.stream);
    CHECK_THROWS_WITH(rig.communicator->wait(*rig.stream),
                      "rank 0 hands over 40 bytes, and rank 1 expects 44; enqueue the same steps "
                      "on all stages");
  });
}

const GroupOptions kImpatient{.step_timeout = std::chrono::milliseconds(400)};

// The culprit with which a rank's wait ended.
int named_by(const std::function<void()>& wait) {
  try {
    wait();
  } catch (const PeerTimeout& error) {
    return error.peer();
  } catch (const GroupAborted&) {  // another rank has named it
    return -1;
  }
  return -2;
}

TEST_CASE("who waits through others for a stage that does not come names that stage") {
  run_ranks(
      3,
      [](Member& me) {
        const Heartbeat heartbeat(me);
        Rig rig(me, 3);
        std::vector<std::int32_t> values(10);
        if (me.rank() == 0) {  // waits for a result; its stage is idle
          const int named = named_by([&] { rig.link->receive_result(values.data(), 40); });
          CHECK((named == 1 || named == -1));
          return;
        }
        if (me.rank() == 1) {  // does not respond, and does nothing
          while (!me.group().aborted()) usleep(1000);
          return;
        }
        rig.link->receive(view(values), *rig.stream);
        const int named = named_by([&] { rig.communicator->wait(*rig.stream); });
        CHECK((named == 1 || named == -1));
      },
      kImpatient);
}

TEST_CASE("a stage that computes for longer than the step timeout is waited for as it gets on") {
  run_ranks(
      3,
      [](Member& me) {
        const Heartbeat heartbeat(me);
        Rig rig(me, 3);
        if (me.rank() == 0) {
          rig.stream->host_call([&] {
            for (int i = 0; i < 15; ++i) {
              usleep(100'000);
              me.note_progress();
            }
          });
        }
        CHECK(pass(rig, {1000}) == "");
      },
      kImpatient);
}

TEST_CASE("results that nobody takes hold up neither the last stage nor its end") {
  run_ranks(2, [](Member& me) {
    Rig rig(me, 2);
    std::vector<std::int32_t> values(10), result(10);
    for (int i = 0; i < 6; ++i) {
      if (me.rank() == 0) {
        rig.link->send(view(values), *rig.stream);
      } else {
        rig.link->receive(view(values), *rig.stream);
        rig.event->record(*rig.stream);
        rig.link->send_result(view(result), *rig.event);
      }
    }
    rig.communicator->wait(*rig.stream);
    rig.link->drop_results();  // two of them are in their slots, and four are waiting
  });
}

TEST_CASE("a stage runs no further ahead than the next one has room, and does not end it") {
  run_ranks(
      2,
      [](Member& me) {
        const Heartbeat heartbeat(me);
        Rig rig(me, 2);
        std::vector<std::int32_t> values(10, 7);
        if (me.rank() == 1) {  // late, but making progress
          for (int i = 0; i < 10; ++i) {
            usleep(100'000);
            me.note_progress();
          }
        }
        for (int i = 0; i < 6; ++i) {
          me.rank() == 0 ? rig.link->send(view(values), *rig.stream)
                         : rig.link->receive(view(values), *rig.stream);
        }
        rig.communicator->wait(*rig.stream);
        CHECK(std::ranges::count(values, 7) == 10);
      },
      kImpatient);
}

}  // namespace
}  // namespace nvllm::ipc
