// TLS by OpenSSL 3.
#include <poll.h>

#include "launcher/hub/net/network.h"
#include "launcher/net/openssl.h"

namespace nvllm::launcher {
namespace {

const OpenSsl& openssl() {
  return load_openssl(
      "https",
      "https needs OpenSSL 3, which is not on this machine; install it (Debian's package "
      "libssl3), or set HF_ENDPOINT to a mirror with http");
}

SSL_CTX* make_context() {
  const OpenSsl& ssl = openssl();
  SSL_CTX* const context = ssl.ctx_new(ssl.client_method());
  if (context == nullptr) fail("https: OpenSSL gives no context");
  ssl.ctx_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  // The system's certificate store, or that of SSL_CERT_FILE and SSL_CERT_DIR.
  ssl.set_default_verify_paths(context);
  ssl.set_verify(context, SSL_VERIFY_PEER, nullptr);
  return context;
}

// Shared by all connections.
SSL_CTX* client_context() {
  static SSL_CTX* const context = make_context();
  return context;
}

class TlsStream : public ByteStream {
 public:
  TlsStream(UniqueFd fd, const Url& url, const NetworkLimits& limits)
      : fd_(std::move(fd)),
        name_(url.authority()),
        limits_(limits),
        ssl_(openssl().ssl_new(client_context())) {
    if (ssl_ == nullptr) fail("https: OpenSSL: ", openssl().last_error());
    try {
      expect_host(url.host);
      openssl().set_fd(ssl_, fd_.get());
      shake_hands();
    } catch (...) {
      openssl().ssl_free(ssl_);
      throw;
    }
  }
  ~TlsStream() override { openssl().ssl_free(ssl_); }

  std::size_t read(char* to, std::size_t size) override {
    return transfer([&] { return openssl().read(ssl_, to, bounded_for_openssl(size)); });
  }
  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const std::size_t count = transfer(
          [&] { return openssl().write(ssl_, bytes.data(), bounded_for_openssl(bytes.size())); });
      if (count == 0) throw NetworkError(name_ + ": the connection was closed");
      bytes.remove_prefix(count);
    }
  }

 private:
  // Sets the name required in the certificate; IP addresses are not sent as server names.
  void expect_host(const std::string& host) {
    if (openssl().set_address(openssl().get_param(ssl_), host.c_str()) == 1) return;
    if (openssl().set_host(ssl_, host.c_str()) != 1) fail("https: ", host, ": is no host's name");
    std::string name = host;
    openssl().ctrl(ssl_, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
  }

  void shake_hands() {
    for (;;) {
      openssl().clear_errors();
      const int result = openssl().connect(ssl_);
      if (result == 1) return;
      if (wait(result)) continue;
      if (const long problem = openssl().verify_result(ssl_); problem != X509_V_OK) {
        fail("https://", name_,
             ": its certificate is not accepted: ", openssl().verify_text(problem),
             "; install the authorities of this system (Debian's package ca-certificates), or set "
             "SSL_CERT_FILE to a file with the right ones");
      }
      throw NetworkError("https://" + name_ + ": no TLS connection: " + openssl().last_error());
    }
  }

  // Waits until OpenSSL can continue; false: it is not waiting.
  bool wait(int result) {
    const int error = openssl().get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
    wait_for_socket(fd_.get(), error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, limits_.stop_fd,
                    limits_.silence, name_);
    return true;
  }

  template <typename Transfer>
  std::size_t transfer(Transfer once) {
    for (;;) {
      openssl().clear_errors();
      const int result = once();
      if (result > 0) return static_cast<std::size_t>(result);
      if (wait(result)) continue;
      if (openssl().get_error(ssl_, result) == SSL_ERROR_ZERO_RETURN) return 0;
      throw NetworkError(name_ + ": the connection was lost");
    }
  }

  UniqueFd fd_;
  const std::string name_;
  const NetworkLimits limits_;
  SSL* const ssl_;
};

}  // namespace

std::unique_ptr<ByteStream> start_tls(UniqueFd socket, const Url& url,
                                      const NetworkLimits& limits) {
  return std::make_unique<TlsStream>(std::move(socket), url, limits);
}

}  // namespace nvllm::launcher
