// HttpRequest: a request that has come whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

struct HttpHeader {
  std::string name, value;
};

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

}  // namespace nvllm::launcher
