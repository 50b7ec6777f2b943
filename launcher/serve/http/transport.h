// Transport: non-blocking reads and writes of a connection, plain or TLS.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace nvllm::launcher {

// The result of a read or write.
struct Transfer {
  enum class State { done, blocked, closed };
  State state = State::done;
  std::size_t bytes = 0;
  // If blocked: wait until the socket is writable (which a TLS read may need), otherwise readable.
  bool wants_write = false;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Transfer read(char* to, std::size_t size) = 0;
  virtual Transfer write(std::string_view bytes) = 0;
  // Shuts down the sending direction.
  virtual void shut_down() = 0;
};

// The caller keeps fd, which must outlive the transport.
std::unique_ptr<Transport> plain_transport(int fd);

// A server's certificate and key. OpenSSL is loaded when the first one is created.
class TlsContext {
 public:
  // Throws an Error that names the invalid file.
  TlsContext(const std::string& certificate, const std::string& key);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  std::unique_ptr<Transport> accept(int fd) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::launcher
