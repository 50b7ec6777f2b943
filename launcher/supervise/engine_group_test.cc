// Real workers with an engine in them, to whom something happens in the middle of their work, or
// nothing at all for a while.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/worker_group.h"
#include "runtime/engine/engine_client.h"
#include "runtime/model/open_model.h"
#include "runtime/worker/worker.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

// Workers on the CPU with an open engine, and what was printed about them.
class EngineGroup {
 public:
  // before: runs in every worker before it starts; stages: of a pipeline, which divide the ranks.
  explicit EngineGroup(int ranks, Nanoseconds step_timeout = std::chrono::seconds(60),
                       const std::function<void(int rank)>& before = {}, int stages = 1)
      : model_(runtime::open_model({.path = "tests/data/golden-models/qwen3-gqa-tied",
                                    .overrides = "{\"max_position_embeddings\": 100000}"})),
        output_(::memfd_create("output", MFD_CLOEXEC)),
        workers_({.group = {.size = ranks, .step_timeout = step_timeout}, .output = output_.get()},
                 [&](const ipc::Group& group, int rank) {
                   if (before) before(rank);
                   runtime::WorkerOptions options;
                   options.model = &model_;
                   options.stages = stages;
                   return runtime::run_worker(group, rank, options);
                 }),
        client_(workers_.member()) {}

  void open(std::int64_t cache_bytes = std::int64_t{64} << 20) {
    runtime::EngineOptions options;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 256;
    options.kv_cache_memory_bytes = cache_bytes;
    client_.open(options);
  }

  WorkerGroup& workers() { return workers_; }
  runtime::EngineClient& client() { return client_; }
  pid_t pid(int rank) const { return workers_.pids()[static_cast<std::size_t>(rank)]; }
  bool all_gone() const {
    for (const pid_t pid : workers_.pids()) {
      if (::kill(pid, 0) == 0 || errno != ESRCH) return false;
    }
    return true;
  }
  std::string output() const {
    std::array<char, 1 << 16> text;
    const ssize_t n = ::pread(output_.get(), text.data(), text.size(), 0);
    return {text.data(), static_cast<std::size_t>(n)};
  }

  // Opens the engine, begins answers that take long, and waits for the first tokens.
  void begin_long_answers() {
    open();
    runtime::Request request;
    request.prompt = {1, 2, 3};
    request.sampling.max_tokens = 90'000;
    request.sampling.ignore_eos = true;
    for (std::uint64_t id = 1; id <= 4; ++id) client_.submit(id, request);
    while (client_.poll(std::chrono::seconds(1)).empty()) continue;
  }
  // Reads until the group is aborted; the reason.
  std::string read_until_abort() {
    try {
      while (true) client_.poll(std::chrono::seconds(1));
    } catch (const ipc::GroupAborted& error) {
      return error.what();
    }
  }
  std::string answer_to(std::uint64_t id) {
    runtime::Request request;
    request.prompt = {1, 2, 3};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 4;
    client_.submit(id, request);
    std::string text;
    while (client_.unfinished() > 0) {
      for (const runtime::Update& update : client_.poll(std::chrono::seconds(1))) {
        for (const std::int32_t token : update.tokens) text += str(token, ' ');
      }
    }
    return text;
  }

 private:
  runtime::OpenModel model_;
  UniqueFd output_;
  WorkerGroup workers_;
  runtime::EngineClient client_;
};

