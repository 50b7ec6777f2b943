// Transport: the bytes of a connection, plain or in TLS, without waiting.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace nvllm::launcher {

// What reading or writing came to.
struct Transfer {
  enum class State { done, blocked, closed };
  State state = State::done;
  std::size_t bytes = 0;
  // Blocked: until the socket can be written to (which a TLS read may need), or else read.
  bool wants_write = false;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Transfer read(char* to, std::size_t size) = 0;
  virtual Transfer write(std::string_view bytes) = 0;
  // Tells the peer that nothing more comes.
  virtual void shut_down() = 0;
};

// fd stays the caller's, and must outlive it.
std::unique_ptr<Transport> plain_transport(int fd);

// A server's certificate and key. OpenSSL is loaded when the first one is made.
class TlsContext {
 public:
  // Throws an Error that names the file and what is wrong with it.
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
