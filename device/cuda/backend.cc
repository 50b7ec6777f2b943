#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread.h"
#include "device/cuda/stream.h"
#include "device/cuda/stream_impl.h"
#include "device/host_memory.h"

namespace nvllm {

bool cuda_built() {
  return true;
}

namespace cuda {
namespace {

constexpr int kDevice = 0;  // among the visible ones
constexpr std::size_t kMinPages = std::size_t{16}
                                  << 20;  // unit of pinned memory that is populated first

class CudaBackend final : public Backend {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }

  std::string description() const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, kDevice), "asking for the GPU's name");
    return properties.name;
  }

  std::string pci_bus_id() const override {
    std::array<char, 32> id{};
    check(cudaDeviceGetPCIBusId(id.data(), id.size(), kDevice), "asking for the GPU's PCI bus id");
    return id.data();
  }

  DeviceMemory memory() const override {
    DeviceMemory memory;
    check(cudaMemGetInfo(&memory.available, &memory.total), "asking for the GPU's memory");
    return memory;
  }

  Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) override {
    switch (kind) {
      case MemoryKind::device: return allocate_device(bytes, purpose);
      case MemoryKind::pinned: return allocate_pinned(bytes, purpose);
      case MemoryKind::host: break;
    }
    return allocate_host(ledger(), kind, bytes, purpose, held_on_host());
  }

  std::unique_ptr<nvllm::Stream> create_stream(StreamPriority priority) override {
    return std::make_unique<Stream>(priority, captures_);
  }

  std::unique_ptr<nvllm::Event> create_event(bool timing) override {
    return std::make_unique<Event>(timing);
  }

  void copy(void* to, const void* from, std::size_t bytes, nvllm::Stream& stream) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "copying");
  }

  void fill(void* to, unsigned char value, std::size_t bytes, nvllm::Stream& stream) override {
    if (bytes == 0) return;
    const cudaError_t error = cudaMemsetAsync(to, value, bytes, native(stream));
    if (error != cudaErrorInvalidValue) return check(error, "filling memory");
    // The GPU cannot access pageable memory; the host fills it in stream order.
    cudaGetLastError();
    stream.host_call([=] { std::memset(to, value, bytes); });
  }

  std::unique_ptr<nvllm::Graph> capture(nvllm::Stream& stream,
                                        const std::function<void()>& work) override {
    return std::make_unique<Graph>(stream, work, captures_);
  }

 private:
  Buffer allocate_device(std::size_t bytes, const std::string& purpose) {
    if (bytes == 0) return Buffer(nullptr, 0, MemoryKind::device, nullptr);
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const DeviceMemory there = memory();
      fail("asked ", format_bytes(bytes), " of GPU memory for '", purpose, "'; the GPU (",
           description(), ") has ", format_bytes(there.total), ", ", format_bytes(there.available),
           " free");
    }
    check(error, "allocating GPU memory");
    return enter(data, bytes, MemoryKind::device, purpose, [](void* p) { cudaFree(p); });
  }

  Buffer allocate_pinned(std::size_t bytes, const std::string& purpose) {
    if (bytes == 0) return Buffer(nullptr, 0, MemoryKind::pinned, nullptr);
    if (bytes >= kMinPages) return pin_pages(bytes, purpose);
    require_host_memory(bytes, held_on_host(), purpose);
    void* data = nullptr;
    check_pinned(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), bytes, purpose);
    return enter(data, bytes, MemoryKind::pinned, purpose, [](void* p) { cudaFreeHost(p); });
  }

  // The driver blocks all other calls while it allocates pinned memory, most of the time in the
  // system clearing pages. So the pages are allocated first, huge ones if possible, and then
  // registered: in a twentieth of the time. As with all memory, the owner has waited for the work
  // that uses it before releasing it. Work that was not waited for finds the pages unmapped from
  // the device, and so cannot access memory that has been reused.
  Buffer pin_pages(std::size_t bytes, const std::string& purpose) {
    auto pages = std::make_shared<Buffer>(
        allocate_host(ledger(), MemoryKind::pinned, bytes, purpose, held_on_host()));
    auto* const data = static_cast<unsigned char*>(pages->data());
    touch_pages(data, bytes);
    check_pinned(cudaHostRegister(data, bytes, cudaHostRegisterDefault), bytes, purpose);
    return Buffer(data, bytes, MemoryKind::pinned, [pages](void* p) mutable {
      cudaHostUnregister(p);
      pages.reset();
    });
  }

  static void touch_pages(unsigned char* data, std::size_t bytes) {
    constexpr std::size_t kPage = 4096, kTouchers = 8;
    const std::size_t part = (bytes + kTouchers - 1) / kTouchers;
    std::vector<std::jthread> threads;  // joined before the function returns, also by an exception
    for (std::size_t first = 0; first < bytes; first += part) {
      const std::size_t end = std::min(first + part, bytes);
      threads.push_back(start_thread<std::jthread>("to get pinned memory with", [=] {
        for (std::size_t at = first; at < end; at += kPage) data[at] = 0;
      }));
    }
  }

  static void check_pinned(cudaError_t error, std::size_t bytes, const std::string& purpose) {
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const DeviceMemory there = host_memory();
      fail("asked ", format_bytes(bytes), " of pinned host memory for '", purpose,
           "', which the driver refuses; the machine has ", format_bytes(there.total), ", ",
           format_bytes(there.available), " available (see also ulimit -l)");
    }
    check(error, "allocating pinned memory");
  }

  Buffer enter(void* data, std::size_t bytes, MemoryKind kind, const std::string& purpose,
               void (*release)(void*)) {
    const std::uint64_t id = ledger().add(kind, purpose, bytes);
    return Buffer(data, bytes, kind, [this, id, release](void* memory) {
      release(memory);
      ledger().remove(id);
    });
  }

  std::size_t held_on_host() const {
    return ledger().total(MemoryKind::pinned) + ledger().total(MemoryKind::host);
  }

  Captures captures_;
};

}  // namespace

std::unique_ptr<Backend> create_backend() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
      error == cudaErrorStubLibrary || (error == cudaSuccess && count == 0)) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    cudaGetLastError();
    const auto version = [](int number) {
      return str("CUDA ", number / 1000, ".", number % 1000 / 10);
    };
    if (driver == 0) {
      fail("no NVIDIA driver (libcuda.so.1) on this machine; install it, or use the CPU");
    }
    if (driver < CUDART_VERSION && error == cudaErrorInsufficientDriver) {
      fail("the NVIDIA driver is for ", version(driver), ", this program for ",
           version(CUDART_VERSION), "; install a newer driver, or use the CPU");
    }
    fail("no GPU that this process may use (", cudaGetErrorName(error),
         "); look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU");
  }
  check(error, "looking for GPUs");
  check(cudaSetDevice(kDevice), "starting the GPU");
  return std::make_unique<CudaBackend>();
}

}  // namespace cuda
}  // namespace nvllm
