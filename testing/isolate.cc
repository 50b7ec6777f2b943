#include "testing/isolate.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace nvllm::testing {
namespace {

using Clock = std::chrono::steady_clock;

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "nvllm-test-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot create " + pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Starts this program again, in a process group of its own, with its output in a file.
pid_t start(std::vector<std::string> arguments, const std::string& output) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (pid > 0) return pid;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  unsetenv("XML_OUTPUT_FILE");  // the parent writes it
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

// Kills and reaps processes that the case left running. Most are in the group; the rest became our
// children when their parent died (we are their subreaper).
void kill_leftovers(pid_t group) {
  kill(-group, SIGKILL);
  const std::string list = "/proc/self/task/" + std::to_string(getpid()) + "/children";
  for (int pass = 0; pass < 100; ++pass) {
    std::ifstream children(list);
    bool any = false;
    for (pid_t pid; children >> pid; any = true) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (!any) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

struct Ending {
  bool in_time = false;
  int status = 0;
};

// Also reaps the case's orphans: a test may check whether they are gone, including zombies.
Ending wait_for(pid_t pid, std::chrono::seconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  Ending ending;
  for (auto pause = std::chrono::microseconds(200);;) {
    for (pid_t ended; (ended = waitpid(-1, &ending.status, WNOHANG)) > 0;) {
      if (ended == pid) {
        ending.in_time = true;
        return ending;
      }
    }
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(20));
  }
  kill(-pid, SIGKILL);
  waitpid(pid, &ending.status, 0);
  return ending;
}

std::string describe(const Ending& ending, std::chrono::seconds limit) {
  if (!ending.in_time) return "no end after " + std::to_string(limit.count()) + " s: killed";
  if (WIFSIGNALED(ending.status)) {
    const char* name = sigabbrev_np(WTERMSIG(ending.status));
    return std::string("ended by SIG") + (name != nullptr ? name : "?");
  }
  return "exit code " + std::to_string(WEXITSTATUS(ending.status)) + " without a result";
}

// Uses the case's own report if it wrote one, otherwise how its process ended.
void judge(const Ending& ending, std::chrono::seconds limit, const std::string& report,
           CaseResult& result) {
  try {
    const std::vector<CaseResult> own = read_json(report);
    if (ending.in_time && own.size() == 1) {
      result.verdict = own[0].verdict;
      result.detail = own[0].detail;
      if (result.verdict == Verdict::failed || ending.status == 0) return;
    }
  } catch (const std::exception&) {  // no report: the process did not get that far
  }
  result.verdict = Verdict::failed;
  result.detail = describe(ending, limit);
}

// Shared by the jobs of a run.
struct Run {
  const std::vector<CaseResult>& cases;
  const std::vector<std::string>& arguments;
  std::chrono::seconds limit;
  const ScratchFolder& scratch;

  // A report of one case, by its index.
  std::string verdict_file(std::size_t i) const {
    return scratch.file("verdict-" + std::to_string(i) + ".json");
  }
};

CaseResult run_case(const Run& run, std::size_t i) {
  const std::string number = std::to_string(i + 1);  // doctest counts from 1
  const std::string report = run.scratch.file("report-" + number + ".json");
  const std::string output = run.scratch.file("output-" + number);
  std::vector<std::string> command = run.arguments;
  command.insert(command.end(), {"--first=" + number, "--last=" + number, "--json=" + report});
  CaseResult result = run.cases[i];

  const Clock::time_point started = Clock::now();
  const pid_t pid = start(command, output);
  const Ending ending = wait_for(pid, run.limit);
  result.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  kill_leftovers(pid);
  judge(ending, run.limit, report, result);

  if (result.verdict == Verdict::failed) std::fputs(read_file(output).c_str(), stdout);
  std::printf("[%zu/%zu] %s %.2f s  %s%s%s\n", i + 1, run.cases.size(),
              std::string(name_of(result.verdict)).c_str(), result.seconds, result.name.c_str(),
              result.detail.empty() ? "" : ": ", result.detail.c_str());
  std::fflush(stdout);
  std::filesystem::remove(report);
  std::filesystem::remove(output);
  return result;
}

// A process that runs cases until none is left: orphans of its cases become its children, and not
// another job's.
pid_t start_job(const Run& run, std::atomic<std::size_t>& next) {
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (std::size_t i; (i = next.fetch_add(1)) < run.cases.size();) {
    write_json(run.verdict_file(i), {run_case(run, i)});
  }
  _exit(0);
}

CaseResult verdict_of(const Run& run, std::size_t i) {
  try {
    return read_json(run.verdict_file(i)).at(0);
  } catch (const std::exception&) {  // the job has ended
    CaseResult result = run.cases[i];
    result.verdict = Verdict::failed;
    result.detail = "the process that was to run it has ended";
    return result;
  }
}

}  // namespace

std::vector<CaseResult> run_isolated(const std::vector<CaseResult>& cases,
                                     const std::vector<std::string>& arguments,
                                     std::chrono::seconds limit, int jobs) {
  const ScratchFolder scratch;
  const Run run{cases, arguments, limit, scratch};
  void* const shared = mmap(nullptr, sizeof(std::atomic<std::size_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + std::strerror(errno));
  auto* const next = new (shared) std::atomic<std::size_t>(0);
  for (int job = 0; job < jobs; ++job) start_job(run, *next);
  while (wait(nullptr) > 0 || errno == EINTR) {
  }
  munmap(shared, sizeof(std::atomic<std::size_t>));
  std::vector<CaseResult> results;
  for (std::size_t i = 0; i < cases.size(); ++i) results.push_back(verdict_of(run, i));
  return results;
}

}  // namespace nvllm::testing
