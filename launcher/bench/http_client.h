// HttpClient: many concurrent HTTP/1.1 exchanges from one thread, over keep-alive connections. It
// sends any bytes that it is given, so tests of servers can send malformed requests.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "launcher/bench/response_parser.h"

namespace nvllm::launcher {

// Address of a server: "http://127.0.0.1:8000", "http://[::1]:8000/prefix" or "unix:/run/socket".
struct HttpAddress {
  std::string text;  // as given by the user
  std::string host;  // for the Host header
  std::string port;
  std::string prefix;       // of every path, "/prefix"; usually empty
  std::string unix_socket;  // instead of host and port
};

// Throws an Error that names the URL and what to pass.
HttpAddress parse_http_address(std::string_view url);

// A complete request. headers: lines that end with "\r\n"; Host, Content-Length and, for a JSON
// body, Content-Type are added.
std::string http_request(std::string_view method, const HttpAddress& address, std::string_view path,
                         std::string_view headers, std::string_view body);

// One exchange; the client calls its methods. Must live until on_end().
class HttpExchange : public BodyReceiver {
 public:
  // Called before the first piece of the body, when status() and head() are known.
  virtual void on_head(const ResponseParser& response) = 0;
  // Called once, last. error: empty if the response is complete. kind: the error in one or two
  // words that do not differ between requests, "timeout".
  virtual void on_end(const std::string& kind, const std::string& error) = 0;
};

// Used by one thread.
class HttpClient {
 public:
  // timeout: maximum silence of a server, measured from the request or its last bytes.
  explicit HttpClient(Nanoseconds timeout);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Resolves the server, and checks that it accepts connections. Throws an Error that names the
  // address. Returns its number, for send().
  std::size_t add_server(const HttpAddress& address);

  // Sends the request. Its outcome is reported to the exchange by poll(), never by this call.
  void send(std::size_t server, std::string request, HttpExchange& exchange);
  // Waits for events up to the limit, and calls the exchanges.
  void poll(Nanoseconds limit);

  // Number of exchanges that have not ended.
  std::size_t in_flight() const { return in_flight_; }
  // When the bytes arrived that poll() is reporting, in now_ns().
  std::int64_t received_ns() const { return received_ns_; }

 private:
  struct Server {
    std::string name;
    sockaddr_storage address{};
    socklen_t size = 0;
    std::vector<std::size_t> idle;  // connections without an exchange, most recently used last
  };
  struct Connection {
    UniqueFd fd;
    std::uint32_t generation = 0;  // how many connections had this number before
    std::size_t server = 0;
    HttpExchange* exchange = nullptr;  // nullptr: idle
    std::string request;               // kept until the response starts
    std::size_t sent = 0;
    bool waits_to_write = false;  // the registration with epoll
    bool connected = false, reused = false, head_told = false;
    std::int64_t last_ns = 0;  // time of the last progress
    ResponseParser response;
  };
  struct Failure {
    HttpExchange* exchange;
    std::string kind, error;
  };

  std::size_t open(std::size_t server);
  void close(std::size_t number);
  void watch(std::size_t number, bool writing);
  void write(std::size_t number);
  void read(std::size_t number);
  void take(Connection& connection, std::string_view bytes);
  void finish(std::size_t number);
  void fail_connection(std::size_t number, const std::string& kind, const std::string& error);
  void lost(std::size_t number, int error);
  void tell_failures();
  void check_timeouts(std::int64_t now);

  Nanoseconds timeout_;
  UniqueFd epoll_;
  std::vector<Server> servers_;
  std::deque<Connection> connections_;
  std::vector<std::size_t> free_;  // numbers of closed connections
  std::vector<Failure> failures_;  // reported by the next poll()
  std::vector<char> buffer_;
  std::size_t in_flight_ = 0;
  std::int64_t received_ns_ = 0, checked_ns_ = 0;
};

// A complete response. kind and error: see HttpExchange::on_end().
struct HttpReply {
  int status = 0;
  std::string head, body;
  std::string kind, error;
};

// Sends a request and waits for its response.
HttpReply fetch(const HttpAddress& address, std::string request,
                Nanoseconds timeout = std::chrono::seconds(30));

// Raises the limit of open files as far as permitted, and returns it.
std::size_t raise_open_files();

}  // namespace nvllm::launcher
