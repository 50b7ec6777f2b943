// MockHttpServer: a server on a socket of 127.0.0.1 that sends exactly the bytes that a test wants.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::testing {

// One connection of a client, in a thread of its own.
class MockConnection {
 public:
  // note: called with every request.
  MockConnection(int fd, std::function<void(const std::string&)> note)
      : fd_(fd), note_(std::move(note)) {}

  // The next request, head and body; empty: the client has closed.
  std::string request() {
    std::size_t head = 0;
    while ((head = received_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive()) return "";
    }
    const std::size_t size = head + 4 + body_size(received_.substr(0, head + 2));
    while (received_.size() < size) {
      if (!receive()) return "";
    }
    std::string request = received_.substr(0, size);
    received_.erase(0, size);
    note_(request);
    return request;
  }

  // Sends each piece as a separate segment.
  void send(std::string_view piece) {
    while (!piece.empty()) {
      const ssize_t count = ::send(fd_, piece.data(), piece.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      piece.remove_prefix(static_cast<std::size_t>(count));
    }
  }

 private:
  static std::size_t body_size(const std::string& head) {
    const std::string name = "Content-Length: ";
    const std::size_t at = head.find(name);
    if (at == std::string::npos) return 0;
    std::size_t size = 0;
    std::from_chars(head.data() + at + name.size(), head.data() + head.size(), size);
    return size;
  }

  bool receive() {
    char bytes[4096];
    const ssize_t count = ::recv(fd_, bytes, sizeof bytes, 0);
    if (count > 0) received_.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }

  int fd_;
  std::function<void(const std::string&)> note_;
  std::string received_;
};

class MockHttpServer {
 public:
  // serve: handles one connection, in a thread of its own; the connection closes when it returns.
  explicit MockHttpServer(std::function<void(MockConnection&)> serve)
      : serve_(std::move(serve)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 128) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      fail_errno("a mock server's socket");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  MockHttpServer(const MockHttpServer&) = delete;
  MockHttpServer& operator=(const MockHttpServer&) = delete;
  ~MockHttpServer() {
    ending_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }  // that have sent something
  std::string last_request() const {
    const std::lock_guard lock(mutex_);
    return last_request_;
  }

 private:
  void accept_all() {
    while (!ending_) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] { serve_one(fd); });
    }
  }

  void serve_one(int fd) {
    pollfd readable{fd, POLLIN, 0};
    ::poll(&readable, 1, -1);
    char byte = 0;
    if (::recv(fd, &byte, 1, MSG_PEEK) > 0) {
      ++connections_;
      MockConnection connection(fd, [this](const std::string& request) {
        const std::lock_guard lock(mutex_);
        last_request_ = request;
      });
      serve_(connection);
    }
    const std::lock_guard lock(mutex_);
    open_.erase(std::find(open_.begin(), open_.end(), fd));
    ::close(fd);
  }

  std::function<void(MockConnection&)> serve_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> ending_ = false;
  std::atomic<int> connections_ = 0;
  std::thread acceptor_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<int> open_;
  std::string last_request_;
  std::vector<std::thread> threads_;
};

// A response with a body of known length.
inline std::string response(const std::string& status, const std::string& body,
                            const std::string& headers = "") {
  return "HTTP/1.1 " + status + "\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string chunk(const std::string& data) {
  char size[16];
  return std::string(size, std::to_chars(size, size + 16, data.size(), 16).ptr) + "\r\n" + data +
         "\r\n";
}

inline constexpr const char* kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
inline constexpr const char* kLastChunk = "0\r\n\r\n";

}  // namespace nvllm::testing
