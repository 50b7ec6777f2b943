// RawClient: a client socket that sends any bytes, and reads the responses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace nvllm::testing {

class RawClient {
 public:
  // Connects to 127.0.0.1. receive_buffer: bytes of the socket's buffer; 0: the system's choice.
  explicit RawClient(std::uint16_t port, int receive_buffer = 0);

  void send(std::string_view bytes) const;
  // A POST with a JSON body.
  void post(std::string_view path, std::string_view body, std::string_view headers = "") const;
  void get(std::string_view path, std::string_view headers = "") const;

  // Reads until the text arrives, and returns everything up to its end. Fails after the limit, or
  // when the server has closed the connection.
  std::string read_until(std::string_view text, Nanoseconds limit = std::chrono::seconds(20));
  // A whole response with a Content-Length: its head and body.
  std::string read_response();
  // Everything until the server closes.
  std::string read_all(Nanoseconds limit = std::chrono::seconds(20));

  void shut_down_writing() const;
  void reset();  // closes so that the peer gets an error, not an end
  void close() { socket_.reset(); }
  int fd() const { return socket_.get(); }

 private:
  bool fill(std::int64_t deadline_ns);  // false: the server has closed

  UniqueFd socket_;
  std::string received_;
};

}  // namespace nvllm::testing
