#include "launcher/serve/http/transport.h"

#include <sys/socket.h>

#include <cerrno>

namespace nvllm::launcher {
namespace {

Transfer failed() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {.state = Transfer::State::blocked};
  return {.state = Transfer::State::closed};
}

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(int fd) : fd_(fd) {}

  Transfer read(char* to, std::size_t size) override {
    ssize_t got = 0;
    do {
      got = ::recv(fd_, to, size, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return failed();
    if (got == 0) return {.state = Transfer::State::closed};
    return {.bytes = static_cast<std::size_t>(got)};
  }

  Transfer write(std::string_view bytes) override {
    ssize_t sent = 0;
    do {
      sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) return {.bytes = static_cast<std::size_t>(sent)};
    Transfer transfer = failed();
    transfer.wants_write = true;
    return transfer;
  }

  void shut_down() override { ::shutdown(fd_, SHUT_WR); }

 private:
  const int fd_;
};

}  // namespace

std::unique_ptr<Transport> plain_transport(int fd) {
  return std::make_unique<PlainTransport>(fd);
}

}  // namespace nvllm::launcher
