// HttpServer: connections and HTTP/1.1, in a thread of its own. It does not depend on what is
// served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "launcher/serve/http/request_reader.h"

namespace nvllm::launcher {

// Id of a request and its response, unique over the server's lifetime.
using ExchangeId = std::uint64_t;

// A piece of a response. The first piece has a status.
struct HttpOutput {
  ExchangeId exchange = 0;
  int status = 0;                        // 0: continues a response
  std::vector<HttpHeader> headers = {};  // "Connection: close" ends the connection after it
  std::string body = {};
  bool last = false;  // ends the response; a first piece that is not last starts a stream
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;                       // 0: any that is free
  std::string unix_socket = "";                    // instead of host and port
  std::string tls_certificate = "", tls_key = "";  // PEM files; empty: no TLS
  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::size_t max_header_bytes = std::size_t{64} << 10;
  // Maximum unsent bytes of a stream whose client does not read; beyond that its request is
  // dropped.
  std::size_t max_unsent_bytes = std::size_t{256} << 10;
  std::size_t max_connections = 65536;
  // From a request's first byte to its last; longer for large bodies.
  Nanoseconds read_timeout = std::chrono::seconds(30);
  Nanoseconds keep_alive_timeout = std::chrono::seconds(75);  // between two requests
  Nanoseconds comment_interval = std::chrono::seconds(10);    // of a stream that is silent
};

// Called in the I/O thread; they must not block.
struct HttpHandlers {
  std::function<void(ExchangeId exchange, HttpRequest request)> request;
  // The client disconnected before its response ended, or was dropped. Nothing more is sent.
  std::function<void(ExchangeId exchange)> gone;
  // The JSON body of the answer to invalid bytes.
  std::function<std::string(int status, const std::string& message)> error_body;
};

class HttpServer {
 public:
  // Binds and listens. Throws an Error that names the address, and the process that uses it if that
  // is known.
  HttpServer(const HttpServerOptions& options, HttpHandlers handlers);
  // Begins to serve.
  void start();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stop()

  // "http://127.0.0.1:8000"
  const std::string& address() const;
  std::uint16_t port() const;

  // Sends pieces of responses; those of one exchange in this order. May be called by any thread;
  // pieces of finished exchanges are ignored.
  void send(std::vector<HttpOutput> outputs);

  // From now on connections are closed after their response; idle ones are closed immediately. New
  // ones are still accepted.
  void close_after_responses();
  // Pauses the I/O thread at a point where it holds no lock and allocates no memory, until
  // resume(), so that a fork is safe.
  void pause();
  void resume();
  // Ends the thread; unsent bytes are sent for at most this time.
  void stop(Nanoseconds limit = std::chrono::seconds(1));

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::launcher
