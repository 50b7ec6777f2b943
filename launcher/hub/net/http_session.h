// HttpSession: sequential HTTP/1.1 requests over keep-alive connections.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/bench/response_parser.h"
#include "launcher/hub/net/network.h"

namespace nvllm::launcher {

struct HttpHead {
  int status = 0;
  std::string text;  // the status line and the headers

  // Found case-insensitively; empty: not present.
  std::string_view header(std::string_view name) const { return header_of(text, name); }
  bool is_redirect() const {
    return (status >= 301 && status <= 303) || status == 307 || status == 308;
  }
};

// Appends a body to a text.
struct BodyCollector : BodyReceiver {
  explicit BodyCollector(std::string& into) : into(into) {}
  void on_body(std::string_view piece) override { into.append(piece); }
  std::string& into;
};

// Used by one thread.
class HttpSession {
 public:
  explicit HttpSession(Network& network) : network_(network), buffer_(std::size_t{256} << 10) {}

  // Sends a request and waits for the head of its response. headers: lines that end with "\r\n";
  // Host and User-Agent are added. Throws NetworkError, NetworkStopped or an Error.
  HttpHead begin(std::string_view method, const Url& url, std::string_view headers);
  // Reads more of the body; false: it has ended. If a body is not read to its end, the connection
  // is closed.
  bool more(BodyReceiver& receiver);
  std::string whole_body(std::size_t max_size);

 private:
  struct Connection {
    std::unique_ptr<ByteStream> stream;
    ResponseParser response;
    bool head_only = false;
    std::string early;  // start of the body, received with the head
    std::string origin;
  };
  HttpHead exchange(std::string_view method, const Url& url, const std::string& request);
  bool read_some(BodyReceiver& receiver);

  Network& network_;
  std::vector<char> buffer_;
  std::map<std::string, Connection> idle_;  // by origin
  Connection current_;
};

}  // namespace nvllm::launcher
