#include "testing/ranks.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/error.h"

namespace nvllm::testing {
namespace {

// Failed doctest assertions of this process since the fork.
std::string& failures_of_child() {
  static std::string failures;
  return failures;
}

// Receives every failed assertion; doctest calls it with a lock held.
class FailureCollector : public doctest::IReporter {
 public:
  explicit FailureCollector(const doctest::ContextOptions&) {}

  void log_assert(const doctest::AssertData& assert) override {
    if (!assert.m_failed) return;
    std::ostringstream line;
    line << assert.m_file << ':' << assert.m_line << ": " << assert.m_expr;
    if (assert.m_threw) line << " threw " << assert.m_exception.c_str();
    if (assert.m_decomp.size() != 0) line << " is " << assert.m_decomp.c_str();
    failures_of_child() += line.str() + '\n';
  }
  void log_message(const doctest::MessageData& message) override {
    if (!(message.m_severity & doctest::assertType::is_warn)) {
      failures_of_child() +=
          str(message.m_file, ':', message.m_line, ": ", message.m_string.c_str(), '\n');
    }
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("ranks", 1, FailureCollector);

constexpr const char* kAborted = "aborted: ";

std::string run_body(const ipc::Group& group, int rank, const RankBody& body) {
  return failures_of([&] {
    ipc::Member member = group.join(rank);
    member.set_phase(ipc::Phase::ready);
    body(member);
  });
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

[[noreturn]] void child_main(pid_t parent, const ipc::Group& group, int rank, const RankBody& body,
                             int reports) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  // doctest's handlers would write the reports of the whole run from this process.
  for (const int fatal : {SIGINT, SIGILL, SIGFPE, SIGSEGV, SIGTERM, SIGABRT}) {
    std::signal(fatal, SIG_DFL);
  }
  write_all(reports, run_body(group, rank, body));
  std::fflush(nullptr);
  std::cout.flush();
  _exit(0);
}

}  // namespace

std::string failures_of(const std::function<void()>& body) {
  failures_of_child().clear();
  try {
    body();
  } catch (const ipc::GroupAborted& error) {
    return failures_of_child() + kAborted + error.what();
  } catch (const std::exception& error) {
    return failures_of_child() + "exception: " + error.what();
  } catch (...) {  // what REQUIRE throws
    if (failures_of_child().empty()) return "unknown exception";
  }
  return failures_of_child();
}

std::string RankEnd::describe() const {
  std::string text = str("rank ", rank, ": ");
  if (hung)
    text += "did not end in time ";
  else if (WIFSIGNALED(status))
    text += str("killed by SIG", sigabbrev_np(WTERMSIG(status)), ' ');
  else if (WEXITSTATUS(status) != 0)
    text += str("exit code ", WEXITSTATUS(status), ' ');
  return text + report;
}

RankProcesses::RankProcesses(int size, const RankBody& body, ipc::GroupOptions options)
    : group_([&] {
        options.size = size;
        return ipc::Group::create(options);
      }()) {
  std::fflush(nullptr);  // or the children would print it again
  std::cout.flush();
  const pid_t parent = getpid();
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail_errno("pipe");
    Child child;
    child.reports = UniqueFd(ends[0]);
    const UniqueFd writer(ends[1]);
    child.end.rank = rank;
    child.pid = fork();
    if (child.pid < 0) fail_errno("fork");
    if (child.pid == 0) {
      fcntl(writer.get(), F_SETFL, 0);
      child_main(parent, group_, rank, body, writer.get());
    }
    children_.push_back(std::move(child));
  }
}

RankProcesses::~RankProcesses() {
  for (Child& child : children_) {
    if (child.ended) continue;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
}

void RankProcesses::signal(int rank, int signal_number) const {
  if (kill(pid(rank), signal_number) != 0) fail_errno("kill rank ", rank);
}

void RankProcesses::read_report(Child& child) {
  std::array<char, 4096> chunk;
  for (ssize_t n; (n = read(child.reports.get(), chunk.data(), chunk.size())) > 0;) {
    child.end.report.append(chunk.data(), static_cast<std::size_t>(n));
  }
}

void RankProcesses::reap(Child& child) {
  read_report(child);
  const pid_t pid = waitpid(child.pid, &child.end.status, WNOHANG);
  if (pid == child.pid) child.ended = true;
  if (child.ended) read_report(child);
}

std::vector<RankEnd> RankProcesses::wait_all(bool abort_on_failure, Nanoseconds limit) {
  const std::int64_t start = now_ns();
  const auto all_ended = [this] {
    return std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.ended; });
  };
  while (!all_ended()) {
    std::vector<pollfd> polls;
    for (const Child& child : children_) {
      if (!child.ended) polls.push_back({child.reports.get(), POLLIN, 0});
    }
    poll(polls.data(), polls.size(), 20);
    const bool late = now_ns() - start > limit.count();
    for (Child& child : children_) {
      if (child.ended) continue;
      if (late) {
        child.end.hung = true;
        child.end.report = group_.snapshot(child.end.rank).describe();
        kill(child.pid, SIGKILL);
      }
      reap(child);
      if (child.ended && abort_on_failure && !child.end.clean()) group_.abort(child.end.describe());
    }
    // A closed pipe polls as ready immediately; give its process time to become a zombie.
    if (!all_ended()) usleep(500);
  }
  std::vector<RankEnd> ends;
  for (const Child& child : children_) ends.push_back(child.end);
  return ends;
}

void run_ranks(int size, const RankBody& body, const ipc::GroupOptions& options) {
  RankProcesses ranks(size, body, options);
  const std::vector<RankEnd> ends = ranks.wait_all(true);
  const auto followed = [](const RankEnd& end) { return end.report.starts_with(kAborted); };
  const bool has_cause = std::any_of(
      ends.begin(), ends.end(), [&](const RankEnd& end) { return !end.clean() && !followed(end); });
  for (const RankEnd& end : ends) {
    if (end.clean() || (has_cause && followed(end))) continue;
    ADD_FAIL_CHECK_AT("testing/ranks.cc", 0, end.describe());
  }
}

std::vector<std::string> lingering_shm_names() {
  const auto list = [] {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("nvllm-") || name.starts_with("sem.nvllm-")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  std::vector<std::string> names = list();
  for (int look = 0; look < 20 && !names.empty(); ++look) {
    usleep(50'000);
    std::vector<std::string> still;
    const std::vector<std::string> now = list();
    std::set_intersection(names.begin(), names.end(), now.begin(), now.end(),
                          std::back_inserter(still));
    names = still;
  }
  return names;
}

}  // namespace nvllm::testing
