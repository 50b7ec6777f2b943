// TLS by OpenSSL 3, whose library is loaded only if a server is asked by https.
#include <dlfcn.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <poll.h>

#include <array>

#include "launcher/hub/net/network.h"

namespace nvllm::launcher {
namespace {

// The functions of OpenSSL that are used; those of libcrypto come with libssl.
struct OpenSsl {
  decltype(&::TLS_client_method) client_method;
  decltype(&::SSL_CTX_new) ctx_new;
  decltype(&::SSL_CTX_ctrl) ctx_ctrl;
  decltype(&::SSL_CTX_set_verify) set_verify;
  decltype(&::SSL_CTX_set_default_verify_paths) set_default_verify_paths;
  decltype(&::SSL_new) ssl_new;
  decltype(&::SSL_free) ssl_free;
  decltype(&::SSL_set_fd) set_fd;
  decltype(&::SSL_ctrl) ctrl;
  decltype(&::SSL_set1_host) set_host;
  decltype(&::SSL_get0_param) get_param;
  decltype(&::X509_VERIFY_PARAM_set1_ip_asc) set_address;
  decltype(&::SSL_connect) connect;
  decltype(&::SSL_read) read;
  decltype(&::SSL_write) write;
  decltype(&::SSL_get_error) get_error;
  decltype(&::SSL_get_verify_result) verify_result;
  decltype(&::X509_verify_cert_error_string) verify_text;
  unsigned long (*next_error)();
  void (*error_string)(unsigned long code, char* to, std::size_t size);
  void (*clear_errors)();
  SSL_CTX* context;
};

template <typename Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) fail("https: libssl.so.3 has no ", name);
}

void bind_all(void* library, OpenSsl& ssl) {
  bind(library, "TLS_client_method", ssl.client_method);
  bind(library, "SSL_CTX_new", ssl.ctx_new);
  bind(library, "SSL_CTX_ctrl", ssl.ctx_ctrl);
  bind(library, "SSL_CTX_set_verify", ssl.set_verify);
  bind(library, "SSL_CTX_set_default_verify_paths", ssl.set_default_verify_paths);
  bind(library, "SSL_new", ssl.ssl_new);
  bind(library, "SSL_free", ssl.ssl_free);
  bind(library, "SSL_set_fd", ssl.set_fd);
  bind(library, "SSL_ctrl", ssl.ctrl);
  bind(library, "SSL_set1_host", ssl.set_host);
  bind(library, "SSL_get0_param", ssl.get_param);
  bind(library, "X509_VERIFY_PARAM_set1_ip_asc", ssl.set_address);
  bind(library, "SSL_connect", ssl.connect);
  bind(library, "SSL_read", ssl.read);
  bind(library, "SSL_write", ssl.write);
  bind(library, "SSL_get_error", ssl.get_error);
  bind(library, "SSL_get_verify_result", ssl.verify_result);
  bind(library, "X509_verify_cert_error_string", ssl.verify_text);
  bind(library, "ERR_get_error", ssl.next_error);
  bind(library, "ERR_error_string_n", ssl.error_string);
  bind(library, "ERR_clear_error", ssl.clear_errors);
}

OpenSsl load_openssl() {
  void* const library = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(
        "https needs OpenSSL 3, which is not on this machine; install it (Debian's package "
        "libssl3), or set HF_ENDPOINT to a mirror with http: ",
        ::dlerror());
  }
  OpenSsl ssl{};
  bind_all(library, ssl);
  ssl.context = ssl.ctx_new(ssl.client_method());
  if (ssl.context == nullptr) fail("https: OpenSSL gives no context");
  ssl.ctx_ctrl(ssl.context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  // The system's store of authorities, or what SSL_CERT_FILE and SSL_CERT_DIR say.
  ssl.set_default_verify_paths(ssl.context);
  ssl.set_verify(ssl.context, SSL_VERIFY_PEER, nullptr);
  return ssl;
}

const OpenSsl& openssl() {
  static const OpenSsl ssl = load_openssl();
  return ssl;
}

std::string last_error() {
  std::array<char, 256> text{};
  openssl().error_string(openssl().next_error(), text.data(), text.size());
  return text.data();
}

class TlsStream : public ByteStream {
 public:
  TlsStream(UniqueFd fd, const Url& url, const NetworkLimits& limits)
      : fd_(std::move(fd)),
        name_(url.authority()),
        limits_(limits),
        ssl_(openssl().ssl_new(openssl().context)) {
    if (ssl_ == nullptr) fail("https: OpenSSL: ", last_error());
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
    return transfer([&] { return openssl().read(ssl_, to, bounded(size)); });
  }
  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const std::size_t count =
          transfer([&] { return openssl().write(ssl_, bytes.data(), bounded(bytes.size())); });
      if (count == 0) throw NetworkError(name_ + ": the connection was closed");
      bytes.remove_prefix(count);
    }
  }

 private:
  static int bounded(std::size_t size) {
    constexpr std::size_t kMax = 1 << 20;
    return static_cast<int>(size < kMax ? size : kMax);
  }

  // The name that the certificate must have; a number is no name to be sent.
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
      throw NetworkError("https://" + name_ + ": no TLS connection: " + last_error());
    }
  }

  // Waits for what OpenSSL wants; false: it wants nothing.
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
