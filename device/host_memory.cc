#include "device/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"

namespace nvllm {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Requests below this are not checked: asking the system takes longer than they matter.
constexpr std::size_t kChecked = std::size_t{1} << 20;

// The number after `key` in a file of lines "key number"; `otherwise` where there is none.
std::size_t number_after(const std::string& path, const std::string& key, std::size_t otherwise) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    std::size_t number = 0;
    if (words >> word && word == key && words >> number) return number;
  }
  return otherwise;
}

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

// Applies the limits of the group at mount + path and of all groups above it.
void apply_limits(DeviceMemory& memory, const std::string& mount, std::string path,
                  const GroupFiles& files) {
  while (true) {
    const std::string folder = mount + path + "/";
    const std::size_t limit = number_in(folder + files.limit, kUnlimited);
    if (limit < memory.total) memory.total = limit;
    if (limit != kUnlimited) {
      const std::size_t usage = number_in(folder + files.usage, 0);
      const std::size_t reclaimable = number_after(folder + "memory.stat", files.reclaimable, 0);
      const std::size_t used = usage - std::min(usage, reclaimable);
      memory.available = std::min(memory.available, limit - std::min(limit, used));
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

DeviceMemory host_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  DeviceMemory memory;
  memory.total = number_after(meminfo, "MemTotal:", 0) * 1024;
  memory.available = number_after(meminfo, "MemAvailable:", 0) * 1024;

  // Lines "4:memory:/path" (version 1) and "0::/path" (version 2). In a container the path may be
  // one that only the host knows; then the mount itself is the container's group, and ends the walk
  // up.
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = str(",", line.substr(first + 1, second - first - 1), ",");
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (!path.empty() && path.front() != '/') continue;
    if (controllers == ",,") {
      apply_limits(memory, root + "/sys/fs/cgroup", path, kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      apply_limits(memory, root + "/sys/fs/cgroup/memory", path, kVersion1);
    }
  }
  return memory;
}

void require_host_memory(std::size_t bytes, std::size_t held, const std::string& purpose) {
  if (bytes < kChecked) return;
  const DeviceMemory memory = host_memory();
  const std::size_t unheld = memory.total - std::min(memory.total, held);
  const std::size_t available = std::min(memory.available, unheld);
  if (bytes <= available) return;
  fail("asked ", format_bytes(bytes), " of host memory for '", purpose, "'; the machine has ",
       format_bytes(memory.total), ", ", format_bytes(available), " available");
}

Buffer allocate_host(Ledger& ledger, MemoryKind kind, std::size_t bytes, const std::string& purpose,
                     std::size_t held) {
  if (bytes == 0) return Buffer(nullptr, 0, kind, nullptr);
  require_host_memory(bytes, held, purpose);
  const bool huge = bytes >= 2 * kHugePage;
  const std::size_t alignment = huge ? kHugePage : Arena::kAlignment;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, bytes) != 0) {
    const DeviceMemory memory = host_memory();
    fail("asked ", format_bytes(bytes), " of host memory for '", purpose,
         "', which the system refuses; the machine has ", format_bytes(memory.total), ", ",
         format_bytes(memory.available), " available");
  }
  if (huge) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only a hint
  const std::uint64_t id = ledger.add(kind, purpose, bytes);
  return Buffer(data, bytes, kind, [&ledger, id](void* memory) {
    std::free(memory);
    ledger.remove(id);
  });
}

}  // namespace nvllm
