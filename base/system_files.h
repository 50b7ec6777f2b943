// What the system tells in files: about processes (/proc) and their control groups. A process may
// end, and a file go, at any moment: then there is nothing to be read, which is no Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nvllm {

// The whole of a file; empty if there is none, or if the process that it is about ends meanwhile.
std::string system_text(const std::string& path);

// The number after `key` in a file of lines "key number".
std::optional<std::uint64_t> number_after(const std::string& path, const std::string& key);

// A control group for memory, version 1 or 2.
struct MemoryGroup {
  std::string path;  // below the mount, "/docker/abc"; without a slash at its end
  bool version2 = false;
};

// Those in the text of a /proc/PID/cgroup, in its order.
std::vector<MemoryGroup> memory_groups(const std::string& text);

}  // namespace nvllm
