// Reads a stream of completions as the OpenAI API sends it: server-sent events whose data are JSON.
// Both steps are linear in the bytes and parse no JSON, so that a load generator costs less than
// the server that it measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nvllm::launcher {

// Cuts bytes into events, however they arrive.
class EventReader {
 public:
  // Calls on_data(data) for the data of each event that is complete now. data: valid until then.
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
        on_data(value_of(line));  // an event of one line that is whole: nothing is copied
        bytes.remove_prefix(1);
      } else {
        take_line(line);
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

  // Lines other than data (comments, ids, names of events) mean nothing here.
  void take_line(std::string_view line) {
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

  std::string part_;  // of a line
  std::string data_;  // of an event
  bool has_data_ = false;
};

// What a load generator wants to know of one chunk of a stream.
struct StreamChunk {
  bool valid = false;     // an object, as far as a scan tells
  bool choice = false;    // it is about a choice
  bool text = false;      // with text: an answer, reasoning or a tool call
  bool role = false;      // with the role of a message that begins
  bool finished = false;  // with a finish reason
  bool error = false;
  std::int64_t token_ids = 0;  // how many ids of new tokens it has
  std::optional<std::int64_t> prompt_tokens, completion_tokens, cached_tokens;  // of its usage
};

StreamChunk scan_chunk(std::string_view json);

}  // namespace nvllm::launcher
