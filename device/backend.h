// Backend: the interface of a device: its memory, streams, events and graphs. There are two
// backends, the CPU (device/cpu) and CUDA (device/cuda); code above this folder does not depend on
// which one it uses.
//
//   auto backend = create_backend(DeviceKind::cuda);
//   Buffer weights = backend->allocate(MemoryKind::device, bytes, "weights");
//   auto stream = backend->create_stream();
//   backend->copy(weights.data(), staging.data(), bytes, *stream);   // asynchronous, in order
//   stream->synchronize();
//
// Everything that takes a Stream only enqueues and returns; errors of the work surface at
// synchronize(). On the hot path nothing allocates except allocate() itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace nvllm {

enum class DeviceKind { cpu, cuda };
const char* name_of(DeviceKind kind);

enum class MemoryKind {
  device,
  pinned,
  host
};  // pinned: host memory that the device can copy from
const char* name_of(MemoryKind kind);

// Ledger counts every byte that a backend has allocated, by memory kind and purpose. Thread-safe.
class Ledger {
 public:
  struct Entry {
    MemoryKind kind;
    std::string purpose;  // "weights", "collective buffers"; equal purposes are added up
    std::size_t bytes;
    std::size_t buffers;
  };

  std::uint64_t add(MemoryKind kind, const std::string& purpose, std::size_t bytes);
  void remove(std::uint64_t id);

  std::size_t total(MemoryKind kind) const;
  std::vector<Entry> entries() const;  // ordered by kind, then purpose
  std::string report() const;          // a table; its lines add up to its totals

 private:
  struct Item {
    MemoryKind kind;
    std::string purpose;
    std::size_t bytes;
  };

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Item> items_;
  std::uint64_t next_id_ = 1;
};

// Buffer owns memory, and releases it and its ledger entry on destruction. It must not outlive its
// backend.
class Buffer {
 public:
  using Release = std::function<void(void*)>;

  Buffer() = default;
  Buffer(void* data, std::size_t bytes, MemoryKind kind, Release release);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::host;
  Release release_;
};

// Arena allocates parts of one Buffer, aligned to 256 bytes. When it is full it throws an Error
// with the requested size, its purpose, and the bytes left. Not thread-safe.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;
  // The bytes that an allocation of this size takes.
  static constexpr std::size_t rounded(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  void* allocate(std::size_t bytes, const char* purpose);
  std::size_t used() const { return used_; }
  std::size_t capacity() const { return buffer_.bytes(); }
  void reset() { used_ = 0; }  // invalidates all allocations

 private:
  Buffer buffer_;
  std::size_t used_ = 0;
};

class Event;

// Stream is a queue of work that runs in order, asynchronously to the caller and to other streams.
// Not thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;

  // Work enqueued from now on waits for the event's most recent record.
  virtual void wait(const Event& event) = 0;
  // Runs a function in order with the stream's work. It must not call into the device.
  virtual void host_call(std::function<void()> function) = 0;
  // Waits until all work enqueued so far has run; throws the first Error of that work.
  virtual void synchronize() = 0;
  // Also waits, but returns false if the work did not finish within the limit.
  virtual bool synchronize_for(Nanoseconds limit) = 0;
  // Whether all work enqueued so far has run. Does not wait.
  virtual bool idle() = 0;
};

// Event is a point in a stream's work. Recording it again moves the point.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual bool reached() const = 0;  // true before the first record
  virtual void synchronize() const = 0;
  // Seconds between two reached events that were created with timing.
  virtual double seconds_since(const Event& earlier) const = 0;
};

// Graph is recorded work that can be enqueued again as a whole, at little cost.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

struct DeviceMemory {
  std::size_t total = 0;
  std::size_t available = 0;
};

enum class StreamPriority { normal, high };

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string description() const = 0;           // "NVIDIA H200", "CPU, 16 cores"
  virtual std::string pci_bus_id() const { return {}; }  // "0000:3b:00.0"; empty: not on a PCI bus
  virtual DeviceMemory memory() const = 0;               // of MemoryKind::device

  // Allocates uninitialised memory, aligned to 256 bytes. If there is not enough, throws an Error
  // with the requested size, its purpose, and the free memory. Zero bytes yield an empty Buffer.
  virtual Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) = 0;
  virtual std::unique_ptr<Stream> create_stream(
      StreamPriority priority = StreamPriority::normal) = 0;
  virtual std::unique_ptr<Event> create_event(bool timing = false) = 0;

  // Copies between any two kinds of memory of this backend. On CUDA it blocks until done if either
  // side is pageable, or both sides are host memory.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream& stream) = 0;
  virtual void fill(void* to, unsigned char value, std::size_t bytes, Stream& stream) = 0;

  // Records, without running it, the work that `work` enqueues on the stream and on streams that
  // wait for its events and are joined again.
  virtual std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) = 0;

  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }

 private:
  Ledger ledger_;
};

// Opens the CPU, or the first GPU visible to this process. Throws an Error that says what is
// missing.
std::unique_ptr<Backend> create_backend(DeviceKind kind);

// Whether this program was built with the CUDA backend.
bool cuda_built();

// The implementations of create_backend(). In a build without CUDA, cuda::create_backend() throws
// an Error that says so.
namespace cpu {
std::unique_ptr<Backend> create_backend();
}
namespace cuda {
std::unique_ptr<Backend> create_backend();
}

}  // namespace nvllm
