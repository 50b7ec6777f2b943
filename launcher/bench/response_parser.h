// ResponseParser: parses one HTTP/1.1 response, however its bytes are split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nvllm::launcher {

// Receives the pieces of a body, without chunk framing.
class BodyReceiver {
 public:
  virtual ~BodyReceiver() = default;
  virtual void on_body(std::string_view piece) = 0;
};

class ResponseParser {
 public:
  // Consumes bytes until the response ends, and returns their number. Throws an Error if they are
  // not valid HTTP/1.1; the parser must not be used after that.
  std::size_t feed(std::string_view bytes, BodyReceiver& receiver);
  // The server has closed the connection: returns whether that completes the response.
  bool end_of_stream();

  bool started() const { return started_; }  // at least one byte was received
  bool done() const { return state_ == State::done; }
  int status() const { return status_; }  // 0: not known yet
  // Whether the connection can be used for another request.
  bool keep_alive() const { return keep_alive_; }
  // The status line and the headers as received.
  const std::string& head() const { return head_; }

  // Prepares for another response.
  void reset() { *this = ResponseParser(); }

 private:
  enum class State : std::uint8_t {
    head,
    fixed,
    chunk_size,
    chunk_data,
    chunk_end,
    trailer,
    rest,
    done
  };

  std::size_t feed_head(std::string_view bytes);
  std::size_t feed_line(std::string_view bytes);
  void end_of_head();
  void end_of_line();

  State state_ = State::head;
  bool started_ = false, keep_alive_ = true;
  int status_ = 0;
  std::uint64_t left_ = 0;  // remaining bytes of the body, or of the chunk
  std::string head_;
  std::string line_;  // an incomplete line of chunk framing
};

// The value of a header, found case-insensitively; empty: not present.
std::string_view header_of(std::string_view head, std::string_view name);

}  // namespace nvllm::launcher
