// A mock of the driver's library, which reports other GPUs than this machine has. $FAKE_NVML is a
// list of words:
//   gpus=2    number of GPUs
//   error=18  error code of its initialization
//   nvlink    the GPUs are connected by NVLink, otherwise by one PCIe switch
//   apart     the GPUs cannot access each other's memory
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* setting() {
  const char* const text = std::getenv("FAKE_NVML");
  return text == nullptr ? "" : text;
}

bool has(const char* word) {
  return std::strstr(setting(), word) != nullptr;
}

int number(const char* word) {
  const char* const at = std::strstr(setting(), word);
  return at == nullptr ? 0 : std::atoi(at + std::strlen(word));
}

// Targets of its handles.
std::array<char, 64> devices;

std::ptrdiff_t index_of(void* device) {
  return static_cast<char*>(device) - devices.data();
}

struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return number("error=");
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int error) {
  return error == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::snprintf(text, bytes, "580.82.07");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(number("gpus="));
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "GPU-fake-%d", static_cast<int>(index_of(device)));
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "Fake H200");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, std::uint64_t bytes[3]) {
  bytes[0] = std::uint64_t{140} << 30;
  bytes[1] = std::uint64_t{139} << 30;
  bytes[2] = std::uint64_t{1} << 30;
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::snprintf(info->address, sizeof(info->address), "00000000:%02X:00.0",
                static_cast<int>(0x3b + index_of(device)));
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetComputeMode(void*, int* mode) {
  *mode = 0;
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned, int* active) {
  *active = has("nvlink") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetP2PStatus(void*, void*, int which, int* status) {
  constexpr int kNvlink = 2;
  *status = (which == kNvlink ? has("nvlink") : !has("apart")) ? 0 : 5;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) {
  *level = 10;
  return 0;
}
}
