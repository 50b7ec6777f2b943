#include "launcher/serve/http/connection.h"

#include <array>
#include <boost/asio/post.hpp>
#include <charconv>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
// Maximum bytes read of the next requests while one is in progress.
constexpr std::size_t kMaxPipelined = std::size_t{64} << 10;
// How long a rejected client may go on sending before the connection is reset.
constexpr Nanoseconds kLinger = std::chrono::seconds(2);
// Minimum rate of a request in bytes per second, after options.read_timeout.
constexpr std::uint64_t kMinReadRate = std::uint64_t{64} << 10;
// A client must accept some bytes of a non-streaming response within this time.
constexpr Nanoseconds kWriteTimeout = std::chrono::seconds(60);

const char* reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
  }
}

void append_date(std::string& out) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 64> text{};
  out.append(text.data(),
             std::strftime(text.data(), text.size(), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc));
}

// No byte of a value may end its line: that would start another header, or a response.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  out += "\r\n";
}

void append_hex(std::string& out, std::size_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  out.append(digits.data(), end);
}

}  // namespace

Connection::Connection(Socket socket, std::string peer, const HttpServerOptions& options,
                       ConnectionOwner& owner, const TlsContext* tls)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      options_(options),
      owner_(owner),
      transport_(tls != nullptr ? tls->accept(socket_.native_handle())
                                : plain_transport(socket_.native_handle())),
      since_ns_(now_ns()),
      last_sent_ns_(since_ns_),
      progress_ns_(since_ns_) {}

void Connection::start() {
  await_read();
}

// --- Reading ---

void Connection::await_read() {
  if (closed_ || awaits_read_) return;
  if (exchange_ != 0 && in_.size() >= kMaxPipelined) return;
  awaits_read_ = true;
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->awaits_read_ = false;
                       if (!error && !self->closed_) self->on_readable();
                     });
}

void Connection::await_write() {
  if (closed_ || awaits_write_) return;
  awaits_write_ = true;
  socket_.async_wait(Socket::wait_write,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->awaits_write_ = false;
                       if (error || self->closed_) return;
                       self->flush();
                       // A TLS read may have waited for this.
                       if (!self->closed_) self->on_readable();
                     });
}

void Connection::on_readable() {
  std::array<char, kReadBytes> buffer;
  while (!closed_) {
    const Transfer read = transport_->read(buffer.data(), buffer.size());
    if (read.state == Transfer::State::closed) return abandon();
    if (read.state == Transfer::State::blocked) {
      if (read.wants_write) await_write();
      break;
    }
    if (lingering_) continue;
    if (in_.empty() && !reader_ && exchange_ == 0) {
      since_ns_ = now_ns();
      request_bytes_ = 0;
    }
    request_bytes_ += read.bytes;
    in_.append(buffer.data(), read.bytes);
    if (exchange_ == 0 && !parse()) return;
    if (exchange_ != 0 && in_.size() >= kMaxPipelined) break;
  }
  await_read();
}

// Parses received bytes; a complete request starts its exchange. False: the connection is closed.
bool Connection::parse() {
  if (!reader_) reader_.emplace(options_.max_header_bytes, options_.max_body_bytes);
  const std::size_t consumed = reader_->feed(in_);
  in_.erase(0, consumed);
  if (reader_->failed_status() != 0) {
    const std::string why = reader_->failure();  // the reader is destroyed before the answer
    refuse(reader_->failed_status(), why);
    return !closed_;
  }
  if (reader_->take_expects_continue()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
    if (closed_) return false;
  }
  if (!reader_->done()) return true;
  keep_alive_ = reader_->keep_alive();
  http_1_0_ = reader_->is_http_1_0();
  HttpRequest request = reader_->take();
  reader_.reset();
  if (in_.empty()) in_.shrink_to_fit();
  head_only_ = request.method == "HEAD";
  request.peer = peer_;
  responding_ = chunked_ = events_ = response_ended_ = false;
  exchange_ = owner_.begin_exchange(*this, std::move(request));
  return !closed_;
}

// Answers invalid bytes, and closes: what follows them cannot be interpreted.
void Connection::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  reader_.reset();
  in_.clear();
  responding_ = chunked_ = events_ = response_ended_ = head_only_ = false;
  respond({.status = status,
           .headers = {{"Content-Type", "application/json"}},
           .body = owner_.error_body(status, message),
           .last = true});
  flush();
}

// --- Writing ---

