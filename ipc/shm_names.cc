// Names in /dev/shm: who owns them, and removing those of owners that were killed.
#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/system_files.h"
#include "base/unique_fd.h"
#include "ipc/segment.h"

namespace nvllm::ipc {
namespace {

constexpr std::string_view kPrefix = "nvllm-";
// Prefix of the file of a named semaphore in the C library.
constexpr std::string_view kSemaphore = "sem.";

// 0 means unknown.
struct Owner {
  std::uint64_t pid_namespace = 0;
  std::uint64_t pid = 0;
  std::uint64_t started = 0;  // clock ticks after the machine's start
};

// Empty if there is no such process, or if it is a zombie.
std::optional<std::uint64_t> start_of(std::uint64_t pid) {
  const std::string text = system_text(str("/proc/", pid, "/stat"));
  // "pid (any name) state ...": the start is the 22nd field, the state the third.
  std::size_t at = text.rfind(')');
  if (at == std::string::npos || at + 2 >= text.size()) return std::nullopt;
  if (text[at + 2] == 'Z' || text[at + 2] == 'X') return std::nullopt;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t start = 0;
  std::from_chars(text.data() + at + 1, text.data() + text.size(), start);
  return start;
}

// All 0 if /proc is missing or belongs to another pid namespace.
Owner this_process() {
  struct stat about {};
  std::array<char, 32> self{};
  const ssize_t length = ::readlink("/proc/self", self.data(), self.size() - 1);
  if (length <= 0 || std::to_string(::getpid()) != self.data()) return {};
  if (::stat("/proc/self/ns/pid", &about) != 0) return {};
  const auto pid = static_cast<std::uint64_t>(::getpid());
  return {about.st_ino, pid, start_of(pid).value_or(0)};
}

// Parses a name of new_name(); empty if it has another form.
std::optional<Owner> owner_of(std::string_view name) {
  name.remove_prefix(kPrefix.size());
  Owner owner;
  for (std::uint64_t* const part : {&owner.pid_namespace, &owner.pid, &owner.started}) {
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), *part);
    if (error != std::errc() || end == name.data() + name.size() || *end != '-') {
      return std::nullopt;
    }
    name.remove_prefix(static_cast<std::size_t>(end - name.data()) + 1);
  }
  return owner;
}

// Whether no process has the file open or mapped for writing: only then does the kernel grant a
// write lease, which is returned immediately. Empty if leases are not supported.
std::optional<bool> unused(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return std::nullopt;
  // If another process opens the file meanwhile, this process gets a signal; the default, SIGIO,
  // would terminate it.
  ::fcntl(file.get(), F_SETSIG, SIGURG);
  if (::fcntl(file.get(), F_SETLEASE, F_WRLCK) == 0) {
    ::fcntl(file.get(), F_SETLEASE, F_UNLCK);
    return true;
  }
  return errno == EAGAIN ? std::optional(false) : std::nullopt;
}

double age_of(const struct stat& about) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec - about.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec - about.st_mtim.tv_nsec);
}

// sem_open() creates "sem.XXXXXX" and renames it when it is complete. The mode identifies such a
// file as ours.
bool is_unnamed_semaphore(std::string_view file, const struct stat& about) {
  constexpr std::size_t kRandom = 6;
  return file.starts_with(kSemaphore) && file.size() == kSemaphore.size() + kRandom &&
         (about.st_mode & ALLPERMS) == kSemaphoreMode &&
         (about.st_size == 0 || about.st_size == static_cast<off_t>(sizeof(sem_t)));
}

bool is_stale(std::string_view file, const std::string& path, const struct stat& about,
              const Owner& self) {
  // In seconds: longer than opening a new file takes, and longer than any name exists.
  constexpr double kOpened = 1, kForgotten = 60;
  const auto nobody_has_it = [&] {
    return age_of(about) > kOpened && unused(path).value_or(age_of(about) > kForgotten);
  };
  if (is_unnamed_semaphore(file, about)) return nobody_has_it();
  if (file.starts_with(kSemaphore)) file.remove_prefix(kSemaphore.size());
  if (!file.starts_with(kPrefix)) return false;
  const std::optional<Owner> owner = owner_of(file);
  if (owner && owner->pid_namespace != 0 && owner->pid_namespace == self.pid_namespace) {
    return start_of(owner->pid) != owner->started;
  }
  return nobody_has_it();
}

}  // namespace

std::string new_name() {
  std::array<unsigned char, 8> bits;
  if (::getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size())) {
    fail_errno("getrandom");
  }
  const Owner self = this_process();
  std::string name = str(kPrefix, self.pid_namespace, '-', self.pid, '-', self.started, '-');
  for (const unsigned char byte : bits) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

int sweep_stale_names(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir(folder.c_str()), ::closedir);
  if (!files) return 0;
  const Owner self = this_process();
  int removed = 0;
  while (const dirent* entry = ::readdir(files.get())) {
    const std::string path = str(folder, '/', entry->d_name);
    struct stat about {};
    if (::lstat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
    if (about.st_uid != ::geteuid() || !is_stale(entry->d_name, path, about, self)) continue;
    if (::unlink(path.c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace nvllm::ipc
