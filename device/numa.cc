#include "device/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <fstream>

#include "base/error.h"

namespace nvllm {
namespace {

// As many as kernels are built for. The calls want one more than the number of bits.
constexpr std::size_t kNodes = 1024;
constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
using Nodes = std::array<unsigned long, kNodes / kWordBits>;

bool set_policy(int mode, const Nodes& nodes) {
  return ::syscall(SYS_set_mempolicy, mode, nodes.data(), kNodes + 1) == 0;
}

}  // namespace

int node_of_pci_device(const std::string& bus_id, const std::string& root) {
  // CUDA writes "00000000:3B:00.0" or "0000:3B:00.0", sysfs "0000:3b:00.0".
  std::string name = bus_id;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const std::size_t colon = name.find(':'); colon != std::string::npos && colon > 4) {
    name.erase(0, colon - 4);
  }
  std::ifstream file(root + "/sys/bus/pci/devices/" + name + "/numa_node");
  int node = kNoNode;
  return file >> node && node >= 0 && node < static_cast<int>(kNodes) ? node : kNoNode;
}

bool prefer_memory_of(int node) {
  if (node < 0 || node >= static_cast<int>(kNodes)) return false;
  const auto bit = static_cast<std::size_t>(node);
  Nodes nodes{};
  nodes[bit / kWordBits] = 1ul << bit % kWordBits;
  return set_policy(MPOL_PREFERRED, nodes);
}

std::string why_no_memory_policy() {
  int mode = 0;
  Nodes nodes{};
  const bool known = ::syscall(SYS_get_mempolicy, &mode, nodes.data(), kNodes + 1, nullptr, 0) == 0;
  return known && set_policy(mode, nodes) ? "" : errno_text(errno);
}

}  // namespace nvllm
