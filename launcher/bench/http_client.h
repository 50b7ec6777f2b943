// HttpClient: many HTTP/1.1 exchanges at once from one thread, over connections kept alive.
// It sends whatever bytes it is given, so tests of servers can send hostile ones.
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

// Where a server is: "http://127.0.0.1:8000", "http://[::1]:8000/prefix" or "unix:/run/socket".
struct HttpAddress {
  std::string text;  // as it was given
  std::string host;  // for the header Host
  std::string port;
  std::string prefix;       // of every path, "/prefix"; often empty
  std::string unix_socket;  // instead of host and port
};

// Throws an Error that names the URL and what to pass.
HttpAddress parse_http_address(std::string_view url);

// A whole request. headers: lines that each end with "\r\n"; Host, Content-Length and, for a body
// that is JSON, Content-Type are added.
std::string http_request(std::string_view method, const HttpAddress& address, std::string_view path,
                         std::string_view headers, std::string_view body);

// One exchange: what the client tells about it. Must live until on_end().
class HttpExchange : public BodyReceiver {
 public:
  // Before the first piece of the body: status() and head() are known.
  virtual void on_head(const ResponseParser& response) = 0;
  // Once, after everything else. error: empty if the response is complete. kind: the same in one or
  // two words that do not differ between requests, "timeout".
  virtual void on_end(const std::string& kind, const std::string& error) = 0;
};

// Used by one thread.
class HttpClient {
 public:
  // timeout: the longest silence of a server, from a request or its last bytes on.
  explicit HttpClient(Nanoseconds timeout);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Finds the server, and checks that it takes connections. Throws an Error that names the address.
  // Returns its number, for send().
  std::size_t add_server(const HttpAddress& address);

  // Sends the bytes. Whatever happens to them is told to the exchange by poll(), never here.
  void send(std::size_t server, std::string request, HttpExchange& exchange);
  // Waits until something happens, at most for the limit, and tells the exchanges.
  void poll(Nanoseconds limit);

  // Exchanges that have not ended.
  std::size_t in_flight() const { return in_flight_; }
  // When the bytes arrived that poll() is telling about, on the clock of now_ns().
  std::int64_t received_ns() const { return received_ns_; }

 private:
  struct Server {
    std::string name;
    sockaddr_storage address{};
    socklen_t size = 0;
    std::vector<std::size_t> idle;  // connections without an exchange, the last used at the end
  };
  struct Connection {
    UniqueFd fd;
    std::uint32_t generation = 0;  // of the connections that had this number
    std::size_t server = 0;
    HttpExchange* exchange = nullptr;  // nullptr: idle
    std::string request;               // kept until the response begins
    std::size_t sent = 0;
    bool waits_to_write = false;  // what epoll has been told
    bool connected = false, reused = false, head_told = false;
    std::int64_t last_ns = 0;  // of the last progress
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
  std::vector<std::size_t> free_;  // numbers of connections that are closed
  std::vector<Failure> failures_;  // told by the next poll()
  std::vector<char> buffer_;
  std::size_t in_flight_ = 0;
  std::int64_t received_ns_ = 0, checked_ns_ = 0;
};

// A whole response. kind and error: as of HttpExchange::on_end().
struct HttpReply {
  int status = 0;
  std::string head, body;
  std::string kind, error;
};

// Sends a request and waits for its response.
HttpReply fetch(const HttpAddress& address, std::string request,
                Nanoseconds timeout = std::chrono::seconds(30));

// Raises the limit of open files as far as this process may, and returns it.
std::size_t raise_open_files();

}  // namespace nvllm::launcher
