// ResponseParser: reads one HTTP/1.1 response, however its bytes are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nvllm::launcher {

// Gets the pieces of a body, without the framing of chunks.
class BodyReceiver {
 public:
  virtual ~BodyReceiver() = default;
  virtual void on_body(std::string_view piece) = 0;
};

class ResponseParser {
 public:
  // Takes bytes until the response ends, and returns how many. Throws an Error if they are no
  // HTTP/1.1; then the parser is of no use any more.
  std::size_t feed(std::string_view bytes, BodyReceiver& receiver);
  // The server has closed the connection: true if the response ends with that.
  bool end_of_stream();

  bool started() const { return started_; }  // there was a byte
  bool done() const { return state_ == State::done; }
  int status() const { return status_; }  // 0: not known yet
  // Whether the connection may carry another request.
  bool keep_alive() const { return keep_alive_; }
  // The status line and the headers as they came.
  const std::string& head() const { return head_; }

  // Ready for another response.
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
  std::uint64_t left_ = 0;  // bytes of the body, or of the chunk
  std::string head_;
  std::string line_;  // a line of the framing that has not ended yet
};

// The value of a header in a head, whatever the name's case; empty: it is not there.
std::string_view header_of(std::string_view head, std::string_view name);

}  // namespace nvllm::launcher
