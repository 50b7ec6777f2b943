#include "runtime/engine/testing/test_engine.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "device/topology.h"
#include "runtime/worker/worker.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

constexpr Nanoseconds kPoll = std::chrono::milliseconds(200);

// One device per rank. If there are fewer GPUs than ranks, ranks share them, as in
// run_on_devices().
std::vector<std::string> gpus_of(int ranks) {
  const std::vector<std::string> gpus = visible_gpus();
  std::vector<std::string> all;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    all.push_back(gpus.at(rank % gpus.size()));
  }
  return all;
}

[[noreturn]] void be_rank(const ipc::Group& group, int rank, const OpenModel& model, int stages) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  WorkerOptions options;
  options.device = testing::device_under_test();
  options.log_level = LogLevel::warning;
  options.model = &model;
  options.stages = stages;
  if (options.device == DeviceKind::cuda) options.gpus = gpus_of(group.size());
  const int code = run_worker(group, rank, options);
  std::fflush(nullptr);
  ::_exit(code);
}

void take(Answer& answer, Update& update) {
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(answer.tokens, update.tokens);
  append(answer.logprobs, update.logprobs);
  append(answer.prompt_logprobs, update.prompt_logprobs);
  answer.finish = update.finish;
  answer.error = update.error;
  answer.cached_tokens = update.cached_tokens;
  answer.preemptions = update.preemptions;
  answer.kv_mode = update.kv_mode;
}

}  // namespace

WorkerProcesses::WorkerProcesses(const ipc::Group& group, const OpenModel& model, int stages)
    : group_(group) {
  std::fflush(nullptr);
  for (int rank = 0; rank < group.size(); ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) fail_errno("fork");
    if (pid == 0) be_rank(group, rank, model, stages);
    pids_.push_back(pid);
  }
  watcher_ = std::jthread([this] { watch(); });
}

WorkerProcesses::~WorkerProcesses() {
  if (!watcher_.joinable()) return;
  for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
}

void WorkerProcesses::watch() {
  for (std::size_t left = pids_.size(); left > 0; --left) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    const auto rank = static_cast<int>(std::ranges::find(pids_, pid) - pids_.begin());
    if (status == 0 || !wrong_.empty()) continue;
    wrong_ =
        str("rank ", rank, " ended with status ", status, ": ", group_.snapshot(rank).error_text);
    group_.abort(wrong_);
  }
}

std::string WorkerProcesses::wait() {
  watcher_.join();
  return wrong_;
}

TestEngine::TestEngine(const OpenModel& model, int ranks, const EngineOptions& options, int stages)
    : group_(ipc::Group::create({.size = stages * ranks})),
      workers_(group_, model, stages),
      launcher_(group_.join(ipc::kLauncher)),
      client_(launcher_),
      info_(client_.open(options)) {}

void TestEngine::poll_into(Book& book) {
  for (Update& update : client_.poll(kPoll)) {
    std::vector<Answer>& answers = book[update.request];
    const auto index = static_cast<std::size_t>(update.index);
    if (answers.size() <= index) answers.resize(index + 1);
    take(answers[index], update);
  }
}

Answers TestEngine::run(const std::vector<Request>& requests, std::uint64_t first_id) {
  std::uint64_t id = first_id;
  for (const Request& request : requests) client_.submit(id++, request);
  Book book;
  while (client_.unfinished() > 0) poll_into(book);
  Answers answers;
  for (id = first_id; answers.size() < requests.size(); ++id) {
    answers.push_back(std::move(book[id]));
  }
  return answers;
}

void TestEngine::stop() {
  group_.request_stop();
  if (const std::string wrong = workers_.wait(); !wrong.empty()) throw Error(wrong);
}

Answers plain_answers(const OpenModel& model, const std::vector<Request>& requests,
                      EngineOptions options) {
  options.max_num_seqs = 1;
  options.prefix_caching = false;
  options.graphs = false;
  options.async_scheduling = false;
  options.scheduling = Scheduling::prefill_first;
  TestEngine engine(model, 1, options);
  Answers answers;
  for (const Request& request : requests)
    answers.push_back(engine.run({request}, answers.size() + 1).front());
  engine.stop();
  return answers;
}

}  // namespace nvllm::runtime
