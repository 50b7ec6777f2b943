// TLS by OpenSSL 3, whose library is loaded only if it is needed: the program starts without it.
#include <dlfcn.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>

#include "base/error.h"
#include "launcher/serve/http/transport.h"

namespace nvllm::launcher {
namespace {

// The functions of OpenSSL that are used.
struct OpenSsl {
  decltype(&::TLS_server_method) server_method;
  decltype(&::SSL_CTX_new) ctx_new;
  decltype(&::SSL_CTX_free) ctx_free;
  decltype(&::SSL_CTX_ctrl) ctx_ctrl;
  decltype(&::SSL_CTX_use_certificate_chain_file) use_certificate_chain_file;
  decltype(&::SSL_CTX_use_PrivateKey_file) use_key_file;
  decltype(&::SSL_CTX_check_private_key) check_key;
  decltype(&::SSL_new) ssl_new;
  decltype(&::SSL_free) ssl_free;
  decltype(&::SSL_set_fd) set_fd;
  decltype(&::SSL_set_accept_state) set_accept_state;
  decltype(&::SSL_ctrl) ctrl;
  decltype(&::SSL_read) read;
  decltype(&::SSL_write) write;
  decltype(&::SSL_shutdown) shutdown;
  decltype(&::SSL_get_error) get_error;
  // Of libcrypto, which libssl brings.
  unsigned long (*next_error)();
  void (*error_string)(unsigned long code, char* to, std::size_t size);
  void (*clear_errors)();
};

template <typename Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) fail("--ssl-certfile: libssl.so.3 has no ", name);
}

OpenSsl load_openssl() {
  void* const library = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail("--ssl-certfile: needs OpenSSL 3 (Debian's package libssl3): ", ::dlerror());
  }
  OpenSsl ssl{};
  bind(library, "TLS_server_method", ssl.server_method);
  bind(library, "SSL_CTX_new", ssl.ctx_new);
  bind(library, "SSL_CTX_free", ssl.ctx_free);
  bind(library, "SSL_CTX_ctrl", ssl.ctx_ctrl);
  bind(library, "SSL_CTX_use_certificate_chain_file", ssl.use_certificate_chain_file);
  bind(library, "SSL_CTX_use_PrivateKey_file", ssl.use_key_file);
  bind(library, "SSL_CTX_check_private_key", ssl.check_key);
  bind(library, "SSL_new", ssl.ssl_new);
  bind(library, "SSL_free", ssl.ssl_free);
  bind(library, "SSL_set_fd", ssl.set_fd);
  bind(library, "SSL_set_accept_state", ssl.set_accept_state);
  bind(library, "SSL_ctrl", ssl.ctrl);
  bind(library, "SSL_read", ssl.read);
  bind(library, "SSL_write", ssl.write);
  bind(library, "SSL_shutdown", ssl.shutdown);
  bind(library, "SSL_get_error", ssl.get_error);
  bind(library, "ERR_get_error", ssl.next_error);
  bind(library, "ERR_error_string_n", ssl.error_string);
  bind(library, "ERR_clear_error", ssl.clear_errors);
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

class TlsTransport : public Transport {
 public:
  TlsTransport(SSL* ssl, int fd) : ssl_(ssl), fd_(fd) {}
  ~TlsTransport() override { openssl().ssl_free(ssl_); }

  Transfer read(char* to, std::size_t size) override {
    openssl().clear_errors();
    return result_of(openssl().read(ssl_, to, bounded(size)));
  }
  Transfer write(std::string_view bytes) override {
    openssl().clear_errors();
    return result_of(openssl().write(ssl_, bytes.data(), bounded(bytes.size())));
  }
  void shut_down() override {
    openssl().clear_errors();
    openssl().shutdown(ssl_);
    ::shutdown(fd_, SHUT_WR);
  }

 private:
  static int bounded(std::size_t size) {
    constexpr std::size_t kMax = 1 << 20;
    return static_cast<int>(size < kMax ? size : kMax);
  }
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
  if (state_->context == nullptr) fail("--ssl-certfile: OpenSSL: ", last_error());
  // Writes go on with the bytes that are left, wherever these lie by then.
  ssl.ctx_ctrl(state_->context, SSL_CTRL_MODE,
               SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                   SSL_MODE_RELEASE_BUFFERS,
               nullptr);
  ssl.ctx_ctrl(state_->context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  try {
    if (ssl.use_certificate_chain_file(state_->context, certificate.c_str()) != 1) {
      fail("--ssl-certfile ", certificate, ": no certificate in PEM form: ", last_error());
    }
    if (ssl.use_key_file(state_->context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
      fail("--ssl-keyfile ", key, ": no private key in PEM form: ", last_error());
    }
    if (ssl.check_key(state_->context) != 1) {
      fail("--ssl-keyfile ", key, ": is not the key of the certificate ", certificate);
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
  if (ssl == nullptr) fail("OpenSSL: ", last_error());
  openssl().set_fd(ssl, fd);
  openssl().set_accept_state(ssl);
  return std::make_unique<TlsTransport>(ssl, fd);
}

}  // namespace nvllm::launcher
