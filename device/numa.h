// Which memory is near: the NUMA node of a PCI device, and taking pages from there.
#pragma once

#include <string>

namespace nvllm {

inline constexpr int kNoNode = -1;

// kNoNode where the system does not say, as on machines with one node. `root` is "/" but in tests.
int node_of_pci_device(const std::string& bus_id, const std::string& root = "/");

// From now on new pages of the calling thread, and of threads that it starts, come from this node as long as that has
// some. Pinned pages stay where they are, so who will pin memory has to say it before. False: the system refuses,
// which changes nothing; so does kNoNode.
bool prefer_memory_of(int node);

// Why this process may not say where its pages come from; empty: it may. Containers often forbid it.
std::string why_no_memory_policy();

}  // namespace nvllm