// What the process and all its threads have used so far.
double cpu_seconds(pid_t pid) {
  std::ifstream file(str("/proc/", pid, "/stat"));
  std::string word;
  double ticks = 0;
  for (int field = 1; field <= 15 && file >> word; ++field) {
    if (field >= 14) ticks += std::stod(word);
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Kills a worker of a group in the middle of answers.
void check_killed(EngineGroup& group, int victim) {
  CAPTURE(victim);
  group.begin_long_answers();
  ::kill(group.pid(victim), SIGKILL);
  const std::string reason = group.read_until_abort();
  CHECK(group.workers().finish(reason) == kExitDied);
  const std::string output = group.output();
  CAPTURE(output);
  CHECK(output.find(str("nvllm-launch: rank ", victim, " (pid ", group.pid(victim),
                        ") died: killed by SIGKILL")) != std::string::npos);
  CHECK(group.all_gone());
  CHECK(testing::lingering_shm_names().empty());
}

// Stops a worker of a group, whose step timeout is 2 s, in the middle of answers. Returns after how
// many seconds the group had ended.
double check_stopped(EngineGroup& group, int victim) {
  CAPTURE(victim);
  group.begin_long_answers();
  const std::int64_t start = now_ns();
  ::kill(group.pid(victim), SIGSTOP);
  const std::string reason = group.read_until_abort();
  CHECK(group.workers().finish(reason) == kExitStuck);
  const double seconds = seconds_since(start);
  const std::string output = group.output();
  CAPTURE(output);
  CHECK(output.find(str("nvllm-launch: rank ", victim, " (pid ", group.pid(victim),
                        ") is alive but stuck (stopped by SIGSTOP)")) != std::string::npos);
  CHECK(group.all_gone());
  return seconds;
}

}  // namespace

TEST_CASE(
    "a worker killed in the middle of answers is named, the front end is told, nothing is left") {
  for (const int victim : {0, 1}) {
    EngineGroup group(2);
    check_killed(group, victim);
  }
}

TEST_CASE("a worker stopped in the middle of answers is named after the step timeout") {
  EngineGroup group(2, std::chrono::seconds(2));
  check_stopped(group, 1);
}

TEST_CASE("a worker of any pipeline stage that is killed in the middle of answers is named") {
  for (const int victim : {0, 1, 2, 3}) {
    EngineGroup group(4, std::chrono::seconds(60), {}, 2);
    check_killed(group, victim);
  }
}

TEST_CASE("a worker of any pipeline stage that is stopped is named after the step timeout") {
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    EngineGroup group(3, std::chrono::seconds(2), {}, 3);
    CHECK(check_stopped(group, victim) < 2 + 2 * testing::kLoad);
  }
}

TEST_CASE("a pipeline that was idle for longer than the step timeout goes on") {
  EngineGroup group(3, std::chrono::seconds(1), {}, 3);
  group.open();
  const std::string first = group.answer_to(1);
  ::usleep(2'500'000);
  CHECK_FALSE(group.workers().member().group().aborted());
  CHECK(group.answer_to(2) == first);
  group.workers().expect_end();
  group.workers().member().group().request_stop();
  CHECK(group.workers().finish() == kExitFine);
  CHECK(group.output() == "");
}

TEST_CASE("an engine that has worked and has nothing to do takes less than 1% of a core") {
  EngineGroup group(2);
  group.open();
  CHECK(group.answer_to(1).size() > 0);
  const auto used_so_far = [&] {
    return cpu_seconds(::getpid()) + cpu_seconds(group.pid(0)) + cpu_seconds(group.pid(1));
  };
  ::usleep(100'000);
  const double before = used_so_far();
  constexpr double kSeconds = 3;
  ::usleep(static_cast<useconds_t>(kSeconds * 1e6));
  // Ticks are 10 ms long; sanitizers do work of their own.
  CHECK(used_so_far() - before <= 0.01 * kSeconds * testing::kLoad);
  CHECK(group.workers().finish("enough") == kExitFailed);
}

TEST_CASE("an engine that was idle for longer than the step timeout goes on") {
  EngineGroup group(2, std::chrono::seconds(1));
  group.open();
  const std::string first = group.answer_to(1);
  ::usleep(2'500'000);
  CHECK_FALSE(group.workers().member().group().aborted());
  CHECK(group.answer_to(2) == first);
  group.workers().expect_end();
  group.workers().member().group().request_stop();
  CHECK(group.workers().finish() == kExitFine);
  CHECK(group.output() == "");
}

TEST_CASE("SIGINT in the middle of answers stops the workers in time") {
  EngineGroup group(2);
  group.begin_long_answers();
  const std::int64_t start = now_ns();
  ::kill(::getpid(), SIGINT);
  const std::string reason = group.read_until_abort();
  CHECK(group.workers().finish(reason) == kExitSignal + SIGINT);
  CHECK(seconds_since(start) < 2 * testing::kLoad);
  CHECK(group.all_gone());
}

TEST_CASE("memory that one rank is refused is an error of the call, and nobody died") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more address space than any limit leaves");
  EngineGroup group(3, std::chrono::seconds(60), [](int rank) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t space = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 30);
    const rlimit limit{space, space};
    if (rank == 1) ::setrlimit(RLIMIT_AS, &limit);
  });
  std::string reason;
  const std::int64_t start = now_ns();
  try {
    group.open(std::int64_t{3} << 29);
  } catch (const ipc::GroupAborted&) {
    FAIL("the group has ended");
  } catch (const Error& error) {
    reason = error.what();
  }
  CHECK(reason.starts_with("rank 1: asked 1.50 GiB of host memory for 'kv cache', which the"));
  CHECK(seconds_since(start) < 5 * testing::kLoad);
  CHECK(group.workers().finish(reason) == kExitFailed);
  CHECK(group.output().find("died") == std::string::npos);
  CHECK(group.all_gone());
}

}  // namespace nvllm::launcher
