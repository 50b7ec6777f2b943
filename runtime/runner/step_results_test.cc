// When rank 0 of a pipeline can take a step's results.
#include "runtime/runner/step_results.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "ipc/collective/stage_link.h"
#include "runtime/runner/slot_table.h"

namespace nvllm::runtime {
namespace {

// The first stage's end of a link: results arrive when the test says so.
class ResultsAlone final : public ipc::StageLink {
 public:
  void send(TensorView, Stream&) override { FAIL("nothing is sent"); }
  void receive(TensorView, Stream&) override { FAIL("nothing is received"); }
  void send_result(TensorView, const Event&) override { FAIL("rank 0 sends no results"); }
  void drop_results() override {}
  void receive_result(void* to, std::size_t bytes) override {
    CHECK(there);
    std::memset(to, 0, bytes);
    ++received;
  }
  bool result_ready() const override { return there; }

  bool there = false;
  int received = 0;
};

struct Rig {
  std::unique_ptr<Backend> backend = create_backend(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = backend->create_stream();
  ResultsAlone link;
  SlotTable slots{4, 64, 16};
  StepResults results{*backend, 8, 0, 2, &link};

  void add(std::uint64_t number, std::int64_t rows) {
    results.enqueue_copies(number, {}, slots, shape_of_results(rows, -1), *stream);
  }
};

TEST_CASE("a step of which the last stage sends nothing is ready once this stage is done with it") {
  Rig rig;
  CHECK_FALSE(rig.results.ready());
  std::atomic<bool> may_go_on = false;
  bool done = false;
  rig.stream->host_call([&] {
    may_go_on.wait(false);
    done = true;
  });
  rig.add(1, 0);
  CHECK_FALSE(rig.results.ready());
  may_go_on = true;
  may_go_on.notify_one();
  CHECK(rig.results.take_oldest(*rig.stream, nullptr).number == 1);
  CHECK(done);
  CHECK(rig.link.received == 0);
  CHECK_FALSE(rig.results.ready());
}

TEST_CASE("a step with results is ready when they are there, not when a later one is") {
  Rig rig;
  rig.add(1, 3);
  rig.add(2, 0);
  CHECK_FALSE(rig.results.ready());
  rig.link.there = true;
  CHECK(rig.results.ready());
  CHECK(rig.results.take_oldest(*rig.stream, nullptr).number == 1);
  CHECK(rig.link.received == 1);
  rig.link.there = false;
  rig.stream->synchronize();
  CHECK(rig.results.ready());
}

}  // namespace
}  // namespace nvllm::runtime
