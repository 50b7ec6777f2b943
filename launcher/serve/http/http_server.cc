#include "launcher/serve/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/logging.h"
#include "base/thread.h"
#include "launcher/serve/http/connection.h"
#include "launcher/serve/http/listen_socket.h"

namespace nvllm::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Nanoseconds kTick = std::chrono::milliseconds(500);
// Maximum connections accepted before others are served again.
constexpr int kAcceptAtOnce = 64;

// Each connection needs a file descriptor, whose default limit is 1024.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string peer_text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
    return str(text.data(), ':', ntohs(four.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
    return str('[', text.data(), "]:", ntohs(six.sin6_port));
  }
  return "unix";
}

}  // namespace

struct HttpServer::State : ConnectionOwner {
  State(const HttpServerOptions& options_in, HttpHandlers handlers_in);
  ~State() override { release_listener(); }

  // In the I/O thread.
  void run();
  void release_listener();  // `listening` owns its file
  void accept_next();
  void accept_all();
  void open_connection(int fd, const sockaddr_storage& address);
  void tick_later();
  void send_queued();
  void close_all_idle();
  void end_when_sent(std::int64_t deadline_ns);

  ExchangeId begin_exchange(Connection& connection, HttpRequest request) override;
  void end_exchange(ExchangeId exchange, bool left) override;
  void closed(Connection& connection) override;
  std::string error_body(int status, const std::string& message) override {
    return handlers.error_body(status, message);
  }
  bool draining() const override { return is_draining; }

  const HttpServerOptions options;
  const HttpHandlers handlers;
  std::optional<TlsContext> tls;
  ListenSocket listening;
  std::string address;

  asio::io_context io{1};
  asio::posix::stream_descriptor acceptor{io};
  asio::steady_timer ticker{io}, accept_pause{io};
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::unordered_map<ExchangeId, Connection*> exchanges;
  ExchangeId last_exchange = 0;
  bool is_draining = false;

  std::mutex mutex;  // guards what follows
  std::vector<HttpOutput> queued;
  bool send_posted = false;
  std::condition_variable parking;
  bool pause_wanted = false, parked = false;

  bool stopped = false;  // by stop()
  std::thread thread;
};

HttpServer::State::State(const HttpServerOptions& options_in, HttpHandlers handlers_in)
    : options(options_in), handlers(std::move(handlers_in)) {
  if (!options.tls_certificate.empty()) tls.emplace(options.tls_certificate, options.tls_key);
  listening = options.unix_socket.empty() ? listen_tcp(options.host, options.port)
                                          : listen_unix(options.unix_socket);
  const char* const scheme = tls ? "https://" : "http://";
  address = options.unix_socket.empty() ? scheme + listening.address : listening.address;
  acceptor.assign(listening.fd.get());
}

void HttpServer::State::run() {
  accept_next();
  tick_later();
  io.run();
}

// --- Accepting ---

void HttpServer::State::release_listener() {
  if (acceptor.is_open()) acceptor.release();
}

void HttpServer::State::accept_next() {
  acceptor.async_wait(asio::posix::stream_descriptor::wait_read, [this](const error_code& error) {
    if (!error && acceptor.is_open()) accept_all();
  });
}

void HttpServer::State::accept_all() {
  for (int i = 0; i < kAcceptAtOnce && connections.size() < options.max_connections; ++i) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    const int fd = ::accept4(listening.fd.get(), reinterpret_cast<sockaddr*>(&peer), &length,
                             SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      open_connection(fd, peer);
      continue;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) break;
    return accept_next();
  }
  // The limit of files or of connections is reached, or many arrived at once: others are served
  // first.
  accept_pause.expires_after(
      std::chrono::milliseconds(connections.size() < options.max_connections ? 1 : 50));
  accept_pause.async_wait([this](const error_code& error) {
    if (!error && acceptor.is_open()) accept_next();
  });
}

void HttpServer::State::open_connection(int fd, const sockaddr_storage& peer) {
  UniqueFd owned(fd);
  const bool tcp = peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
  const int on = 1;
  // Otherwise the second of two small pieces waits some 40 ms for the client's acknowledgement.
  if (tcp) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  try {
    Connection::Socket socket(io);
    socket.assign(asio::generic::stream_protocol(tcp ? peer.ss_family : AF_UNIX, 0), fd);
    owned.release();
    auto connection = std::make_shared<Connection>(std::move(socket), peer_text(peer), options,
                                                   *this, tls ? &*tls : nullptr);
    connections.emplace(connection.get(), connection);
    connection->start();
  } catch (const std::exception& error) {
    log_warning(str("a connection was dropped: ", error.what()));
  }
}

