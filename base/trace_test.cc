#include "base/trace.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

namespace nvllm {

TEST_CASE("a span is the time between its beginning and its end, inner spans within it") {
  Trace trace;
  const std::int64_t before = now_ns();
  {
    const Trace::Span outer(&trace, "host", "step", 7);
    const Trace::Span inner(&trace, "host", "schedule", 7);
  }
  const std::int64_t after = now_ns();

  const std::vector<TraceEvent> events = trace.drain();
  REQUIRE(events.size() == 2);  // in the order in which they ended
  const TraceEvent &inner = events[0], &outer = events[1];
  CHECK(inner.name == "schedule");
  CHECK(outer.name == "step");
  CHECK(outer.track == "host");
  CHECK(outer.step == 7);
  CHECK(before <= outer.begin_ns);
  CHECK(outer.begin_ns <= inner.begin_ns);
  CHECK(inner.begin_ns <= inner.end_ns);
  CHECK(inner.end_ns <= outer.end_ns);
  CHECK(outer.end_ns <= after);
}

TEST_CASE("without a trace a span does nothing") {
  const Trace::Span span(nullptr, "host", "schedule");
}

TEST_CASE("what was taken is gone, the oldest first") {
  Trace trace;
  for (int i = 0; i < 5; ++i) trace.add_span("device", std::to_string(i), i, i + 1);
  const std::vector<TraceEvent> first = trace.drain(2);
  REQUIRE(first.size() == 2);
  CHECK(first[0].name == "0");
  CHECK(first[1].name == "1");
  const std::vector<TraceEvent> others = trace.drain();
  REQUIRE(others.size() == 3);
  CHECK(others[0].name == "2");
  CHECK(trace.drain().empty());
}

TEST_CASE(
    "a full trace keeps the first events, counts the others, and goes on when some were taken") {
  Trace trace;
  for (std::size_t i = 0; i < Trace::kMaxEvents; ++i) trace.add_span("host", "kept", 0, 0);
  CHECK(trace.dropped() == 0);
  trace.add_span("host", "dropped", 0, 0);
  trace.add_span("host", "dropped", 0, 0);
  CHECK(trace.dropped() == 2);
  CHECK(trace.drain(1).size() == 1);
  trace.add_span("host", "later", 0, 0);

  const std::vector<TraceEvent> events = trace.drain();
  REQUIRE(events.size() == Trace::kMaxEvents);
  CHECK(events.front().name == "kept");
  CHECK(events[events.size() - 2].name == "kept");
  CHECK(events.back().name == "later");
  CHECK(trace.dropped() == 2);
}

TEST_CASE("several threads may record, and another may take meanwhile") {
  Trace trace;
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&trace] {
      for (int i = 0; i < kEach; ++i) const Trace::Span span(&trace, "host", "work");
    });
  }
  std::size_t taken = 0;
  for (int i = 0; i < 100; ++i) taken += trace.drain(10).size();
  for (std::thread& thread : threads) thread.join();
  taken += trace.drain().size();
  CHECK(taken == kThreads * kEach);
}

}  // namespace nvllm
