// For test cases that are the same on every backend: they take the backend from here, and a test
// links them with //device:cpu_under_test or //device:cuda_under_test.
#pragma once

#include <doctest/doctest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "device/backend.h"
#include "testing/skip.h"

namespace nvllm::testing {

// The backend under test; nullptr, with the reason, if this machine cannot have it.
std::unique_ptr<Backend> make_backend(std::string* why_not);

// Keeps a stream from going on until it is opened, which its destructor does at the latest. While
// it is closed, host calls of other streams may not run either: CUDA has one thread for all of
// them.
class Gate {
 public:
  explicit Gate(Stream& stream) {
    stream.host_call([opened = opened_.get_future().share()] { opened.wait(); });
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

// A buffer's bytes; the host may touch them in pinned and host memory.
inline unsigned char* bytes_of(const Buffer& buffer) {
  return static_cast<unsigned char*>(buffer.data());
}

constexpr Nanoseconds kLong = std::chrono::seconds(60);        // for what must happen
constexpr Nanoseconds kShort = std::chrono::milliseconds(10);  // for what must not happen

}  // namespace nvllm::testing

// Gives the test case a backend under this name, or skips it.
#define BACKEND_OR_SKIP(backend)                                        \
  std::string why_no_backend;                                           \
  const auto backend = ::nvllm::testing::make_backend(&why_no_backend); \
  if (backend == nullptr) SKIP_TEST(why_no_backend)
