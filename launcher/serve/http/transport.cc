#include "launcher/serve/http/transport.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"
#include "launcher/net/openssl.h"

namespace nvllm::launcher {

// --- Plain ---

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

// --- TLS by OpenSSL 3 ---

namespace {

const OpenSsl& openssl() {
  return load_openssl("--ssl-certfile",
                      "--ssl-certfile: needs OpenSSL 3 (Debian's package libssl3)");
}

class TlsTransport : public Transport {
 public:
  TlsTransport(SSL* ssl, int fd) : ssl_(ssl), fd_(fd) {}
  ~TlsTransport() override { openssl().ssl_free(ssl_); }

  Transfer read(char* to, std::size_t size) override {
    openssl().clear_errors();
    return result_of(openssl().read(ssl_, to, bounded_for_openssl(size)));
  }
  Transfer write(std::string_view bytes) override {
    openssl().clear_errors();
    return result_of(openssl().write(ssl_, bytes.data(), bounded_for_openssl(bytes.size())));
  }
  void shut_down() override {
    openssl().clear_errors();
    openssl().shutdown(ssl_);
    ::shutdown(fd_, SHUT_WR);
  }

 private:
  Transfer result_of(int result) {
    if (result > 0) return {.bytes = static_cast<std::size_t>(result)};
    switch (openssl().get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ: return {.state = Transfer::State::blocked};
      case SSL_ERROR_WANT_WRITE: return {.state = Transfer::State::blocked, .wants_write = true};
      default: return {.state = Transfer::State::closed};
    }
  }

  SSL* const ssl_;
  const int fd_;
};

}  // namespace

struct TlsContext::State {
  SSL_CTX* context = nullptr;
};

TlsContext::TlsContext(const std::string& certificate, const std::string& key)
    : state_(std::make_unique<State>()) {
  const OpenSsl& ssl = openssl();
  state_->context = ssl.ctx_new(ssl.server_method());
  if (state_->context == nullptr) fail("--ssl-certfile: OpenSSL: ", openssl().last_error());
  // Writes are continued with the remaining bytes, which may have moved.
  ssl.ctx_ctrl(state_->context, SSL_CTRL_MODE,
               SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                   SSL_MODE_RELEASE_BUFFERS,
               nullptr);
  ssl.ctx_ctrl(state_->context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  try {
    if (ssl.use_certificate_chain_file(state_->context, certificate.c_str()) != 1) {
      fail("--ssl-certfile ", certificate, ": no certificate in PEM form (", openssl().last_error(),
           "); pass a file with -----BEGIN CERTIFICATE-----");
    }
    if (ssl.use_key_file(state_->context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
      fail("--ssl-keyfile ", key, ": no private key in PEM form (", openssl().last_error(),
           "); pass a file with -----BEGIN PRIVATE KEY-----");
    }
    if (ssl.check_key(state_->context) != 1) {
      fail("--ssl-keyfile ", key, ": is not the key of the certificate ", certificate,
           "; pass the key that the certificate was made with");
    }
  } catch (...) {
    ssl.ctx_free(state_->context);
    throw;
  }
}

TlsContext::~TlsContext() {
  openssl().ctx_free(state_->context);
}

std::unique_ptr<Transport> TlsContext::accept(int fd) const {
  SSL* const ssl = openssl().ssl_new(state_->context);
  if (ssl == nullptr) fail("OpenSSL: ", openssl().last_error());
  openssl().set_fd(ssl, fd);
  openssl().set_accept_state(ssl);
  return std::make_unique<TlsTransport>(ssl, fd);
}

}  // namespace nvllm::launcher
