// HttpServer: connections and the HTTP/1.1 on them, in a thread of its own. It knows nothing of
// what is served.
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

// A request and its response. Never used twice.
using ExchangeId = std::uint64_t;

// A piece of a response. The first has a status.
struct HttpOutput {
  ExchangeId exchange = 0;
  int status = 0;  // 0: goes on with a response that was started
  std::vector<HttpHeader> headers = {};
  std::string body = {};
  bool last = false;  // the response ends with it; a first piece that is not last begins a stream
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;                       // 0: any that is free
  std::string unix_socket = "";                    // instead of host and port
  std::string tls_certificate = "", tls_key = "";  // PEM files; empty: no TLS
  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::size_t max_header_bytes = std::size_t{64} << 10;
  // What a stream may have waiting for a client that does not read; then its request is dropped.
  std::size_t max_unsent_bytes = std::size_t{256} << 10;
  std::size_t max_connections = 65536;
  // From a request's first byte to its last; large bodies have longer.
  Nanoseconds read_timeout = std::chrono::seconds(30);
  Nanoseconds keep_alive_timeout = std::chrono::seconds(75);  // between two requests
  Nanoseconds comment_interval = std::chrono::seconds(10);    // of a stream that is silent
};

// Called in the I/O thread; they must not block.
struct HttpHandlers {
  std::function<void(ExchangeId exchange, HttpRequest request)> request;
  // The client has left before its response ended, or was dropped. Nothing more is sent.
  std::function<void(ExchangeId exchange)> gone;
  // The body, as JSON, of the answer to bytes that are no request.
  std::function<std::string(int status, const std::string& message)> error_body;
};

class HttpServer {
 public:
  // Binds and listens. Throws an Error that names the address, and who holds it if that is known.
  HttpServer(const HttpServerOptions& options, HttpHandlers handlers);
  // Begins to serve.
  void start();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // stop()

  // "http://127.0.0.1:8000"
  const std::string& address() const;
  std::uint16_t port() const;

  // Sends pieces of responses, those of one exchange in this order. Callable by any thread; those
  // of exchanges that are over are ignored.
  void send(std::vector<HttpOutput> outputs);

  // From now on a connection is closed after its response; idle ones are closed at once. New ones
  // are still accepted.
  void close_after_responses();
  // Holds the I/O thread where it has no lock and no memory in its hands, until resume(): a fork is
  // safe meanwhile.
  void pause();
  void resume();
  // Ends the thread; what is not sent yet is sent for at most so long.
  void stop(Nanoseconds limit = std::chrono::seconds(1));

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::launcher
