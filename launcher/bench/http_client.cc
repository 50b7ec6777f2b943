#include "launcher/bench/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kBuffer = std::size_t{64} << 10;
constexpr int kEvents = 1024;
constexpr std::int64_t kCheckEvery = 100'000'000;  // ns; how often timeouts are checked

void set_no_delay(int fd, int family) {
  const int on = 1;
  if (family != AF_UNIX) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// The id of a connection in epoll.
std::uint64_t key_of(std::size_t number, std::uint32_t generation) {
  return std::uint64_t{generation} << 32 | number;
}

// Tries to connect; returns 0 or errno.
int try_to_connect(const sockaddr* address, socklen_t size, Nanoseconds limit) {
  const UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  if (::connect(fd.get(), address, size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{fd.get(), POLLOUT, 0};
  const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  if (::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(limit_ms, 1 << 30))) == 0) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t error_size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &error_size);
  return error;
}

sockaddr_un unix_address(const HttpAddress& address) {
  sockaddr_un found{};
  found.sun_family = AF_UNIX;
  if (address.unix_socket.size() >= sizeof found.sun_path) {
    fail(address.text, ": a socket's path has at most ", sizeof found.sun_path - 1, " bytes");
  }
  std::copy(address.unix_socket.begin(), address.unix_socket.end(), found.sun_path);
  return found;
}

}  // namespace

HttpAddress parse_http_address(std::string_view url) {
  HttpAddress address;
  address.text = url;
  const auto refuse_url = [&](const char* why) {
    fail(address.text, ": ", why, "; pass http://HOST:PORT or unix:/PATH");
  };
  address.host = "localhost";
  const auto odd = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; };
  if (std::any_of(url.begin(), url.end(), odd)) refuse_url("has a space in it");
  if (url.starts_with("unix:")) {
    address.unix_socket = url.substr(5);
    if (address.unix_socket.empty()) refuse_url("names no socket");
    return address;
  }
  if (url.starts_with("https://")) refuse_url("HTTPS is not spoken here");
  if (!url.starts_with("http://")) refuse_url("is no URL of a server");
  url.remove_prefix(7);
  const std::size_t slash = std::min(url.find('/'), url.size());
  std::string_view authority = url.substr(0, slash);
  address.prefix = url.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  const std::size_t bracket = authority.find(']');  // of an IPv6 address
  const std::size_t colon = authority.find(':', bracket == authority.npos ? 0 : bracket);
  address.port = colon == authority.npos ? "80" : authority.substr(colon + 1);
  address.host = authority.substr(0, colon);
  const bool digits = address.port.find_first_not_of("0123456789") == std::string::npos;
  if (address.host.empty() || address.port.empty()) refuse_url("names no host or no port");
  if (!digits) refuse_url("has a port that is no number");
  if (address.port.size() > 5 || std::stoi(address.port) < 1 || std::stoi(address.port) > 65535) {
    fail(address.text, ": port ", address.port, ": out of range; pass 1 to 65535");
  }
  return address;
}

std::string http_request(std::string_view method, const HttpAddress& address, std::string_view path,
                         std::string_view headers, std::string_view body) {
  const std::string port = address.port.empty() ? "" : ":" + address.port;
  std::string request = str(method, ' ', address.prefix, path, " HTTP/1.1\r\nHost: ", address.host,
                            port, "\r\n", headers);
  if (!body.empty()) {
    request += str("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  }
  request += "\r\n";
  return request.append(body);
}

std::size_t raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

HttpClient::HttpClient(Nanoseconds timeout)
    : timeout_(timeout), epoll_(::epoll_create1(EPOLL_CLOEXEC)), buffer_(kBuffer) {
  if (!epoll_) fail_errno("epoll_create1");
}

HttpClient::~HttpClient() = default;

std::size_t HttpClient::add_server(const HttpAddress& address) {
  Server server;
  server.name = address.text;
  int error = 0;
  const auto found = [&](const sockaddr* candidate, socklen_t size) {
    error = try_to_connect(candidate, size, timeout_);
    if (error != 0) return false;
    std::memcpy(&server.address, candidate, size);
    server.size = size;
    return true;
  };
  if (!address.unix_socket.empty()) {
    const sockaddr_un candidate = unix_address(address);
    found(reinterpret_cast<const sockaddr*>(&candidate), sizeof candidate);
  } else {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    std::string host = address.host;
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    const int trouble = ::getaddrinfo(host.c_str(), address.port.c_str(), &hints, &list);
    if (trouble != 0) fail(address.text, ": ", host, ": ", ::gai_strerror(trouble));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
    for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
      if (found(one->ai_addr, one->ai_addrlen)) break;
    }
  }
  if (server.size == 0) {
    fail(address.text, ": ", errno_text(error), "; is a server running there?");
  }
  servers_.push_back(std::move(server));
  return servers_.size() - 1;
}

// Opens a connection; on failure its fd is -1, and errno is set.
std::size_t HttpClient::open(std::size_t server) {
  std::size_t number = connections_.size();
  if (free_.empty()) {
    connections_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Connection& connection = connections_[number];
  const std::uint32_t generation = connection.generation + 1;
  connection = {};
  connection.generation = generation;
  connection.server = server;
  const Server& to = servers_[server];
  const int family = to.address.ss_family;
  connection.fd = UniqueFd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connection.fd) return number;
  set_no_delay(connection.fd.get(), family);
  const auto* const address = reinterpret_cast<const sockaddr*>(&to.address);
  connection.connected = ::connect(connection.fd.get(), address, to.size) == 0;
  if (!connection.connected && errno != EINPROGRESS) {
    connection.fd.reset();
    return number;
  }
  epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.u64 = key_of(number, generation)}};
  connection.waits_to_write = true;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.fd.get(), &event) != 0) {
    connection.fd.reset();
  }
  return number;
}

