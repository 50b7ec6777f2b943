// HttpRequest: a request, and RequestReader, which parses it from the bytes of a connection
// (HTTP/1.1).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

struct HttpHeader {
  std::string name, value;
};

// A complete request.
struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", without the query
  std::string query;   // after the '?'
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;  // "127.0.0.1:52100", "unix"

  // The value of a header, found case-insensitively; nullptr: not present.
  const std::string* header(std::string_view name) const;
};

class RequestReader {
 public:
  RequestReader(std::size_t max_header_bytes, std::size_t max_body_bytes);
  ~RequestReader();

  // Parses unconsumed bytes; returns how many it consumed. Call it again with the rest and new
  // bytes, until done() or failed().
  std::size_t feed(std::string_view bytes);

  bool started() const;  // has received any bytes
  bool done() const;     // the request is complete
  // The client waits for "100 Continue" before it sends the body; true only once.
  bool take_expects_continue();
  // The status (400, 413, 431, 505) if the bytes are invalid, and the reason; 0: valid so far.
  int failed_status() const;
  const std::string& failure() const;

  // Valid for a completed request.
  bool keep_alive() const;
  bool is_http_1_0() const;
  HttpRequest take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::launcher
