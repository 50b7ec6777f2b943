// The functions of OpenSSL 3, whose library is loaded at the first use.
#pragma once

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <cstddef>
#include <string>

namespace nvllm::launcher {

struct OpenSsl {
  decltype(&::TLS_client_method) client_method;
  decltype(&::TLS_server_method) server_method;
  decltype(&::SSL_CTX_new) ctx_new;
  decltype(&::SSL_CTX_free) ctx_free;
  decltype(&::SSL_CTX_ctrl) ctx_ctrl;
  decltype(&::SSL_CTX_set_verify) set_verify;
  decltype(&::SSL_CTX_set_default_verify_paths) set_default_verify_paths;
  decltype(&::SSL_CTX_use_certificate_chain_file) use_certificate_chain_file;
  decltype(&::SSL_CTX_use_PrivateKey_file) use_key_file;
  decltype(&::SSL_CTX_check_private_key) check_key;
  decltype(&::SSL_new) ssl_new;
  decltype(&::SSL_free) ssl_free;
  decltype(&::SSL_set_fd) set_fd;
  decltype(&::SSL_ctrl) ctrl;
  decltype(&::SSL_set1_host) set_host;
  decltype(&::SSL_get0_param) get_param;
  decltype(&::SSL_set_accept_state) set_accept_state;
  decltype(&::SSL_connect) connect;
  decltype(&::SSL_read) read;
  decltype(&::SSL_write) write;
  decltype(&::SSL_shutdown) shutdown;
  decltype(&::SSL_get_error) get_error;
  decltype(&::SSL_get_verify_result) verify_result;
  // From libcrypto, which libssl depends on.
  decltype(&::X509_VERIFY_PARAM_set1_ip_asc) set_address;
  decltype(&::X509_verify_cert_error_string) verify_text;
  unsigned long (*next_error)();
  void (*error_string)(unsigned long code, char* to, std::size_t size);
  void (*clear_errors)();

  // The error of this thread's last call.
  std::string last_error() const;
};

// Throws an Error if the library is not installed. user: what needs it, "https"; missing: the error
// text, with the fix.
const OpenSsl& load_openssl(const char* user, const char* missing);

// How many of these bytes can be passed to one call.
int bounded_for_openssl(std::size_t size);

}  // namespace nvllm::launcher
