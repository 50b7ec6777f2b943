#include <atomic>
#include <cstring>

#include "base/error.h"
#include "device/cpu/graph.h"
#include "device/cpu/stream.h"
#include "device/cpu/thread_pool.h"
#include "device/host_memory.h"
#include "device/topology.h"

namespace nvllm::cpu {
namespace {

// Longer than the gap between two kernels of a step, shorter than waking a thread twice. With a
// single core, spinning only keeps the other thread from running.
constexpr Nanoseconds kSpin = std::chrono::microseconds(30);

class CpuBackend final : public Backend {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }

  std::string description() const override {
    return str("CPU, ", cores_, cores_ == 1 ? " core" : " cores");
  }

  DeviceMemory memory() const override { return host_memory(); }

  Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) override {
    const std::size_t held = ledger().total(MemoryKind::device) +
                             ledger().total(MemoryKind::pinned) + ledger().total(MemoryKind::host);
    return allocate_host(ledger(), kind, bytes, purpose, held);
  }

  // Priorities are ignored.
  std::unique_ptr<nvllm::Stream> create_stream(StreamPriority) override {
    return std::make_unique<Stream>(str("stream-", streams_.fetch_add(1)), spin_, pool_);
  }

  std::unique_ptr<nvllm::Event> create_event(bool timing) override {
    return std::make_unique<Event>(timing);
  }

  void copy(void* to, const void* from, std::size_t bytes, nvllm::Stream& stream) override {
    if (bytes == 0) return;
    cpu::stream(stream).submit([=] { std::memcpy(to, from, bytes); });
  }

  void fill(void* to, unsigned char value, std::size_t bytes, nvllm::Stream& stream) override {
    if (bytes == 0) return;
    cpu::stream(stream).submit([=] { std::memset(to, value, bytes); });
  }

  std::unique_ptr<nvllm::Graph> capture(nvllm::Stream& stream,
                                        const std::function<void()>& work) override {
    return std::make_unique<Graph>(Capture::run(cpu::stream(stream), work, spin_));
  }

 private:
  const std::size_t cores_ = allowed_cores().size();
  const Nanoseconds spin_ = cores_ > 1 ? kSpin : Nanoseconds(0);
  const std::shared_ptr<ThreadPool> pool_ = std::make_shared<ThreadPool>();
  std::atomic<int> streams_{0};
};

}  // namespace

std::unique_ptr<Backend> create_backend() {
  return std::make_unique<CpuBackend>();
}

}  // namespace nvllm::cpu
