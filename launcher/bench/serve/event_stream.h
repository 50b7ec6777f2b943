// Parses a stream of completions as sent by the OpenAI API: server-sent events with JSON data. Both
// steps take linear time and do not parse the JSON, so that a load generator costs less than the
// server that it measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nvllm::launcher {

// Splits bytes into events, however they arrive.
class EventReader {
 public:
  // Calls on_data(data) for each event that is now complete. data is valid during the call only.
  template <typename OnData>
  void feed(std::string_view bytes, OnData&& on_data) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      if (newline == std::string_view::npos) {
        part_.append(bytes);
        return;
      }
      std::string_view line = bytes.substr(0, newline);
      if (!part_.empty()) line = part_.append(line);
      bytes.remove_prefix(newline + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty()) {
        end_event(on_data);
      } else if (!has_data_ && line.starts_with("data:") && bytes.starts_with('\n')) {
        on_data(value_of(line));  // a complete event of one line: nothing is copied
        bytes.remove_prefix(1);
      } else {
        add_line(line);
      }
      part_.clear();
    }
  }

 private:
  static std::string_view value_of(std::string_view line) {
    line.remove_prefix(sizeof "data:" - 1);
    if (line.starts_with(' ')) line.remove_prefix(1);
    return line;
  }

  // Lines other than data (comments, ids, event names) are ignored.
  void add_line(std::string_view line) {
    if (!line.starts_with("data:")) return;
    if (has_data_) data_ += '\n';
    data_ += value_of(line);
    has_data_ = true;
  }

  template <typename OnData>
  void end_event(OnData&& on_data) {
    if (!has_data_) return;
    on_data(std::string_view(data_));
    data_.clear();
    has_data_ = false;
  }

  std::string part_;  // an incomplete line
  std::string data_;  // of an incomplete event
  bool has_data_ = false;
};

// The properties of one chunk of a stream that a load generator needs.
struct StreamChunk {
  bool valid = false;     // an object, as far as a scan can tell
  bool choice = false;    // contains a choice
  bool text = false;      // contains text: an answer, reasoning or a tool call
  bool role = false;      // contains the role that starts a message
  bool finished = false;  // contains a finish reason
  bool error = false;
  std::int64_t token_ids = 0;  // number of new token ids
  std::optional<std::int64_t> prompt_tokens, completion_tokens, cached_tokens;  // from its usage
};

StreamChunk scan_chunk(std::string_view json);

}  // namespace nvllm::launcher
