// Calls in a whole group: rank 0 calls, the others serve; and the launcher's requests.
#include "ipc/rpc.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include "testing/error_of.h"
#include "testing/ranks.h"

namespace nvllm::ipc {
namespace {

using testing::error_of;
using testing::RankProcesses;
using testing::run_ranks;

class Worker {
 public:
  explicit Worker(Member& me) : me_(me) {
    registry.bind<&Worker::echo>("echo", this);
    registry.bind<&Worker::scaled_rank>("scaled_rank", this);
    registry.bind<&Worker::fail_on>("fail_on", this);
    registry.bind<&Worker::steps_done>("steps_done", this);
    registry.bind("throw_int", []() -> int { throw 7; });
    registry.bind("what_i_do", [this] { return me_.group().snapshot(me_.rank()).call.text; });
    registry.bind("step", [this] { return me_.group().snapshot(me_.rank()).step; });
    registry.bind("total", [](std::span<const int> values) {
      long total = 0;
      for (const int value : values) total += value;
      return total;
    });
  }

  Registry registry;

 private:
  std::string echo(const std::string& text) {
    ++steps_;
    return text;
  }
  int scaled_rank(int factor) const { return factor * me_.rank(); }
  void fail_on(std::vector<int> ranks) {
    for (const int rank : ranks) {
      if (rank == me_.rank()) throw std::runtime_error(str("no reply from ", rank));
    }
  }
  int steps_done() const noexcept { return steps_; }

