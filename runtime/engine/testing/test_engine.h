// TestEngine: an engine of real worker processes, as a launcher has it, for tests; and all answers
// to some requests at once. Link the test with //testing:cpu_ranks or //testing:cuda_ranks: they
// say on which devices the ranks run.
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

// By request, in their order, and by index below its n.
using Answers = std::vector<std::vector<Answer>>;

// The workers of a group. A thread waits for their ends, and aborts the group at the first bad one.
class WorkerProcesses {
 public:
  // Forks them. The caller has no other threads.
  WorkerProcesses(const ipc::Group& group, const OpenModel& model, int stages);
  ~WorkerProcesses();  // kills what is left
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  const std::vector<pid_t>& pids() const { return pids_; }
  // Waits for all; what was wrong with the first that did not end well, or nothing.
  std::string wait();

 private:
  void watch();

  const ipc::Group& group_;
  std::vector<pid_t> pids_;
  std::string wrong_;
  std::jthread watcher_;
};

// Used by one thread, the process's main thread, before there are others.
class TestEngine {
 public:
  // Forks the ranks and waits until the engine is open. The model must outlive it. stages: of a
  // pipeline, of so many ranks each.
  TestEngine(const OpenModel& model, int ranks, const EngineOptions& options, int stages = 1);

  const EngineInfo& info() const { return info_; }
  EngineClient& client() { return client_; }
  const ipc::Group& group() const { return group_; }
  const std::vector<pid_t>& pids() const { return workers_.pids(); }

  // All at the same time, under numbers from this one on.
  Answers run(const std::vector<Request>& requests, std::uint64_t first_id = 1);

  // For tests that submit requests of their own: waits for updates, and puts them with what came of
  // their requests before.
  using Book = std::map<std::uint64_t, std::vector<Answer>>;
  void poll_into(Book& book);

  // Ends the ranks in order; an Error if one did not end well.
  void stop();

 private:
  ipc::Group group_;
  WorkerProcesses workers_;
  ipc::Member launcher_;
  EngineClient client_;
  EngineInfo info_;
};

// Of an engine with these options on one rank, without anything that is clever: one request at a
// time, no prefix cache, no graphs, no step ahead.
Answers plain_answers(const OpenModel& model, const std::vector<Request>& requests,
                      EngineOptions options);

}  // namespace nvllm::runtime
