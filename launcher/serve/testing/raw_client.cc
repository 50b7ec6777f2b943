#include "launcher/serve/testing/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"

namespace nvllm::testing {

RawClient::RawClient(std::uint16_t port, int receive_buffer)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (!socket_) fail_errno("socket");
  if (receive_buffer > 0) {
    ::setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail_errno("connecting to port ", port);
  }
}

void RawClient::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) fail_errno("sending");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void RawClient::post(std::string_view path, std::string_view body, std::string_view headers) const {
  send(str("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n", headers,
           "Content-Length: ", body.size(), "\r\n\r\n", body));
}

void RawClient::get(std::string_view path, std::string_view headers) const {
  send(str("GET ", path, " HTTP/1.1\r\nHost: test\r\n", headers, "\r\n"));
}

bool RawClient::fill(std::int64_t deadline_ns) {
  const auto left = std::max<std::int64_t>(0, (deadline_ns - now_ns()) / 1'000'000);
  pollfd polled{fd(), POLLIN, 0};
  if (::poll(&polled, 1, static_cast<int>(left)) <= 0) {
    fail("nothing came in time; so far: ", received_.substr(0, 500));
  }
  std::array<char, 65536> buffer;
  const ssize_t got = ::recv(fd(), buffer.data(), buffer.size(), 0);
  if (got <= 0) return false;
  received_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::string RawClient::read_until(std::string_view text, Nanoseconds limit) {
  const std::int64_t deadline = now_ns() + limit.count();
  while (true) {
    const std::size_t at = received_.find(text);
    if (at != std::string::npos) {
      std::string found = received_.substr(0, at + text.size());
      received_.erase(0, found.size());
      return found;
    }
    if (!fill(deadline)) fail("closed before '", text, "'; so far: ", received_.substr(0, 500));
  }
}

std::string RawClient::read_response() {
  std::string response = read_until("\r\n\r\n");
  constexpr std::string_view kLength = "Content-Length: ";
  const std::size_t at = response.find(kLength);
  if (at == std::string::npos) return response;
  const std::size_t length = std::strtoull(response.c_str() + at + kLength.size(), nullptr, 10);
  const std::int64_t deadline = now_ns() + Nanoseconds(std::chrono::seconds(20)).count();
  while (received_.size() < length) {
    if (!fill(deadline)) fail("closed within a body: ", received_.substr(0, 500));
  }
  response += received_.substr(0, length);
  received_.erase(0, length);
  return response;
}

std::string RawClient::read_all(Nanoseconds limit) {
  const std::int64_t deadline = now_ns() + limit.count();
  while (fill(deadline)) continue;
  return std::move(received_);
}

void RawClient::shut_down_writing() const {
  ::shutdown(fd(), SHUT_WR);
}

void RawClient::reset() {
  const linger now{1, 0};
  ::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

}  // namespace nvllm::testing
