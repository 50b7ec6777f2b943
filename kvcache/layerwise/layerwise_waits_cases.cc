// Each wait of one stream for another in layer-wise storage is needed: without it a pass reads
// something else, ThreadSanitizer finds a race, or a capture is refused.
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/testing/backend_under_test.h"
#include "kvcache/layerwise/layerwise_fixture.h"
#include "testing/rerun.h"
#include "testing/sanitizers.h"

namespace nvllm::kvcache {
namespace {

// A wait, where nothing else waits for as much: the buffers, and how the steps between the first
// and the last run.
struct Missing {
  LayerwiseWait wait;
  Late late;  // what it is for comes late, so who does not wait is early
  std::int64_t buffers = 2;
  How how = How::once;
  bool on_host = false;  // steps of one row
};

std::vector<Missing> all_waits() {
  constexpr std::chrono::milliseconds kMaxDelay(2);
  const Late load{.load = true, .max = kMaxDelay}, write{.write = true, .max = kMaxDelay},
      pass{.pass = true, .max = kMaxDelay};
  return {
      // A captured pass has nothing on the write stream, which would wait for as much.
      {.wait = LayerwiseWait::load_of_reading, .late = pass, .how = How::graph},
      {.wait = LayerwiseWait::load_of_writing, .late = write},
      // With fewer buffers than layers, what was in the buffer was written later than the layer.
      {.wait = LayerwiseWait::load_of_layer, .late = write, .buffers = 8},
      {.wait = LayerwiseWait::pass_of_load, .late = load},
      {.wait = LayerwiseWait::writing_of_pass, .late = pass},
      {.wait = LayerwiseWait::load_of_leaving, .late = pass, .how = How::like_graph},
      {.wait = LayerwiseWait::pass_of_loads, .late = load, .how = How::like_graph},
      {.wait = LayerwiseWait::pass_of_writings, .late = write, .on_host = true},
      {.wait = LayerwiseWait::load_of_reading, .late = pass, .on_host = true},
  };
}

std::uint32_t bit_of(LayerwiseWait wait) {
  return 1u << static_cast<unsigned>(wait);
}

// What was read and is wrong; empty: nothing. sequence: another one each time, as memory may still
// have what the time before left there.
std::string wrong_without(Backend& backend, std::uint32_t left_out, const Missing& missing,
                          std::uint32_t sequence = 0) {
  Sequences sequences(backend, 12, missing.buffers, missing.late, left_out, missing.on_host);
  sequences.hold();
  sequences.set_blocks(sequence, {3, 4, 5, 1});
  sequences.step({{sequence, 7}});
  for (int i = 0; i < 4; ++i) sequences.step({{sequence, 1}}, missing.how);
  sequences.step({{sequence, 2}});
  return sequences.first_wrong();
}

TEST_CASE("layers: each wait is missed when it is left out") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cuda)
    SKIP_TEST("host calls of all streams wait for each other");
  if (testing::kSanitized) SKIP_TEST("a race, which sanitizers find");
  const std::vector<Missing> waits = all_waits();
  std::uint32_t tried = 0, sequence = 0;
  for (const Missing& missing : waits) tried |= bit_of(missing.wait);
  CHECK(tried == bit_of(LayerwiseWait{kLayerwiseWaits}) - 1);
  for (const Missing& missing : waits) {
    CAPTURE(static_cast<int>(missing.wait));
    std::string wrong;
    for (int i = 0; i < 5 && wrong.empty(); ++i) {
      wrong = wrong_without(*backend, bit_of(missing.wait), missing, sequence++);
    }
    CHECK(wrong != "");
  }
}

TEST_CASE("layers: a capture is refused without the waits that make its copies part of it") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cuda) SKIP_TEST("a capture that fails takes the stream along");
  for (const LayerwiseWait wait : {LayerwiseWait::load_of_leaving, LayerwiseWait::pass_of_loads}) {
    CAPTURE(static_cast<int>(wait));
    const Missing missing{.wait = wait, .late = {}, .how = How::graph};
    CHECK_THROWS_AS(wrong_without(*backend, bit_of(wait), missing), Error);
  }
}

constexpr const char* kVariable = "NVLLM_LEAVE_OUT";
constexpr const char* kRacing = "layers: ThreadSanitizer finds each wait that is left out";

// What the case below starts: the steps of one wait without it, or those of all waits with all of
// them. Who waits for some of a stream's work learns of all that it has done by then. So whether a
// race shows depends on who is late, and everybody is in turn.
void run_without(Backend& backend, const std::string& number) {
  const bool all = number == "none";
  for (Missing missing : all_waits()) {
    if (!all && number != str(static_cast<int>(missing.wait))) continue;
    CAPTURE(static_cast<int>(missing.wait));
    for (int round = 0; round < (all ? 1 : 8); ++round) {
      for (const Late& late :
           {Late{.load = true}, Late{.pass = true}, Late{.write = true}, Late{}}) {
        missing.late = late;
        const std::string wrong = wrong_without(backend, all ? 0 : bit_of(missing.wait), missing);
        if (all) CHECK(wrong == "");
      }
    }
  }
}

TEST_CASE(kRacing) {
  BACKEND_OR_SKIP(backend);
  if (const char* const number = std::getenv(kVariable)) return run_without(*backend, number);
  if (!testing::kThreadSanitized) SKIP_TEST("not a build with ThreadSanitizer");
  const testing::Rerun all = testing::rerun_case(kRacing, kVariable, "none");
  CHECK_MESSAGE(all.passed(), all.output);
  CHECK_FALSE(all.raced());
  for (int wait = 0; wait < kLayerwiseWaits; ++wait) {
    CAPTURE(wait);
    const testing::Rerun without = testing::rerun_until_race(kRacing, kVariable, str(wait));
    CHECK_MESSAGE(without.raced(), without.output);
  }
}

}  // namespace
}  // namespace nvllm::kvcache
