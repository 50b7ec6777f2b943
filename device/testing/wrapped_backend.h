// WrappedBackend: another backend with one thing changed, for tests: derive, and override what
// should be otherwise.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/backend.h"

namespace nvllm {

// Its ledger is its own, and empty: buffers are in that of the other one.
class WrappedBackend : public Backend {
 public:
  explicit WrappedBackend(Backend& backend) : backend_(backend) {}

  DeviceKind kind() const override { return backend_.kind(); }
  std::string description() const override { return backend_.description(); }
  std::string pci_bus_id() const override { return backend_.pci_bus_id(); }
  DeviceMemory memory() const override { return backend_.memory(); }
  Buffer allocate(MemoryKind kind, std::size_t bytes, const std::string& purpose) override {
    return backend_.allocate(kind, bytes, purpose);
  }
  std::unique_ptr<Stream> create_stream(StreamPriority priority) override {
    return backend_.create_stream(priority);
  }
  std::unique_ptr<Event> create_event(bool timing) override {
    return backend_.create_event(timing);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    backend_.copy(to, from, bytes, stream);
  }
  void fill(void* to, unsigned char value, std::size_t bytes, Stream& stream) override {
    backend_.fill(to, value, bytes, stream);
  }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    return backend_.capture(stream, work);
  }

 private:
  Backend& backend_;
};

}  // namespace nvllm