void HttpClient::close(std::size_t number) {
  Connection& connection = connections_[number];
  if (connection.exchange == nullptr) std::erase(servers_[connection.server].idle, number);
  const std::uint32_t generation = connection.generation;
  connection = {};
  connection.generation = generation;
  free_.push_back(number);
}

void HttpClient::watch(std::size_t number, bool writing) {
  Connection& connection = connections_[number];
  if (connection.waits_to_write == writing) return;
  connection.waits_to_write = writing;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = key_of(number, connection.generation)}};
  if (writing) event.events |= EPOLLOUT;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), &event);
}

void HttpClient::send(std::size_t server, std::string request, HttpExchange& exchange) {
  ++in_flight_;
  std::vector<std::size_t>& idle = servers_[server].idle;
  std::size_t number = 0;
  if (idle.empty()) {
    number = open(server);
    if (!connections_[number].fd) {
      failures_.push_back(
          {&exchange, "connection", str(servers_[server].name, ": ", errno_text(errno))});
      free_.push_back(number);
      return;
    }
  } else {
    number = idle.back();
    idle.pop_back();
    connections_[number].reused = true;
  }
  Connection& connection = connections_[number];
  connection.exchange = &exchange;
  connection.request = std::move(request);
  connection.sent = 0;
  connection.head_told = false;
  connection.last_ns = now_ns();
  connection.response.reset();
  if (connection.connected) write(number);
}

void HttpClient::write(std::size_t number) {
  Connection& connection = connections_[number];
  while (connection.sent < connection.request.size()) {
    const ssize_t count = ::send(connection.fd.get(), connection.request.data() + connection.sent,
                                 connection.request.size() - connection.sent, MSG_NOSIGNAL);
    if (count < 0) {
      // Other errors are reported when the connection is read, after a response that may have
      // arrived.
      watch(number, errno == EAGAIN || errno == EINTR);
      return;
    }
    connection.sent += static_cast<std::size_t>(count);
    connection.last_ns = now_ns();
  }
  watch(number, false);
}