  Member& me_;
  int steps_ = 0;
};

// Rank 0 runs the body; the others serve until it is done.
void run_calls(int size, const std::function<void(GroupCaller&)>& body) {
  run_ranks(size, [&](Member& me) {
    const Worker worker(me);
    if (me.rank() != 0) return GroupServer(me, worker.registry).serve();
    GroupCaller caller(me, worker.registry);
    body(caller);
    caller.stop();
  });
}

}  // namespace

TEST_CASE("a call runs on all ranks and returns their results in rank order") {
  run_calls(4, [](GroupCaller& caller) {
    CHECK(caller.call<int>("scaled_rank", 10) == std::vector<int>{0, 10, 20, 30});
    const std::vector<int> values = {1, 2, 3};
    CHECK(caller.call<long>("total", std::span<const int>(values)) == std::vector<long>(4, 6));
  });
}

TEST_CASE("a group of one calls itself") {
  run_calls(1, [](GroupCaller& caller) {
    CHECK(caller.call<std::string>("echo", "hello") == std::vector<std::string>{"hello"});
  });
}

TEST_CASE("arguments and results larger than the rings arrive whole") {
  run_calls(3, [](GroupCaller& caller) {
    std::string text(3'000'000, 'x');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
    const std::vector<std::string> echoes = caller.call<std::string>("echo", text);
    REQUIRE(echoes.size() == 3);
    for (const std::string& echo : echoes) CHECK((echo == text));
  });
}

TEST_CASE("a method that throws gives its message with the rank, and the group goes on") {
  run_calls(4, [](GroupCaller& caller) {
    for (int round = 0; round < 20; ++round) {
      try {
        caller.call<void>("fail_on", std::vector<int>{2});
        FAIL("no error");
      } catch (const RemoteError& error) {
        CHECK(error.rank() == 2);
        CHECK(std::string(error.what()) == "rank 2: no reply from 2");
      }
      CHECK(error_of([&] {
              caller.call<void>("fail_on", std::vector<int>{0, 3});
            }) == "rank 0: no reply from 0; rank 3: no reply from 3");
      CHECK(caller.call<int>("scaled_rank", 1) == std::vector<int>{0, 1, 2, 3});
    }
    CHECK(error_of([&] { caller.call<int>("throw_int"); }).find("rank 3: an exception") !=
          std::string::npos);
  });
}

TEST_CASE("an unknown method and wrong argument types are errors of the call") {
  run_calls(2, [](GroupCaller& caller) {
    CHECK(error_of([&] { caller.call<int>("ecko", 1); }) ==
          "rank 0: method 'ecko' is unknown here; rank 1: method 'ecko' is unknown here");
    const std::string message = error_of([&] { caller.call<int>("scaled_rank", 1.5); });
    CHECK(message.find("rank 1: method 'scaled_rank' takes (int) here") != std::string::npos);
    CHECK(caller.call<int>("scaled_rank", 1) == std::vector<int>{0, 1});
  });
}

TEST_CASE("casts run in order, and what fails in them surfaces at the next call") {
  run_calls(3, [](GroupCaller& caller) {
    for (int i = 0; i < 500; ++i) caller.notify("echo", str("message ", i));
    CHECK(caller.call<int>("steps_done") == std::vector<int>{500, 500, 500});
    caller.notify("fail_on", std::vector<int>{1});
    CHECK(error_of([&] {
            caller.call<int>("steps_done");
            caller.call<int>("steps_done");
          }) == "rank 1: no reply from 1");
    CHECK(caller.call<int>("steps_done") == std::vector<int>{500, 500, 500});
    caller.notify("fail_on", std::vector<int>{0});
    CHECK(error_of([&] { caller.check(); }) == "rank 0: no reply from 0");
  });
}

TEST_CASE("records say which call runs and which step it is") {
  run_calls(2, [](GroupCaller& caller) {
    CHECK(caller.call<std::string>("what_i_do") == std::vector<std::string>(2, "call what_i_do"));
    CHECK(caller.call<std::uint64_t>("step") == std::vector<std::uint64_t>{2, 2});
  });
}

TEST_CASE("the launcher calls rank 0, follows its events and stops it") {
  RankProcesses ranks(2, [](Member& me) {
    Worker worker(me);
    if (me.rank() != 0) return GroupServer(me, worker.registry).serve();
    GroupCaller caller(me, worker.registry);
    RequestServer desk(me);
    Registry requests;
    requests.bind("group_echo",
                  [&](const std::string& text) { return caller.call<std::string>("echo", text); });
    requests.bind("count", [&](int steps) {
      for (int i = 0; i < steps; ++i) desk.push("progress", i, str("step ", i));
      return steps;
    });
    requests.bind("fail", [] { fail("cannot do that"); });
    desk.serve(requests);
    caller.stop();
  });

  Member launcher = ranks.group().join(kLauncher);
  RequestClient front(launcher);
  const auto ask = [&](const char* method, const auto&... args) {
    const std::uint64_t id = front.send(method, args...);
    std::optional<RequestEvent> reply = front.receive_event(std::chrono::seconds(20));
    REQUIRE(reply.has_value());
    CHECK(reply->id() == id);
    return std::move(*reply);
  };
  CHECK(ask("group_echo", "hi").get<std::vector<std::string>>() ==
        std::vector<std::string>{"hi", "hi"});
  CHECK(error_of([&] { ask("fail").read(); }) == "cannot do that");
  CHECK(error_of([&] { ask("nothing").read(); }) == "method 'nothing' is unknown here");

  const std::uint64_t id = front.send("count", 200);
  int next = 0;
  while (true) {
    const std::optional<RequestEvent> event = front.receive_event(std::chrono::seconds(20));
    REQUIRE(event.has_value());
    if (event->kind() == RequestEvent::Kind::reply) {
      CHECK(event->id() == id);
      CHECK(event->get<int>() == 200);
      break;
    }
    int number = -1;
    std::string text;
    event->read(number, text);
    CHECK(event->name() == "progress");
    CHECK(number == next);
    CHECK(text == str("step ", next));
    ++next;
  }
  CHECK(next == 200);
  CHECK(!front.receive_event(Nanoseconds(0)).has_value());

  launcher.group().request_stop();
  for (const auto& end : ranks.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
}

TEST_CASE("a rank that is stopped in a call is named with the call by the caller's deadline") {
  RankProcesses ranks(3,
                      [](Member& me) {
                        Registry registry;
                        registry.bind("stop_on", [&](int rank) {
                          if (rank == me.rank()) raise(SIGSTOP);
                        });
                        if (me.rank() != 0) return GroupServer(me, registry).serve();
                        GroupCaller caller(me, registry);
                        caller.call<void>("stop_on", -1);
                        try {
                          caller.call<void>("stop_on", 2);
                          FAIL("no timeout");
                        } catch (const PeerTimeout& error) {
                          CHECK(error.peer() == 2);
                          const std::string text = error.what();
                          CHECK(text.find("replies of rank 2") != std::string::npos);
                          CHECK(text.find("step 2, in call stop_on #2") != std::string::npos);
                        }
                        kill(me.group().snapshot(2).pid, SIGKILL);
                        caller.stop();
                      },
                      {.step_timeout = std::chrono::milliseconds(300)});
  const auto ends = ranks.wait_all();
  CHECK_MESSAGE(ends[0].clean(), ends[0].describe());
  CHECK_MESSAGE(ends[1].clean(), ends[1].describe());
  CHECK(ends[2].status == SIGKILL);
}

TEST_CASE("a rank that works for several step timeouts in a call is waited for as it gets on") {
  constexpr Nanoseconds kTimeout = std::chrono::milliseconds(400);
  run_ranks(3,
            [&](Member& me) {
              std::atomic<std::uint64_t>& done = me.flags(2)[0].value;
              const auto work = [&] {
                for (const std::int64_t begin = now_ns();
                     now_ns() - begin < 3 * kTimeout.count();) {
                  me.note_progress();
                  usleep(10'000);
                }
                done.store(1);
                me.main_bell(1).ring();
              };
              // Reports no progress of its own; its record shows whom it waits for.
              const auto await_work = [&] {
                while (done.load() == 0) {
                  try {
                    me.wait(
                        me.main_bell(1), [&] { return done.load() > 0; }, 2, "work");
                  } catch (const PeerTimeout&) {
                  }
                }
              };
              Registry registry;
              registry.bind("work", [&] {
                if (me.rank() == 1) await_work();
                if (me.rank() == 2) work();
                return me.rank();
              });
              if (me.rank() != 0) return GroupServer(me, registry).serve();
              GroupCaller caller(me, registry);
              CHECK(caller.call<int>("work") == std::vector<int>{0, 1, 2});
              caller.stop();
            },
            {.step_timeout = kTimeout});
}

TEST_CASE(
    "a worker that is called after a long time without work answers, whatever the step timeout") {
  run_ranks(2,
            [](Member& me) {
              const Worker worker(me);
              if (me.rank() != 0) return GroupServer(me, worker.registry).serve();
              GroupCaller caller(me, worker.registry);
              caller.call<int>("scaled_rank", 1);
              usleep(500'000);
              CHECK(caller.call<int>("scaled_rank", 1) == std::vector<int>{0, 1});
              caller.stop();
            },
            {.step_timeout = std::chrono::milliseconds(200)});
}

TEST_CASE("a group that is aborted in a call leaves it on every rank, and at the launcher") {
  RankProcesses ranks(2, [](Member& me) {
    Registry registry;
    registry.bind("wait", [&] { me.wait_idle(me.main_bell(me.rank()), [] { return false; }); });
    try {
      if (me.rank() != 0) return GroupServer(me, registry).serve();
      GroupCaller caller(me, registry);
      RequestServer desk(me);
      Registry requests;
      requests.bind("wait", [&] { caller.call<void>("wait"); });
      desk.serve(requests);
    } catch (const GroupAborted& error) {
      CHECK(std::string(error.what()) == "rank 7 died");
      return;
    }
    FAIL("no abort");
  });
  Member launcher = ranks.group().join(kLauncher);
  RequestClient front(launcher);
  front.send("wait");
  while (ranks.group().snapshot(1).call.text != "call wait") usleep(1000);
  ranks.group().abort("rank 7 died");
  CHECK(error_of([&] { front.receive_event(std::chrono::seconds(20)); }) == "rank 7 died");
  for (const auto& end : ranks.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
}

TEST_CASE("a message of another version is refused by a registry's process") {
  ArchiveWriter message;
  write_call(message, "echo", 1);
  std::vector<std::byte> bytes(message.bytes().begin(), message.bytes().end());
  bytes[0] ^= std::byte{1};
  CHECK(error_of([&] { ArchiveReader{bytes}; }).find("run the same build") != std::string::npos);
}

}  // namespace nvllm::ipc
