// History: what was entered before, in this session and in earlier ones. With a file, every entry
// is appended to it at once, so that several sessions share one; only its owner may read it. A file
// that begins with kHistoryMark is one of ours, and is shortened when it is long; of any other file
// (somebody's notes, say) no line is ever removed.
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
  static constexpr std::size_t kMaxEntries = 1000;  // when a session begins the oldest are dropped
  static constexpr std::size_t kMaxEntryBytes = std::size_t{16} << 10;  // longer ones are not kept

  History() = default;  // without a file
  // Reads the file; it is made with the first entry. An Error if it is there and cannot be read.
  explicit History(std::string path);

  const std::vector<std::string>& entries() const { return entries_; }  // the newest is the last
  // Empty ones, and one that is the newest already, are left out. An Error if the file cannot be
  // written: then it is not tried again.
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
