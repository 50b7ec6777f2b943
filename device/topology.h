// What the machine has: GPUs (asked without creating a CUDA context), cores, and NUMA nodes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm {

// The GPUs this process may use, as values for CUDA_VISIBLE_DEVICES, one per GPU: the entries of
// that variable where it is set (indices or UUIDs; as CUDA does, up to the first that does not
// exist), else "0", "1", ... Asks NVML, so no CUDA context comes to be. Empty without a driver or a
// GPU; then `why_none`, if not null, says what is missing.
std::vector<std::string> visible_gpus(std::string* why_none = nullptr);

// The same for a given value of CUDA_VISIBLE_DEVICES (nullopt: not set) on a machine whose GPUs
// have these UUIDs ("GPU-3f..."), in order. As CUDA reads it: entries are indices, UUIDs or the
// unambiguous beginning of one; the list ends before the first entry that names no GPU; naming one
// twice leaves none at all. Entries "MIG-..." are passed on unseen.
std::vector<std::string> select_gpus(std::optional<std::string_view> visible_devices,
                                     const std::vector<std::string>& uuids,
                                     std::string* why_none = nullptr);

// One UUID ("GPU-3f...") per GPU. Asks the driver's files in /proc, which takes no time, and NVML
// where they do not tell (50 ms). Empty, with the reason, without a driver or a GPU.
std::vector<std::string> gpu_uuids(std::string* why_none);

// Reads the same from the driver's files alone: every GPU below `proc` whose device file below
// `dev` this process may use, by bus address. Nothing if the files do not tell: no such folder, a
// GPU that has not been started since boot.
std::optional<std::vector<std::string>> gpu_uuids_of_driver(
    const std::string& proc = "/proc/driver/nvidia/gpus", const std::string& dev = "/dev");

// The cores this process may run on, in order.
std::vector<int> allowed_cores();

// Restricts the calling process, all of its threads, to those cores. Does nothing for an empty
// list.
void run_on_cores(const std::vector<int>& cores);

// This rank's share of the cores when `ranks` processes split them evenly; with fewer cores than
// ranks, one core each, shared round robin.
std::vector<int> share_of_cores(const std::vector<int>& cores, int rank, int ranks);

// The allowed cores beside a PCI device ("0000:3b:00.0"); empty where the system does not say.
std::vector<int> cores_near_pci_device(const std::string& bus_id);

// "0-3,8,10-11" as the kernel writes lists of cores; an Error for anything else.
std::vector<int> parse_core_list(std::string_view text);

inline constexpr int kNoNode = -1;

// Returns the NUMA node beside a PCI device; kNoNode where the system does not say, as on machines
// with one node. `root` is "/" but in tests.
int node_of_pci_device(const std::string& bus_id, const std::string& root = "/");

// From now on new pages of the calling thread, and of threads that it starts, come from this node
// as long as that has some. Pinned pages stay where they are, so who will pin memory has to say it
// before. False: the system refuses, which changes nothing; so does kNoNode.
bool prefer_memory_of(int node);

// Why this process may not say where its pages come from; empty: it may. Containers often forbid
// it.
std::string why_no_memory_policy();

}  // namespace nvllm
