#include "launcher/serve/http/request_reader.h"

#include <utility>
// Boost.Asio, which Beast includes, needs std::exchange and does not include it.
#include <strings.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>

#include "base/text.h"
#include "launcher/net/percent.h"

namespace nvllm::launcher {

namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

std::string text_of(beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

struct RequestReader::State {
  http::request_parser<http::string_body> parser;
  bool started = false;
  bool continue_told = false;
  bool header_checked = false;
  int failed_status = 0;
  std::string failure;
  std::size_t max_header_bytes, max_body_bytes;

  void fail(beast::error_code error) {
    if (error == http::error::body_limit) {
      failed_status = 413;
      failure = str("the request's body has more than ", max_body_bytes,
                    " bytes; see --max-request-bytes");
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      failed_status = 431;
      failure = str("the request's headers have more than ", max_header_bytes, " bytes");
    } else if (error == http::error::bad_version) {
      failed_status = 505;
      failure = "only HTTP/1.1 and HTTP/1.0 are spoken here";
    } else {
      failed_status = 400;
      failure = str("no valid HTTP request: ", error.message());
    }
  }

  // Refuses what Beast's parser accepts although a proxy may read it as another request (RFC 9112,
  // 3.2 and 6.3): a body whose end is unknown, and HTTP/1.1 without exactly one Host.
  void check_header() {
    if (header_checked || !parser.is_header_done()) return;
    header_checked = true;
    const auto& request = parser.get();
    const std::size_t hosts = request.count(http::field::host);
    const auto encoding = request.find(http::field::transfer_encoding);
    if (request.version() >= 11 && hosts != 1) {
      failed_status = 400;
      failure = str("the request has ", hosts, " Host headers; HTTP/1.1 needs one");
    } else if (encoding != request.end() && !parser.chunked()) {
      constexpr std::size_t kMaxShown = 40;
      failed_status = 400;
      failure = str("Transfer-Encoding '", text_of(encoding->value()).substr(0, kMaxShown),
                    "': the body's end is unknown; send it chunked, or with Content-Length");
    }
  }
};

RequestReader::RequestReader(std::size_t max_header_bytes, std::size_t max_body_bytes)
    : state_(std::make_unique<State>()) {
  state_->max_header_bytes = max_header_bytes;
  state_->max_body_bytes = max_body_bytes;
  state_->parser.eager(true);
  state_->parser.header_limit(static_cast<std::uint32_t>(max_header_bytes));
  state_->parser.body_limit(max_body_bytes);
}

RequestReader::~RequestReader() = default;

std::size_t RequestReader::feed(std::string_view bytes) {
  if (bytes.empty() || done() || state_->failed_status != 0) return 0;
  state_->started = true;
  // Every chunked body ends with at least this many bytes; Beast's parser aborts on fewer.
  constexpr std::size_t kLastChunk = std::string_view("0\r\n\r\n").size();
  const auto& parser = state_->parser;
  if (parser.is_header_done() && parser.chunked() && bytes.size() < kLastChunk) return 0;
  beast::error_code error;
  const std::size_t consumed =
      state_->parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
  if (error == http::error::need_more) {
    // Headers, and the text around chunks, are consumed as a whole: until then they stay in the
    // caller's buffer.
    const bool waits = !parser.is_header_done() || consumed == 0;
    if (waits && bytes.size() > state_->max_header_bytes) {
      state_->fail(http::error::header_limit);
    }
  } else if (error) {
    state_->fail(error);
  }
  if (state_->failed_status == 0) state_->check_header();
  return consumed;
}

bool RequestReader::started() const {
  return state_->started;
}

bool RequestReader::done() const {
  return state_->parser.is_done();
}

bool RequestReader::take_expects_continue() {
  if (state_->continue_told || !state_->parser.is_header_done() || done()) return false;
  if (!beast::iequals(state_->parser.get()[http::field::expect], "100-continue")) return false;
  state_->continue_told = true;
  return true;
}

int RequestReader::failed_status() const {
  return state_->failed_status;
}

const std::string& RequestReader::failure() const {
  return state_->failure;
}

bool RequestReader::keep_alive() const {
  return state_->parser.get().keep_alive();
}

bool RequestReader::is_http_1_0() const {
  return state_->parser.get().version() < 11;
}

HttpRequest RequestReader::take() {
  auto message = state_->parser.release();
  HttpRequest request;
  request.method = text_of(message.method_string());
  std::string target = text_of(message.target());
  // An absolute target, as proxies send it: "http://host/path".
  if (const std::size_t scheme = target.find("://");
      scheme != std::string::npos && target.front() != '/') {
    const std::size_t path = target.find('/', scheme + 3);
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  target.resize(std::min(target.find('#'), target.size()));
  const std::size_t query = target.find('?');
  // A malformed path is kept: no route matches it.
  request.path = percent_decoded(std::string_view(target).substr(0, query));
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : message) {
    request.headers.push_back({text_of(field.name_string()), text_of(field.value())});
  }
  request.body = std::move(message.body());
  return request;
}

const std::string* HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name.size() == name.size() &&
        ::strncasecmp(header.name.data(), name.data(), name.size()) == 0) {
      return &header.value;
    }
  }
  return nullptr;
}

}  // namespace nvllm::launcher