void Connection::begin_response(const HttpOutput& output) {
  responding_ = true;
  keep_alive_ = keep_alive_ && !owner_.draining();
  chunked_ = !output.last && !http_1_0_;
  if (!output.last && http_1_0_) keep_alive_ = false;
  out_ += http_1_0_ ? "HTTP/1.0 " : "HTTP/1.1 ";
  out_ += str(output.status, ' ', reason_of(output.status), "\r\n");
  append_date(out_);
  for (const HttpHeader& header : output.headers) {
    if (header.name == "Connection") {
      keep_alive_ = keep_alive_ && header.value != "close";
      continue;
    }
    append_header(out_, header.name, header.value);
    events_ |= header.value.starts_with("text/event-stream");
  }
  if (chunked_) {
    out_ += "Transfer-Encoding: chunked\r\n";
  } else if (output.last && output.status != 204 && output.status != 304) {
    out_ += str("Content-Length: ", output.body.size(), "\r\n");
  }
  if (!keep_alive_) {
    out_ += "Connection: close\r\n";
  } else if (http_1_0_) {
    out_ += "Connection: keep-alive\r\n";
  }
  out_ += "\r\n";
}

void Connection::append_body(std::string_view body) {
  if (body.empty() || head_only_) return;
  if (chunked_) {
    append_hex(out_, body.size());
    out_ += "\r\n";
  }
  out_ += body;
  if (chunked_) out_ += "\r\n";
}

void Connection::respond(HttpOutput output) {
  if (closed_ || response_ended_) return;
  last_sent_ns_ = now_ns();
  if (unsent_bytes() == 0) progress_ns_ = last_sent_ns_;
  if (!responding_) begin_response(output);
  append_body(output.body);
  if (!output.last) return;
  if (chunked_ && !head_only_) out_ += "0\r\n\r\n";
  response_ended_ = true;
}

bool Connection::write_some() {
  while (sent_ < out_.size()) {
    const Transfer write = transport_->write(std::string_view(out_).substr(sent_));
    if (write.state == Transfer::State::closed) {
      abandon();
      return false;
    }
    if (write.state == Transfer::State::blocked) {
      if (write.wants_write) {
        await_write();
      } else {
        await_read();
      }
      return true;
    }
    sent_ += write.bytes;
    progress_ns_ = now_ns();
  }
  out_.clear();
  if (out_.capacity() > kReadBytes) out_.shrink_to_fit();
  sent_ = 0;
  return true;
}

void Connection::flush() {
  if (closed_ || !write_some()) return;
  if (sent_ > 0 && 2 * sent_ >= out_.size()) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  if (!response_ended_) {
    if (responding_ && unsent_bytes() > options_.max_unsent_bytes) abandon();
  } else if (out_.empty()) {
    end_response();
  }
}

void Connection::end_response() {
  const ExchangeId ended = std::exchange(exchange_, 0);
  responding_ = response_ended_ = false;
  if (ended != 0) owner_.end_exchange(ended, false);
  if (closed_) return;
  if (!keep_alive_ || close_wanted_) return linger();
  next_request();
}

// The bytes of the next request may have arrived already. Posted, because a client that pipelines
// thousands of requests must not deepen the stack.
void Connection::next_request() {
  since_ns_ = now_ns();
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->closed_ || self->exchange_ != 0) return;
    if (!self->in_.empty() && !self->parse()) return;
    self->await_read();
  });
}

// Half-closes the connection, and discards what the client still sends: if it were closed with
// unread bytes, the system would discard the response.
void Connection::linger() {
  lingering_ = true;
  since_ns_ = now_ns();
  in_.clear();
  transport_->shut_down();
  await_read();
}

// --- The end ---

void Connection::tick(std::int64_t now) {
  if (closed_) return;
  const auto longer_than = [now](std::int64_t since, Nanoseconds limit) {
    return now - since > limit.count();
  };
  if (lingering_) {
    if (longer_than(since_ns_, kLinger)) abandon();
  } else if (exchange_ != 0 || responding_) {
    if (unsent_bytes() > 0 && longer_than(progress_ns_, kWriteTimeout)) return abandon();
    if (!events_ || response_ended_ || !longer_than(last_sent_ns_, options_.comment_interval)) {
      return;
    }
    respond({.exchange = exchange_, .body = ": keep-alive\n\n"});
    flush();
  } else if (reader_ && reader_->started()) {
    const std::chrono::seconds allowed(request_bytes_ / kMinReadRate);
    if (longer_than(since_ns_, options_.read_timeout + allowed)) {
      refuse(408, str("the request did not come whole within ",
                      format_duration(1e-9 * static_cast<double>(now - since_ns_))));
    }
  } else if (longer_than(since_ns_, options_.keep_alive_timeout)) {
    abandon();
  }
}

void Connection::close_when_idle() {
  close_wanted_ = true;
  if (exchange_ == 0 && !responding_ && !lingering_ && in_.empty()) linger();
}

void Connection::abandon() {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();  // the owner may let go of it
  const ExchangeId ended = std::exchange(exchange_, 0);
  if (ended != 0) owner_.end_exchange(ended, true);
  boost::system::error_code ignored;
  transport_.reset();
  socket_.close(ignored);
  owner_.closed(*this);
}

}  // namespace nvllm::launcher