void HttpClient::poll(Nanoseconds limit) {
  tell_failures();
  std::array<epoll_event, kEvents> events;
  const auto limit_ns = std::clamp<std::int64_t>(limit.count(), 0, kCheckEvery);
  const timespec wait{limit_ns / 1'000'000'000, limit_ns % 1'000'000'000};
  const int count = ::epoll_pwait2(epoll_.get(), events.data(), kEvents, &wait, nullptr);
  if (count < 0 && errno != EINTR) fail_errno("epoll_pwait2");
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const auto number = static_cast<std::size_t>(event.data.u64 & 0xffffffff);
    Connection& connection = connections_[number];
    // An earlier event of this batch may have closed this connection.
    if (!connection.fd || key_of(number, connection.generation) != event.data.u64) continue;
    if ((event.events & EPOLLOUT) != 0 && (event.events & EPOLLERR) == 0) {
      connection.connected = true;
      write(number);
    }
    if ((event.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read(number);
  }
  const std::int64_t now = now_ns();
  if (now - checked_ns_ >= kCheckEvery) check_timeouts(now);
  tell_failures();
}

void HttpClient::read(std::size_t number) {
  Connection& connection = connections_[number];
  const ssize_t count = ::recv(connection.fd.get(), buffer_.data(), buffer_.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (connection.exchange == nullptr) {  // the server has closed it, or sends data without a
                                         // request
    close(number);
  } else if (count <= 0) {
    lost(number, count < 0 ? errno : 0);
  } else {
    received_ns_ = connection.last_ns = now_ns();
    try {
      take(connection, {buffer_.data(), static_cast<std::size_t>(count)});
    } catch (const Error& error) {
      fail_connection(number, "bad response", error.what());
      return;
    }
    if (connection.response.done()) finish(number);
  }
}

void HttpClient::take(Connection& connection, std::string_view bytes) {
  // The receiver must see the head before the body, so bodies are delivered through this class.
  struct Receiver : BodyReceiver {
    explicit Receiver(Connection& of) : connection(of) {}
    void on_body(std::string_view piece) override {
      tell_head();
      connection.exchange->on_body(piece);
    }
    void tell_head() {
      if (std::exchange(connection.head_told, true)) return;
      connection.exchange->on_head(connection.response);
      if (connection.sent < connection.request.size()) return;
      std::string().swap(connection.request);  // it will not be resent
      connection.sent = 0;
    }
    Connection& connection;
  };
  Receiver receiver(connection);
  const bool whole = connection.sent == connection.request.size();
  const std::size_t taken = connection.response.feed(bytes, receiver);
  if (!connection.response.done()) return;
  receiver.tell_head();
  // Bytes after a response, or a response before the request is sent, end the connection.
  if (taken < bytes.size() || !whole) connection.response.end_of_stream();
}

void HttpClient::finish(std::size_t number) {
  Connection& connection = connections_[number];
  HttpExchange* const exchange = connection.exchange;
  if (connection.response.keep_alive()) {
    connection.exchange = nullptr;
    servers_[connection.server].idle.push_back(number);
  } else {
    close(number);
  }
  --in_flight_;
  exchange->on_end("", "");
}

// Called when the server has closed the connection, or it failed.
void HttpClient::lost(std::size_t number, int error) {
  Connection& connection = connections_[number];
  const std::size_t server = connection.server;
  if (error == 0 && connection.response.end_of_stream()) return finish(number);
  if (connection.reused && !connection.response.started()) {
    // The server closed it while it was idle; the request is sent on another connection.
    HttpExchange& exchange = *connection.exchange;
    std::string request = std::move(connection.request);
    close(number);
    --in_flight_;
    return send(server, std::move(request), exchange);
  }
  const char* const where = !connection.connected           ? ""
                            : connection.response.started() ? "in the middle of a response"
                                                            : "instead of a response";
  if (error == 0) {
    fail_connection(number, "connection closed",
                    str(servers_[server].name, ": the server closed the connection ", where));
  } else {
    fail_connection(
        number, connection.connected ? "connection lost" : "connection",
        str(servers_[server].name, ": ", errno_text(error), *where != 0 ? " " : "", where));
  }
}

void HttpClient::fail_connection(std::size_t number, const std::string& kind,
                                 const std::string& error) {
  failures_.push_back({connections_[number].exchange, kind, error});
  close(number);
}

void HttpClient::tell_failures() {
  // An exchange that ends may start another one, which may fail immediately.
  while (!failures_.empty()) {
    const Failure failure = std::move(failures_.back());
    failures_.pop_back();
    --in_flight_;
    failure.exchange->on_end(failure.kind, failure.error);
  }
}

void HttpClient::check_timeouts(std::int64_t now) {
  checked_ns_ = now;
  for (std::size_t number = 0; number < connections_.size(); ++number) {
    const Connection& connection = connections_[number];
    if (connection.exchange == nullptr || now - connection.last_ns < timeout_.count()) continue;
    const double seconds = static_cast<double>(timeout_.count()) * 1e-9;
    fail_connection(number, "timeout",
                    str(servers_[connection.server].name, ": nothing came for ", seconds, " s"));
  }
}

namespace {

struct Fetch : HttpExchange {
  void on_head(const ResponseParser& response) override {
    reply.status = response.status();
    reply.head = response.head();
  }
  void on_body(std::string_view piece) override { reply.body.append(piece); }
  void on_end(const std::string& kind, const std::string& error) override {
    reply.kind = kind;
    reply.error = error;
  }
  HttpReply reply;
};

}  // namespace

HttpReply fetch(const HttpAddress& address, std::string request, Nanoseconds timeout) {
  HttpClient client(timeout);
  Fetch exchange;
  client.send(client.add_server(address), std::move(request), exchange);
  while (client.in_flight() > 0) client.poll(timeout);
  return std::move(exchange.reply);
}

}  // namespace nvllm::launcher
