// The machine's GPUs (queried without creating a CUDA context), cores, and NUMA nodes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm {

// The GPUs that this process may use, one value for CUDA_VISIBLE_DEVICES per GPU: the entries of
// that variable if it is set (indices or UUIDs; like CUDA, up to the first that does not exist),
// otherwise "0", "1", ... Queries NVML, so no CUDA context is created. Empty without a driver or a
// GPU; then `why_none`, if not null, says what is missing.
std::vector<std::string> visible_gpus(std::string* why_none = nullptr);

// The same for a given value of CUDA_VISIBLE_DEVICES (nullopt: not set) on a machine whose GPUs
// have these UUIDs ("GPU-3f..."), in order. Follows CUDA's rules: entries are indices, UUIDs or an
// unambiguous prefix of one; the list ends before the first entry that selects no GPU; selecting
// one twice yields no GPU at all. Entries "MIG-..." are passed through.
std::vector<std::string> select_gpus(std::optional<std::string_view> visible_devices,
                                     const std::vector<std::string>& uuids,
                                     std::string* why_none = nullptr);

// One UUID ("GPU-3f...") per GPU. Reads the driver's files in /proc, which takes no time, or asks
// NVML if they are incomplete (50 ms). Empty, with the reason, without a driver or a GPU.
std::vector<std::string> gpu_uuids(std::string* why_none);

// Reads the same from the driver's files alone: every GPU below `proc` whose device file below
// `dev` this process may use, by bus address. nullopt if the files are incomplete: no such folder,
// or a GPU that has not been used since boot.
std::optional<std::vector<std::string>> gpu_uuids_of_driver(
    const std::string& proc = "/proc/driver/nvidia/gpus", const std::string& dev = "/dev");

// What to call GPUs so that no two of any machines have the same name: the UUIDs, or "MIG-...", of
// those that select_gpus() gives for these UUIDs. None for what cannot be told.
std::vector<std::string> names_of_gpus(const std::vector<std::string>& selected,
                                       const std::vector<std::string>& uuids);

// The cores this process may run on, in order.
std::vector<int> allowed_cores();

// Restricts all threads of the calling process to those cores. Does nothing for an empty list.
void run_on_cores(const std::vector<int>& cores);

// This rank's share of the cores when `ranks` processes split them evenly; with fewer cores than
// ranks, one core each, round robin.
std::vector<int> share_of_cores(const std::vector<int>& cores, int rank, int ranks);

// The allowed cores local to a PCI device ("0000:3b:00.0"); empty if the system does not report
// them.
std::vector<int> cores_near_pci_device(const std::string& bus_id);

// "0-3,8,10-11" as the kernel writes lists of cores; an Error for anything else.
std::vector<int> parse_core_list(std::string_view text);

inline constexpr int kNoNode = -1;

// Returns the NUMA node of a PCI device; kNoNode if the system does not report it, as on machines
// with one node. `root` is "/" except in tests.
int node_of_pci_device(const std::string& bus_id, const std::string& root = "/");

// From now on new pages of the calling thread, and of threads that it starts, come from this node
// as long as it has free pages. Pinned pages do not move, so this must be called before pinning
// memory. Returns false, without effect, if the system refuses; also for kNoNode.
bool prefer_memory_of(int node);

// Why this process may not set a memory policy; empty: it may. Containers often forbid it.
std::string why_no_memory_policy();

}  // namespace nvllm
