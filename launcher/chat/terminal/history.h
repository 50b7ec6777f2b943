// History: earlier inputs of this and other sessions. With a file, every entry is appended to it
// immediately, so that several sessions can share it; only its owner may read it. A file that
// starts with kHistoryMark was created by us, and is shortened when it is long; no line is ever
// removed from any other file.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

inline constexpr std::string_view kHistoryMark = "# history of nvllm-launch";

// Not thread-safe.
class History {
 public:
  static constexpr std::size_t kMaxEntries = 1000;  // the oldest are dropped when a session starts
  static constexpr std::size_t kMaxEntryBytes = std::size_t{16} << 10;  // longer ones are not
                                                                        // stored

  History() = default;  // without a file
  // Reads the file, which the first entry creates. An Error if it exists and cannot be read.
  explicit History(std::string path);

  const std::vector<std::string>& entries() const { return entries_; }  // newest last
  // Ignores empty entries, and repetitions of the newest. An Error if the file cannot be written;
  // it is not tried again.
  void add(const std::string& entry);

  // The newest entry before index `end` that contains the text.
  std::optional<std::size_t> find_before(std::size_t end, std::string_view text) const;

 private:
  void append(const std::string& entry);
  void shorten_file();

  std::string path_;  // empty: none
  std::vector<std::string> entries_;
};

}  // namespace nvllm::launcher
