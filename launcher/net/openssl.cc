#include "launcher/net/openssl.h"

#include <dlfcn.h>

#include <array>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

struct Library {
  void* handle;
  const char* user;

  template <typename Function>
  void bind(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function == nullptr) fail(user, ": libssl.so.3 has no ", name);
  }
};

OpenSsl bind_all(const Library& library) {
  OpenSsl ssl{};
  library.bind("TLS_client_method", ssl.client_method);
  library.bind("TLS_server_method", ssl.server_method);
  library.bind("SSL_CTX_new", ssl.ctx_new);
  library.bind("SSL_CTX_free", ssl.ctx_free);
  library.bind("SSL_CTX_ctrl", ssl.ctx_ctrl);
  library.bind("SSL_CTX_set_verify", ssl.set_verify);
  library.bind("SSL_CTX_set_default_verify_paths", ssl.set_default_verify_paths);
  library.bind("SSL_CTX_use_certificate_chain_file", ssl.use_certificate_chain_file);
  library.bind("SSL_CTX_use_PrivateKey_file", ssl.use_key_file);
  library.bind("SSL_CTX_check_private_key", ssl.check_key);
  library.bind("SSL_new", ssl.ssl_new);
  library.bind("SSL_free", ssl.ssl_free);
  library.bind("SSL_set_fd", ssl.set_fd);
  library.bind("SSL_ctrl", ssl.ctrl);
  library.bind("SSL_set1_host", ssl.set_host);
  library.bind("SSL_get0_param", ssl.get_param);
  library.bind("SSL_set_accept_state", ssl.set_accept_state);
  library.bind("SSL_connect", ssl.connect);
  library.bind("SSL_read", ssl.read);
  library.bind("SSL_write", ssl.write);
  library.bind("SSL_shutdown", ssl.shutdown);
  library.bind("SSL_get_error", ssl.get_error);
  library.bind("SSL_get_verify_result", ssl.verify_result);
  library.bind("X509_VERIFY_PARAM_set1_ip_asc", ssl.set_address);
  library.bind("X509_verify_cert_error_string", ssl.verify_text);
  library.bind("ERR_get_error", ssl.next_error);
  library.bind("ERR_error_string_n", ssl.error_string);
  library.bind("ERR_clear_error", ssl.clear_errors);
  return ssl;
}

OpenSsl open_library(const char* user, const char* missing) {
  void* const handle = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(missing, ": ", ::dlerror());
  return bind_all({handle, user});
}

}  // namespace

std::string OpenSsl::last_error() const {
  std::array<char, 256> text{};
  error_string(next_error(), text.data(), text.size());
  return text.data();
}

const OpenSsl& load_openssl(const char* user, const char* missing) {
  static const OpenSsl ssl = open_library(user, missing);
  return ssl;
}

int bounded_for_openssl(std::size_t size) {
  constexpr std::size_t kMax = 1 << 20;
  return static_cast<int>(size < kMax ? size : kMax);
}

}  // namespace nvllm::launcher
