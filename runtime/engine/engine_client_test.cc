// EngineClient against a mock of rank 0.
#include "runtime/engine/engine_client.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ipc/group.h"
#include "runtime/engine/testing/echo_rank.h"
#include "testing/ranks.h"

namespace nvllm::runtime {
namespace {

using testing::RankProcesses;

Request request_of(std::size_t tokens, std::int32_t first = 0) {
  Request request;
  request.prompt.resize(tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), first);
  return request;
}

using Answers = std::map<std::uint64_t, std::vector<std::int32_t>>;

void poll_into(EngineClient& client, Answers& answers) {
  for (const Update& update : client.poll(std::chrono::seconds(30))) {
    auto& answer = answers[update.request];
    answer.insert(answer.end(), update.tokens.begin(), update.tokens.end());
  }
}

Answers poll_all(EngineClient& client) {
  Answers answers;
  while (client.unfinished() > 0) poll_into(client, answers);
  return answers;
}

}  // namespace

TEST_CASE("opening says how far loading is, and gives the engine's figures") {
  EchoRank rank(1);
  int states = 0;
  EngineOptions options;
  options.block_size = 32;
  const EngineInfo info = rank.client().open(options, [&](const LoadState& state) {
    CHECK(state.total == 2);
    ++states;
  });
  CHECK(states == 1);
  CHECK(info.block_size == 32);
  rank.stop();
}

TEST_CASE("a prompt of 500,000 tokens goes and its answer of many updates comes at the same time") {
  EchoRank rank(100);
  const Request request = request_of(500'000);
  rank.client().submit(1, request);
  const Answers answers = poll_all(rank.client());
  CHECK((answers.at(1) == request.prompt));
  rank.stop();
}

TEST_CASE("10,000 requests at once are all answered") {
  EchoRank rank(8);
  constexpr std::uint64_t kRequests = 10'000;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    rank.client().submit(id, request_of(1 + id % 50, static_cast<std::int32_t>(id)));
  }
  CHECK(rank.client().unfinished() == kRequests);
  const Answers answers = poll_all(rank.client());
  REQUIRE(answers.size() == kRequests);
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    REQUIRE((answers.at(id) == request_of(1 + id % 50, static_cast<std::int32_t>(id)).prompt));
  }
  rank.stop();
}

TEST_CASE("one answer may be larger than the whole results ring") {
  EchoRank rank(1'000'000);
  const Request request = request_of(400'000);
  rank.client().submit(1, request);
  CHECK((poll_all(rank.client()).at(1) == request.prompt));
  rank.stop();
}

TEST_CASE("a client that does not read for longer than the step timeout finds everything there") {
  EchoRank rank(4, std::chrono::milliseconds(400));
  const Request request = request_of(20'000);  // 5,000 updates; the ring holds 64
  rank.client().submit(1, request);
  Answers answers;
  poll_into(rank.client(), answers);
  for (int pause = 0; pause < 2; ++pause) {
    ::usleep(900'000);
    poll_into(rank.client(), answers);
  }
  while (rank.client().unfinished() > 0) poll_into(rank.client(), answers);
  CHECK((answers.at(1) == request.prompt));
  rank.stop();
}

TEST_CASE("a client that goes without having read ends rank 0 in order") {
  EchoRank rank(1);
  rank.client().submit(1, request_of(10'000));
  rank.client().poll(std::chrono::seconds(30));
  ::usleep(50'000);
  rank.stop();
}

TEST_CASE("a question between updates is answered, and the updates are kept") {
  EchoRank rank(2);
  for (std::uint64_t id = 1; id <= 100; ++id) rank.client().submit(id, request_of(50));
  Answers answers;
  poll_into(rank.client(), answers);
  CHECK(rank.client().statistics().prompt_tokens == 100);
  while (rank.client().unfinished() > 0) poll_into(rank.client(), answers);
  for (std::uint64_t id = 1; id <= 100; ++id) CHECK((answers.at(id) == request_of(50).prompt));
  rank.stop();
}

TEST_CASE("a number that an unfinished request has is refused") {
  EchoRank rank(1);
  rank.client().submit(1, request_of(3));
  CHECK_THROWS_AS(rank.client().submit(1, request_of(3)), Error);
  poll_all(rank.client());
  rank.client().submit(1, request_of(3));
  CHECK(poll_all(rank.client()).size() == 1);
  rank.stop();
}

TEST_CASE("rank 0 that gives no sign of life for the step timeout is named") {
  EchoRank rank(1, std::chrono::milliseconds(500));
  rank.client().open({});
  rank.ranks().signal(0, SIGSTOP);
  rank.client().submit(1, request_of(3));
  try {
    while (true) rank.client().poll(std::chrono::seconds(30));
  } catch (const ipc::PeerTimeout& error) {
    CHECK(std::string(error.what()).find("rank 0 (pid ") != std::string::npos);
  }
  rank.ranks().signal(0, SIGKILL);
}

TEST_CASE("rank 0 that is not ready is waited for beyond the step timeout, by whoever started it") {
  const auto begin_and_hang = [](ipc::Member& me) {
    me.set_phase(ipc::Phase::starting);
    ::pause();
  };
  RankProcesses ranks(1, begin_and_hang, {.step_timeout = std::chrono::milliseconds(300)});
  ipc::Member launcher = ranks.group().join(ipc::kLauncher);
  EngineClient client(launcher);
  std::thread watcher([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ranks.group().abort("too late");
  });
  CHECK_THROWS_WITH_AS(client.open({}), "too late", ipc::GroupAborted);
  watcher.join();
  ranks.signal(0, SIGKILL);
}

TEST_CASE("rank 0 that says nothing but lives is waited for beyond the step timeout") {
  EchoRank rank(1, std::chrono::milliseconds(300));
  rank.client().open({});
  const std::int64_t begin = now_ns();
  CHECK(rank.client().poll(std::chrono::milliseconds(900)).empty());
  CHECK(seconds_since(begin) > 0.8);
  rank.stop();
}

TEST_CASE("an abort of the group ends waiting with its reason") {
  EchoRank rank(1);
  rank.client().open({});
  rank.ranks().group().abort("rank 7 died");
  CHECK_THROWS_WITH_AS(rank.client().poll(std::chrono::seconds(30)), "rank 7 died",
                       ipc::GroupAborted);
}

}  // namespace nvllm::runtime