// --- Exchanges ---

ExchangeId HttpServer::State::begin_exchange(Connection& connection, HttpRequest request) {
  const ExchangeId exchange = ++last_exchange;
  exchanges.emplace(exchange, &connection);
  handlers.request(exchange, std::move(request));
  return exchange;
}

void HttpServer::State::end_exchange(ExchangeId exchange, bool left) {
  exchanges.erase(exchange);
  if (left) handlers.gone(exchange);
}

void HttpServer::State::closed(Connection& connection) {
  connections.erase(&connection);
}

void HttpServer::State::send_queued() {
  std::vector<HttpOutput> outputs;
  {
    const std::lock_guard lock(mutex);
    outputs.swap(queued);
    send_posted = false;
  }
  // All pieces for one connection are sent by one write.
  std::vector<std::shared_ptr<Connection>> touched;
  for (HttpOutput& output : outputs) {
    const auto found = exchanges.find(output.exchange);
    if (found == exchanges.end()) continue;
    if (touched.empty() || touched.back().get() != found->second) {
      touched.push_back(found->second->shared_from_this());
    }
    found->second->respond(std::move(output));
  }
  for (const auto& connection : touched) connection->flush();
}

// --- Time ---

void HttpServer::State::tick_later() {
  ticker.expires_after(kTick);
  ticker.async_wait([this](const error_code& error) {
    if (error) return;
    const std::int64_t now = now_ns();
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections.size());
    for (const auto& [key, connection] : connections) all.push_back(connection);
    for (const auto& connection : all) connection->tick(now);
    tick_later();
  });
}

void HttpServer::State::close_all_idle() {
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [key, connection] : connections) all.push_back(connection);
  for (const auto& connection : all) connection->close_when_idle();
}

void HttpServer::State::end_when_sent(std::int64_t deadline_ns) {
  const bool waiting = std::any_of(connections.begin(), connections.end(), [](const auto& each) {
    return each.second->unsent_bytes() > 0;
  });
  if (!waiting || now_ns() >= deadline_ns) return io.stop();
  accept_pause.expires_after(std::chrono::milliseconds(5));
  accept_pause.async_wait([this, deadline_ns](const error_code&) { end_when_sent(deadline_ns); });
}

// --- HttpServer ---

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandlers handlers)
    : state_(std::make_unique<State>(options, std::move(handlers))) {}

void HttpServer::start() {
  raise_file_limit();
  state_->thread = start_thread("of the HTTP server", [state = state_.get()] { state->run(); });
}

HttpServer::~HttpServer() {
  stop(Nanoseconds(0));
}

const std::string& HttpServer::address() const {
  return state_->address;
}

std::uint16_t HttpServer::port() const {
  return state_->listening.port;
}

void HttpServer::send(std::vector<HttpOutput> outputs) {
  if (outputs.empty()) return;
  {
    const std::lock_guard lock(state_->mutex);
    std::move(outputs.begin(), outputs.end(), std::back_inserter(state_->queued));
    if (std::exchange(state_->send_posted, true)) return;
  }
  asio::post(state_->io, [state = state_.get()] { state->send_queued(); });
}

void HttpServer::close_after_responses() {
  asio::post(state_->io, [state = state_.get()] {
    state->is_draining = true;
    state->close_all_idle();
  });
}

void HttpServer::pause() {
  std::unique_lock lock(state_->mutex);
  state_->pause_wanted = true;
  asio::post(state_->io, [state = state_.get()] {
    std::unique_lock parked(state->mutex);
    state->parked = true;
    state->parking.notify_all();
    state->parking.wait(parked, [state] { return !state->pause_wanted; });
    state->parked = false;
  });
  state_->parking.wait(lock, [this] { return state_->parked; });
}

void HttpServer::resume() {
  const std::lock_guard lock(state_->mutex);
  state_->pause_wanted = false;
  state_->parking.notify_all();
}

void HttpServer::stop(Nanoseconds limit) {
  if (std::exchange(state_->stopped, true) || !state_->thread.joinable()) return;
  close_after_responses();
  asio::post(state_->io, [state = state_.get(), deadline = now_ns() + limit.count()] {
    state->release_listener();
    state->listening.fd.reset();
    state->end_when_sent(deadline);
  });
  state_->thread.join();
  for (const auto& [key, connection] : std::exchange(state_->connections, {}))
    connection->abandon();
}

}  // namespace nvllm::launcher
