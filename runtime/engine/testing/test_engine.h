// TestEngine: an engine of real worker processes, started as the launcher does, for tests. run()
// returns all answers to a list of requests. Link the test with //testing:cpu_ranks or
// //testing:cuda_ranks: they choose the devices of the ranks.
//
//   TestEngine engine(model, 2, {.max_num_seqs = 8});
//   for (const auto& answers : engine.run(requests)) ...
//   engine.stop();
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/group.h"
#include "runtime/engine/engine_client.h"
#include "runtime/model/open_model.h"
#include "runtime/options.h"
#include "runtime/request.h"

namespace nvllm::runtime {

struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason finish = FinishReason::none;
  std::string error;
  std::int32_t cached_tokens = 0, preemptions = 0;
  std::string kv_mode;
};

// Indexed by request, in order, then by answer (below the request's n).
using Answers = std::vector<std::vector<Answer>>;

// The worker processes of a group. A thread waits for their exits, and aborts the group at the
// first failure.
class WorkerProcesses {
 public:
  // Forks them. The caller must have no other threads.
  WorkerProcesses(const ipc::Group& group, const OpenModel& model, int stages);
  ~WorkerProcesses();  // kills the remaining processes
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  const std::vector<pid_t>& pids() const { return pids_; }
  // Waits for all; returns the first failure, or an empty string.
  std::string wait();

 private:
  void watch();

  const ipc::Group& group_;
  std::vector<pid_t> pids_;
  std::string wrong_;
  std::jthread watcher_;
};

// Used by one thread, the process's main thread; constructed before other threads exist.
class TestEngine {
 public:
  // Forks the ranks and waits until the engine is open. The model must outlive it. stages: pipeline
  // stages, each of `ranks` ranks.
  TestEngine(const OpenModel& model, int ranks, const EngineOptions& options, int stages = 1);

  const EngineInfo& info() const { return info_; }
  EngineClient& client() { return client_; }
  const ipc::Group& group() const { return group_; }
  const std::vector<pid_t>& pids() const { return workers_.pids(); }

  // Runs all requests concurrently, under ids that start at first_id.
  Answers run(const std::vector<Request>& requests, std::uint64_t first_id = 1);

  // For tests that submit requests themselves: waits for updates and adds them to the answers so
  // far.
  using Book = std::map<std::uint64_t, std::vector<Answer>>;
  void poll_into(Book& book);

  // Shuts the ranks down; throws an Error if one failed.
  void stop();

 private:
  ipc::Group group_;
  WorkerProcesses workers_;
  ipc::Member launcher_;
  EngineClient client_;
  EngineInfo info_;
};

// The answers of an engine with these options on one rank without optimizations: one request at a
// time, no prefix cache, no graphs, no step enqueued ahead.
Answers plain_answers(const OpenModel& model, const std::vector<Request>& requests,
                      EngineOptions options);

}  // namespace nvllm::runtime
