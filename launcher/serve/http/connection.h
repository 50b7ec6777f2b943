// Connection: one client's socket. It reads requests in sequence, passes each to its owner, and
// sends the response's pieces as they arrive.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/serve/http/http_server.h"
#include "launcher/serve/http/request_reader.h"
#include "launcher/serve/http/transport.h"

namespace nvllm::launcher {

class Connection;

// Callbacks of a connection, in the I/O thread.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // A complete request has arrived. Returns its id; the response arrives through respond().
  virtual ExchangeId begin_exchange(Connection& connection, HttpRequest request) = 0;
  // The response has been sent or cannot be. left: the client disconnected first, or was dropped.
  virtual void end_exchange(ExchangeId exchange, bool left) = 0;
  // It is closed, and may be destroyed.
  virtual void closed(Connection& connection) = 0;
  // The body of a response to invalid bytes.
  virtual std::string error_body(int status, const std::string& message) = 0;
  virtual bool draining() const = 0;
};

// Used by the I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // The owner, the options and the TLS context must outlive it.
  Connection(Socket socket, std::string peer, const HttpServerOptions& options,
             ConnectionOwner& owner, const TlsContext* tls);

  void start();
  // Appends a piece of the response of the current exchange; flush() sends it.
  void respond(HttpOutput output);
  void flush();

  // Checks deadlines; called about once a second. Sends a comment in an idle stream.
  void tick(std::int64_t now);
  // Closes it if there is no exchange, otherwise after the exchange.
  void close_when_idle();
  // Closes it immediately.
  void abandon();

  bool idle() const { return exchange_ == 0 && !reader_; }
  std::size_t unsent_bytes() const { return out_.size() - sent_; }

 private:
  void await_read();
  void await_write();
  void on_readable();
  bool parse();
  void refuse(int status, const std::string& message);
  void begin_response(const HttpOutput& output);
  void append_body(std::string_view body);
  void end_response();
  void next_request();
  void linger();
  bool write_some();

  Socket socket_;
  const std::string peer_;
  const HttpServerOptions& options_;
  ConnectionOwner& owner_;
  std::unique_ptr<Transport> transport_;

  std::string in_;                       // not yet parsed
  std::uint64_t request_bytes_ = 0;      // read of the request so far
  std::optional<RequestReader> reader_;  // of a request that has started
  ExchangeId exchange_ = 0;              // 0: none is under way
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool head_only_ = false;  // the method is HEAD
  bool responding_ = false, chunked_ = false, events_ = false, response_ended_ = false;

  std::string out_;
  std::size_t sent_ = 0;  // of out_
  bool awaits_read_ = false, awaits_write_ = false;
  bool lingering_ = false;  // the response is sent; incoming bytes are discarded
  bool closed_ = false;
  bool close_wanted_ = false;

  std::int64_t since_ns_;      // when the request, or the pause before it, started
  std::int64_t last_sent_ns_;  // when something was last appended to out_
  std::int64_t progress_ns_;   // when the client last accepted bytes
};

}  // namespace nvllm::launcher
