#include "launcher/hub/net/http_session.h"

#include <utility>

#include "launcher/cli/program.h"

namespace nvllm::launcher {
HttpHead HttpSession::begin(std::string_view method, const Url& url, std::string_view headers) {
  Connection before = std::exchange(current_, {});
  const bool ended = before.stream && before.response.status() != 0 &&
                     (before.head_only || before.response.done()) && before.early.empty();
  if (ended && before.response.keep_alive()) idle_[before.origin] = std::move(before);
  const std::string request =
      str(method, ' ', url.target, " HTTP/1.1\r\nHost: ", url.authority(), "\r\nUser-Agent: nvllm/",
          kVersion, "\r\nAccept-Encoding: identity\r\n", headers, "\r\n");
  if (const auto found = idle_.find(url.origin()); found != idle_.end()) {
    current_ = std::move(found->second);
    idle_.erase(found);
    try {
      return exchange(method, url, request);
    } catch (const NetworkError&) {
      // The server may have closed the idle connection; try a new one.
    }
  }
  current_ = {};
  current_.stream = network_.connect(url);
  current_.origin = url.origin();
  return exchange(method, url, request);
}

HttpHead HttpSession::exchange(std::string_view method, const Url& url,
                               const std::string& request) {
  current_.response.reset();
  current_.head_only = method == "HEAD";
  current_.early.clear();
  current_.stream->write(request);
  BodyCollector collector(current_.early);
  while (current_.response.status() == 0) {
    if (!read_some(collector)) {
      throw NetworkError(url.authority() + ": closed the connection before it answered");
    }
  }
  return {current_.response.status(), current_.response.head()};
}

// False: the connection has ended.
bool HttpSession::read_some(BodyReceiver& receiver) {
  const std::size_t count = current_.stream->read(buffer_.data(), buffer_.size());
  if (count == 0) return false;
  current_.response.feed({buffer_.data(), count}, receiver);
  return true;
}

bool HttpSession::more(BodyReceiver& receiver) {
  if (!current_.early.empty()) {
    receiver.on_body(std::exchange(current_.early, {}));
    return true;
  }
  if (current_.head_only || current_.response.done()) return false;
  if (read_some(receiver)) return true;
  if (current_.response.end_of_stream()) return false;
  throw NetworkError(current_.origin + ": closed the connection in the middle of its answer");
}

std::string HttpSession::whole_body(std::size_t max_size) {
  std::string body;
  BodyCollector collector(body);
  while (more(collector)) {
    if (body.size() > max_size) {
      fail(current_.origin, ": answers with more than ", format_bytes(max_size));
    }
  }
  return body;
}

}  // namespace nvllm::launcher
