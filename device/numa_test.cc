#include <doctest/doctest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "device/topology.h"
#include "testing/skip.h"

namespace nvllm {
namespace {

namespace fs = std::filesystem;

int mode_now() {
  int mode = -1;
  ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0);
  return mode;
}

int node_of_a_new_page() {
  constexpr std::size_t kPage = 4096;
  void* const page =
      ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  *static_cast<volatile char*>(page) = 1;
  int node = kNoNode;
  ::syscall(SYS_get_mempolicy, &node, nullptr, 0, page, MPOL_F_NODE | MPOL_F_ADDR);
  ::munmap(page, kPage);
  return node;
}

TEST_CASE("the node of a PCI device is the one that sysfs has, however its id is written") {
  const fs::path root = fs::path(std::getenv("TEST_TMPDIR")) / "numa";
  const fs::path devices = root / "sys/bus/pci/devices";
  fs::create_directories(devices / "0000:3b:00.0");
  fs::create_directories(devices / "0000:5e:00.0");
  std::ofstream(devices / "0000:3b:00.0/numa_node") << "1\n";
  std::ofstream(devices / "0000:5e:00.0/numa_node") << "-1\n";
  CHECK(node_of_pci_device("0000:3b:00.0", root) == 1);
  CHECK(node_of_pci_device("00000000:3B:00.0", root) == 1);
  CHECK(node_of_pci_device("0000:5e:00.0", root) == kNoNode);
  CHECK(node_of_pci_device("0000:77:00.0", root) == kNoNode);
  CHECK(node_of_pci_device("", root) == kNoNode);
  CHECK(node_of_pci_device("../../etc", root) == kNoNode);
}

TEST_CASE("new pages come from the node that is preferred, also those of threads that come later") {
  if (const std::string why = why_no_memory_policy(); !why.empty()) {
    SKIP_TEST("memory policies: " + why);
  }
  // A thread of its own, with which the policy goes.
  std::thread([] {
    CHECK(prefer_memory_of(0));
    CHECK(mode_now() == MPOL_PREFERRED);
    int later = -1;
    std::thread([&] { later = mode_now(); }).join();
    CHECK(later == MPOL_PREFERRED);
    CHECK(why_no_memory_policy() == "");  // to ask changes nothing
    CHECK(mode_now() == MPOL_PREFERRED);
    CHECK(node_of_a_new_page() == 0);
  }).join();
}

TEST_CASE("a node that the machine does not have, or none, changes nothing") {
  const int before = mode_now();
  for (const int node : {kNoNode, 1000, 1 << 20}) {
    CHECK_FALSE(prefer_memory_of(node));
    CHECK(mode_now() == before);
  }
}

}  // namespace
}  // namespace nvllm
