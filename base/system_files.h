// Reads system files about processes (/proc) and their control groups. A process may end, and its
// files vanish, at any moment: then the content is empty, which is not an Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nvllm {

// The content of a file; empty if it does not exist, or if its process ends meanwhile.
std::string system_text(const std::string& path);

// The number after `key` in a file of lines "key number".
std::optional<std::uint64_t> number_after(const std::string& path, const std::string& key);

// A control group for memory, version 1 or 2.
struct MemoryGroup {
  std::string path;  // below the mount, "/docker/abc"; without a slash at its end
  bool version2 = false;
};

// The groups in the text of a /proc/PID/cgroup, in its order.
std::vector<MemoryGroup> memory_groups(const std::string& text);

}  // namespace nvllm
