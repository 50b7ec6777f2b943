#include "launcher/testing/program.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/system_files.h"

namespace nvllm::testing {

namespace {

std::string read_file(int fd) {
  std::string all;
  std::array<char, 4096> chunk;
  for (ssize_t n;
       (n = ::pread(fd, chunk.data(), chunk.size(), static_cast<off_t>(all.size()))) > 0;) {
    all.append(chunk.data(), static_cast<std::size_t>(n));
  }
  return all;
}

UniqueFd memory_file(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) fail_errno("memfd_create");
  // Several threads write to it. The kernel guards the position of a file that was opened, but not
  // that of this one; what is appended overwrites nothing.
  if (::fcntl(file.get(), F_SETFL, O_APPEND) != 0) fail_errno("fcntl");
  return file;
}

}  // namespace

std::string launch_program() {
  if (const char* given = std::getenv("NVLLM_LAUNCH")) return given;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const std::filesystem::path& path :
       {std::filesystem::path("launcher/nvllm-launch"), here / "nvllm-launch",
        here / "launcher/nvllm-launch", here.parent_path() / "nvllm-launch"}) {
    if (std::filesystem::is_regular_file(path)) return std::filesystem::absolute(path);
  }
  fail("nvllm-launch not found; set NVLLM_LAUNCH to its path");
}

bool await_until(const std::function<bool()>& condition, Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (!condition()) {
    if (now_ns() >= end) return false;
    ::usleep(1000);
  }
  return true;
}

bool process_gone(pid_t pid) {
  const std::string text = system_text(str("/proc/", pid, "/stat"));
  return text.empty() || text.find(") Z ") != std::string::npos ||
         text.find(") X ") != std::string::npos;
}

Program::Program(const std::vector<std::string>& arguments, const std::function<void()>& prepare)
    : output_(memory_file("stdout")), errors_(memory_file("stderr")) {
  const std::string path = launch_program();
  std::vector<std::string> words = {"nvllm-launch"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  pid_ = ::fork();
  if (pid_ < 0) fail_errno("fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(output_.get(), STDOUT_FILENO);
    ::dup2(errors_.get(), STDERR_FILENO);
    if (prepare) prepare();
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
}

Program::~Program() {
  if (exit_code_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Program::signal(int number) const {
  ::kill(pid_, number);
}

std::vector<pid_t> Program::workers(int count) const {
  std::vector<pid_t> pids;
  await_until([&] {
    pids.clear();
    std::ifstream file(str("/proc/", pid_, "/task/", pid_, "/children"));
    for (pid_t pid; file >> pid;) pids.push_back(pid);
    return pids.size() == static_cast<std::size_t>(count);
  });
  if (pids.size() != static_cast<std::size_t>(count)) {
    fail("nvllm-launch has ", pids.size(), " children, not ", count, "; it said: ", errors());
  }
  return pids;
}

int Program::wait(Nanoseconds limit) {
  int status = 0;
  const bool ended = await_until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, limit);
  if (!ended) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    exit_code_ = -1;
  } else {
    exit_code_ = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return *exit_code_;
}

std::string Program::output() const {
  return read_file(output_.get());
}

std::string Program::errors() const {
  return read_file(errors_.get());
}

bool Program::await_error(const std::string& text, Nanoseconds limit) const {
  return await_until([&] { return errors().find(text) != std::string::npos; }, limit);
}

bool mount_own_shm(const char* options, unsigned long flags) {
  if (::unshare(CLONE_NEWNS) != 0) {
    const uid_t user = ::getuid();
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", flags, options) == 0;
}

}  // namespace nvllm::testing
