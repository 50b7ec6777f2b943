// HttpRequest: a request, and RequestReader, which parses it out of the bytes of a connection
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

// A request that has come whole.
struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", without the query
  std::string query;   // behind the '?'
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;  // "127.0.0.1:52100", "unix"

  // The value of a header, whatever its case; nullptr: it is not there.
  const std::string* header(std::string_view name) const;
};

class RequestReader {
 public:
  RequestReader(std::size_t max_header_bytes, std::size_t max_body_bytes);
  ~RequestReader();

  // Parses what it can of the bytes that have not been consumed; returns how many it consumed.
  // Call it again with the rest and what came after it, until done() or failed().
  std::size_t put(std::string_view bytes);

  bool started() const;  // has consumed, or been given, something
  bool done() const;     // the request is whole
  // The client waits for "100 Continue" before it sends the body; true once.
  bool take_expects_continue();
  // A status (400, 413, 431, 505) if the bytes are no request, and why; 0: they are fine so far.
  int failed_status() const;
  const std::string& failure() const;

  // Of a request that is done.
  bool keep_alive() const;
  bool is_http_1_0() const;
  HttpRequest take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::launcher
