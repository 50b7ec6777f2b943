#include "device/host_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/system_files.h"
#include "base/unique_fd.h"

namespace nvllm {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Smaller requests are not checked: reading the system's figures costs more than they matter.
constexpr std::size_t kChecked = std::size_t{1} << 20;

// Memory that programs need besides what is requested here: heaps, stacks, page tables. This much,
// or a sixteenth of the total if that is less, is kept free.
constexpr std::size_t kReserve = std::size_t{64} << 20;

// The file's only number; `otherwise` if the file is missing or says "max".
std::size_t number_in(const std::string& path, std::size_t otherwise) {
  std::size_t number = 0;
  return std::ifstream(path) >> number ? number : otherwise;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // the key in memory.stat
};

constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

// --- Claims ---
//
// Linux provides memory when it is first touched. Two processes that check at the same time, ranks
// of one run or two runs, would both find enough, and one of them would be killed later. So a
// process publishes how much it was promised: its claim is a lock on a range of bytes of the folder
// /dev/shm, whose length is the number. Every process of the machine (or container) can read it, it
// leaves no file behind, and it ends with its process. Only the part of a claim that its process
// has not touched yet counts. Without support for such locks there are no claims.

constexpr const char* kFolder = "/dev/shm";

// A process's range begins at its slot * kSlot and has a byte for each page.
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kSlot = std::uint64_t{1} << 32;
constexpr std::uint64_t kEnd = (std::uint64_t{1} << 63) - 1;
constexpr std::uint64_t kPidBits = 22;
constexpr std::uint64_t kPidMask = (std::uint64_t{1} << kPidBits) - 1;
constexpr std::uint64_t kNamespaceMask = (std::uint64_t{1} << 9) - 1;

std::uint64_t own_pid() {
  return static_cast<std::uint64_t>(::getpid());
}

// The id of the pid namespace, within which a pid is unique.
std::uint64_t namespace_number() {
  struct stat about {};
  return ::stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino & kNamespaceMask : 0;
}

UniqueFd open_folder() {
  return UniqueFd(::open(kFolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// The memory of a process that it has touched.
std::uint64_t touched_by(std::uint64_t pid) {
  const std::string status = str("/proc/", pid, "/status");
  return (number_after(status, "RssAnon:").value_or(0) +
          number_after(status, "VmSwap:").value_or(0)) *
         1024;
}

struct Range {
  std::uint64_t begin, end;
};

// Any lock within the range, as the kernel reports it.
std::optional<Range> find_lock(int folder, const Range& within) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(within.begin);
  lock.l_len = static_cast<off_t>(within.end - within.begin);
  if (::fcntl(folder, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return std::nullopt;
  const auto begin = static_cast<std::uint64_t>(lock.l_start);
  return Range{begin, lock.l_len == 0 ? kEnd : begin + static_cast<std::uint64_t>(lock.l_len)};
}

// Memory that another process was promised and has not touched yet.
struct OtherClaim {
  std::uint64_t bytes = 0;
  std::vector<MemoryGroup> groups;  // its groups; empty if it is in another pid namespace
};

std::vector<OtherClaim> claims_of_others() {
  constexpr int kMaxLooks = 10'000;  // other programs may hold any number of locks
  const UniqueFd folder = open_folder();
  const std::uint64_t here = namespace_number();
  std::vector<OtherClaim> claims;
  std::vector<Range> unknown = {{0, kEnd}};
  for (int look = 0; folder && look < kMaxLooks && !unknown.empty(); ++look) {
    const Range range = unknown.back();
    unknown.pop_back();
    const std::optional<Range> found = find_lock(folder.get(), range);
    if (!found) continue;
    if (found->begin > range.begin) unknown.push_back({range.begin, found->begin});
    if (found->end < range.end) unknown.push_back({found->end, range.end});
    const std::uint64_t slot = found->begin / kSlot, pid = slot & kPidMask;
    const bool known = slot >> kPidBits == here;
    if (known && pid == own_pid()) continue;
    const std::uint64_t claim = std::min(found->end - found->begin, kSlot) * kPage;
    claims.push_back({claim - std::min(claim, known ? touched_by(pid) : 0),
                      known ? memory_groups(system_text(str("/proc/", pid, "/cgroup")))
                            : std::vector<MemoryGroup>()});
  }
  return claims;
}

// This process's claim, shared by all backends, since the kernel accounts per process. Thread-safe.
class Claim {
 public:
  static Claim& of_process() {
    static Claim claim;
    return claim;
  }

  std::uint64_t untouched() {
    const std::lock_guard lock(mutex_);
    if (held_ == 0 || pid_ != own_pid()) return 0;
    const std::uint64_t all = held_ + otherwise_;
    return all - std::min(all, touched_by(own_pid()));
  }

  void add(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (pid_ != own_pid()) begin();
    held_ += bytes;
    tell();
  }

  void remove(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (pid_ != own_pid()) return;  // a forked process has no claim to inherited memory
    held_ -= std::min(held_, bytes);
    tell();
  }

 private:
  void begin() {
    pid_ = own_pid();
    held_ = 0;
    otherwise_ = touched_by(pid_);
    first_ = (namespace_number() << kPidBits | (pid_ & kPidMask)) * kSlot;
    folder_ = open_folder();
  }

  // First extends the lock to the new range, then removes the rest: at no time is less locked than
  // before and after.
  void tell() const {
    const std::uint64_t bytes = held_ == 0 ? 0 : held_ + otherwise_;
    const std::uint64_t pages = std::min((bytes + kPage - 1) / kPage, kSlot - 1);
    struct flock lock {};
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(first_);
    lock.l_len = static_cast<off_t>(pages);
    lock.l_type = F_RDLCK;
    if (pages > 0) ::fcntl(folder_.get(), F_OFD_SETLK, &lock);
    lock.l_start += static_cast<off_t>(pages);
    lock.l_len = static_cast<off_t>(kSlot - pages);
    lock.l_type = F_UNLCK;
    ::fcntl(folder_.get(), F_OFD_SETLK, &lock);
  }

  std::mutex mutex_;
  std::uint64_t pid_ = 0;
  std::uint64_t held_ = 0;
  std::uint64_t otherwise_ = 0;  // touched for other purposes before the first claim
  std::uint64_t first_ = 0;
  UniqueFd folder_;
};

// While it exists no other process evaluates claims to make one. Waits a second at most, and only
// once: a process that was stopped while holding it must not block all others.
class Turn {
 public:
  Turn() : folder_(open_folder()) {
    constexpr Nanoseconds kLimit = std::chrono::seconds(1);
    static std::atomic<bool> waited_in_vain = false;
    const std::int64_t start = now_ns();
    while (folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (now_ns() - start > kLimit.count()) waited_in_vain = true;
      if (waited_in_vain) return;
      ::usleep(200);
    }
  }

 private:
  UniqueFd folder_;  // closed, it is unlocked
};

// Whether the groups of a process include this one, or one within it.
bool are_within(const std::vector<MemoryGroup>& groups, const MemoryGroup& outer) {
  const auto own = std::ranges::find(groups, outer.version2, &MemoryGroup::version2);
  return own != groups.end() &&
         (own->path == outer.path || own->path.starts_with(outer.path + "/"));
}

// The free memory for this process, and the part of it that others were promised.
struct FreeMemory {
  DeviceMemory memory;
  std::uint64_t claimed = 0;
};

class FreeMemoryReader {
 public:
  // Ignores promises unless the files are the system's own.
  explicit FreeMemoryReader(const std::string& root) : root_(root), real_(root == "/") {
    if (!real_) return;
    claims_ = claims_of_others();
    untouched_ = Claim::of_process().untouched();
  }

  FreeMemory read() {
    const std::string meminfo = root_ + "/proc/meminfo";
    std::uint64_t claimed = 0;
    for (const OtherClaim& claim : claims_) claimed += claim.bytes;
    apply(number_after(meminfo, "MemTotal:").value_or(0) * 1024,
          number_after(meminfo, "MemAvailable:").value_or(0) * 1024, claimed);
    // In a container the path may only exist on the host; then the mount itself is the container's
    // group, and ends the walk up.
    for (const MemoryGroup& group : memory_groups(system_text(root_ + "/proc/self/cgroup"))) {
      apply_groups(group);
    }
    return free_;
  }

 private:
  // Applies a limit: its total, what is available of it, and what others who share it were
  // promised.
  void apply(std::size_t total, std::size_t available, std::uint64_t claimed) {
    if (real_) {
      const std::size_t taken = std::min(kReserve, total / 16) + claimed + untouched_;
      available -= std::min(available, taken);
    }
    free_.memory.total = std::min(free_.memory.total, total);
    if (available >= free_.memory.available) return;
    free_.memory.available = available;
    free_.claimed = claimed;
  }

  // The limits of the group and of all groups above it.
  void apply_groups(MemoryGroup group) {
    const std::string mount = root_ + (group.version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const GroupFiles& files = group.version2 ? kVersion2 : kVersion1;
    while (true) {
      const std::string folder = mount + group.path + "/";
      const std::size_t limit = number_in(folder + files.limit, kUnlimited);
      if (limit != kUnlimited) {
        const std::size_t usage = number_in(folder + files.usage, 0);
        const std::size_t reclaimable =
            number_after(folder + "memory.stat", files.reclaimable).value_or(0);
        const std::size_t used = usage - std::min(usage, reclaimable);
        std::uint64_t claimed = 0;
        for (const OtherClaim& claim : claims_) {
          if (are_within(claim.groups, group)) claimed += claim.bytes;
        }
        apply(limit, limit - std::min(limit, used), claimed);
      }
      if (group.path.empty()) return;
      group.path.resize(group.path.rfind('/'));
    }
  }

  const std::string root_;
  const bool real_;
  std::vector<OtherClaim> claims_;
  std::uint64_t untouched_ = 0;
  FreeMemory free_ = {.memory = {.total = kUnlimited, .available = kUnlimited}};
};

}  // namespace

DeviceMemory host_memory(const std::string& root) {
  return FreeMemoryReader(root).read().memory;
}

void require_host_memory(std::size_t bytes, std::size_t held, const std::string& purpose) {
  if (bytes < kChecked) return;
  const auto [memory, claimed] = FreeMemoryReader("/").read();
  const std::size_t unheld = memory.total - std::min(memory.total, held);
  const std::size_t available = std::min(memory.available, unheld);
  if (bytes <= available) return;
  fail("asked ", format_bytes(bytes), " of host memory for '", purpose, "'; the machine has ",
       format_bytes(memory.total), ", ", format_bytes(available), " available",
       claimed == 0 ? "; free some, or use a smaller model or cache"
                    : str(" beside ", format_bytes(claimed),
                          " promised to other runs or ranks; end one, or take a smaller cache"));
}

Buffer allocate_host(Ledger& ledger, MemoryKind kind, std::size_t bytes, const std::string& purpose,
                     std::size_t held) {
  if (bytes == 0) return Buffer(nullptr, 0, kind, nullptr);
  std::optional<Turn> turn;
  if (bytes >= kChecked) turn.emplace();
  require_host_memory(bytes, held, purpose);
  const bool huge = bytes >= 2 * kHugePage;
  const std::size_t alignment = huge ? kHugePage : Arena::kAlignment;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, bytes) != 0) {
    const DeviceMemory memory = host_memory();
    rlimit limit{};
    const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    fail("asked ", format_bytes(bytes), " of host memory for '", purpose,
         "', which the system refuses; the machine has ", format_bytes(memory.total), ", ",
         format_bytes(memory.available), " available",
         limited ? "; raise the limit (ulimit -v)" : "");
  }
  if (huge) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only a hint
  if (turn) Claim::of_process().add(bytes);
  const std::uint64_t id = ledger.add(kind, purpose, bytes);
  return Buffer(data, bytes, kind, [&ledger, id, bytes](void* memory) {
    std::free(memory);
    if (bytes >= kChecked) Claim::of_process().remove(bytes);
    ledger.remove(id);
  });
}

}  // namespace nvllm
