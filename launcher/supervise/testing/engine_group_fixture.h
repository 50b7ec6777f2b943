// Groups of workers with an engine, for tests that disturb them while they work.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/worker_group.h"
#include "runtime/engine/engine_client.h"
#include "runtime/model/open_model.h"
#include "runtime/worker/worker.h"
#include "testing/ranks.h"

namespace nvllm::launcher {

// Workers with an engine, and the console's output about them.
class EngineGroup {
 public:
  // before: runs in every worker before it starts; stages: of the pipeline; gpus: of each rank;
  // empty: on the CPU.
  explicit EngineGroup(int ranks, Nanoseconds step_timeout = std::chrono::seconds(60),
                       const std::function<void(int rank)>& before = {}, int stages = 1,
                       const std::vector<std::string>& gpus = {})
      : model_(runtime::open_model({.path = "tests/data/golden-models/qwen3-gqa-tied",
                                    .overrides = "{\"max_position_embeddings\": 100000}"})),
        output_(::memfd_create("output", MFD_CLOEXEC)),
        workers_({.group = {.size = ranks, .step_timeout = step_timeout}, .output = output_.get()},
                 [&](const ipc::Group& group, int rank) {
                   if (before) before(rank);
                   runtime::WorkerOptions options;
                   options.model = &model_;
                   options.stages = stages;
                   options.gpus = gpus;
                   if (!gpus.empty()) options.device = DeviceKind::cuda;
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

  // Opens the engine, starts long answers, and waits for the first tokens.
  void begin_long_answers() {
    open();
    runtime::Request request;
    request.prompt = {1, 2, 3};
    request.sampling.max_tokens = 90'000;
    request.sampling.ignore_eos = true;
    for (std::uint64_t id = 1; id <= 4; ++id) client_.submit(id, request);
    while (client_.poll(std::chrono::seconds(1)).empty()) continue;
  }
  // Reads until the group is aborted, or rank 0 times out; returns the reason.
  std::string read_until_abort() {
    try {
      while (true) client_.poll(std::chrono::seconds(1));
    } catch (const ipc::GroupAborted& error) {
      return error.what();
    } catch (const ipc::PeerTimeout& error) {
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

// Kills a worker of a group in the middle of answers.
inline void check_killed(EngineGroup& group, int victim) {
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

// Stops a worker of a group, whose step timeout is 2 s, while answers are generated. Returns the
// seconds until the group had ended.
inline double check_stopped(EngineGroup& group, int victim) {
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

// Leaves a group idle between two answers, and ends it.
inline void check_goes_on_after(EngineGroup& group, std::chrono::duration<double> idle) {
  group.open();
  const std::string first = group.answer_to(1);
  std::this_thread::sleep_for(idle);
  CHECK_FALSE(group.workers().member().group().aborted());
  CHECK(group.answer_to(2) == first);
  group.workers().expect_end();
  group.workers().member().group().request_stop();
  CHECK(group.workers().finish() == kExitFine);
  CHECK(group.output() == "");
}

}  // namespace nvllm::launcher
