// Staging: the way of one thread's data to the device, through two buffers that are filled by turns while
// the other is being copied.
//
//   read(piece, staging.next());
//   staging.send(piece.to, piece.bytes());
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "device/backend.h"

namespace nvllm::model {

class Staging {
 public:
  // A buffer is allocated when it is first needed: pinning one takes as long as reading into it, so the
  // second waits until the first is on its way.
  Staging(Backend& backend, std::size_t bytes);
  ~Staging();  // waits for its copies
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // A buffer that is free, as soon as one is.
  std::byte* next();
  // Copies what was written to it, asynchronously.
  void send(void* to, std::size_t bytes);
  // Returns when everything has arrived.
  void finish();

 private:
  struct Half {
    Buffer buffer;
    std::unique_ptr<Event> copied;
  };

  Backend& backend_;
  const std::size_t bytes_;
  std::array<Half, 2> halves_;
  std::size_t turn_ = 0;
  std::unique_ptr<Stream> stream_;  // last: on the CPU it ends its work before the buffers go
};

}  // namespace nvllm::model
