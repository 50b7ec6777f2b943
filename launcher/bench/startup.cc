#include "launcher/bench/startup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/unique_fd.h"
#include "launcher/cli/program.h"
#include "launcher/session/text_io.h"

namespace nvllm::launcher {

std::vector<StartupStage> startup_stages(std::int64_t started_ns, const runtime::EngineInfo& info,
                                         std::int64_t submitted_ns, std::int64_t first_token_ns) {
  const auto latest = [&](auto time_of) {
    std::int64_t last = started_ns;
    for (const runtime::RankLoad& rank : info.ranks) last = std::max(last, time_of(rank));
    return last;
  };
  using runtime::RankLoad;
  const std::pair<const char*, std::int64_t> stages[] = {
      {"all ranks forked and joined",
       latest([](const RankLoad& rank) { return rank.report.start.joined_ns; })},
      {"devices ready", latest([](const RankLoad& rank) { return rank.report.start.backend_ns; })},
      {"communicators ready",
       latest([](const RankLoad& rank) { return rank.report.start.communicator_ns; })},
      {"weights loaded", latest([](const RankLoad& rank) { return rank.times.loaded_ns; })},
      {"memory, graphs and cache ready", info.ready_ns},
      {"prompt asked", submitted_ns},
      {"first token", first_token_ns},
  };
  std::vector<StartupStage> result;
  for (const auto& [name, at] : stages) {
    result.push_back({name, static_cast<double>(at - started_ns) * 1e-9});
  }
  return result;
}

namespace {

using Json = nlohmann::ordered_json;

// This process's arguments, changed to make it a single run with a JSON report.
std::vector<std::string> arguments_of_one_run() {
  std::ifstream file("/proc/self/cmdline");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  for (std::size_t begin = 0; begin < all.size();) {
    arguments.emplace_back(all.c_str() + begin);
    begin += arguments.back().size() + 1;
  }
  if (arguments.empty()) fail("/proc/self/cmdline cannot be read; pass --repeat 1");
  for (const char* more : {"--repeat", "1", "--json"}) arguments.emplace_back(more);
  return arguments;
}

[[noreturn]] void become_program(std::vector<std::string>& arguments, pid_t parent, int output) {
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // it then stops its own workers
  if (::getppid() != parent) ::_exit(kExitFailed);
  ::dup2(output, STDOUT_FILENO);
  ::execv("/proc/self/exe", words.data());
  ::_exit(kExitFailed);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t size = ::read(fd, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail_errno("reading the report of a start");
    if (size == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(size));
  }
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) fail_errno("waiting for a start");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Returns the exit code; if 0, the run is complete.
int run_once(StartedRun& run) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("pipe for the report of a start");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::vector<std::string> arguments = arguments_of_one_run();
  const pid_t parent = ::getpid();
  const std::int64_t begin = now_ns();
  const pid_t pid = ::fork();
  if (pid < 0) fail_errno("fork of a start");
  if (pid == 0) become_program(arguments, parent, write_end.get());
  write_end.reset();
  run.report = read_all(read_end.get());
  const int exit_code = wait_for(pid);
  if (exit_code != kExitFine) return exit_code;
  run.exec_s = static_cast<double>(parse_startup_run(run.report).started_ns - begin) * 1e-9;
  return kExitFine;
}

// The part of the report that the table shows.
BenchSubject subject_of(const Json& report) {
  BenchSubject subject{.benchmark = report.at("benchmark"), .model = report.at("model")};
  subject.dummy = report.at("load_format") == "dummy";
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    if (report.at("dtype") == name_of(type)) subject.dtype = type;
  }
  subject.info.ranks.resize(report.at("ranks"));
  subject.info.ranks.at(0).report.device = report.at("device");
  return subject;
}

}  // namespace

std::string join_starts(const std::vector<StartedRun>& started, bool json) {
  std::vector<StartupRun> runs;
  for (const StartedRun& one : started) {
    runs.push_back(parse_startup_run(one.report));
    runs.back().exec_s = one.exec_s;
  }
  Json report = parse_ordered_json(started.at(0).report);
  const BenchSubject subject = subject_of(report);
  if (!json) return format_table(subject, runs);
  report.update(parse_ordered_json(format_json(runs)));
  return json_text(report, 2) + '\n';
}

int run_starts(const Options& options) {
  // A shell script ignores SIGINT for background jobs. The current run ends with this process.
  ::signal(SIGINT, SIG_DFL);
  std::vector<StartedRun> runs(static_cast<std::size_t>(options.bench.repeat));
  for (StartedRun& run : runs) {
    if (const int exit_code = run_once(run); exit_code != kExitFine) return exit_code;
  }
  write_results(join_starts(runs, options.json));
  return kExitFine;
}

}  // namespace nvllm::launcher
