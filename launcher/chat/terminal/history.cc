#include "launcher/chat/terminal/history.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {
namespace {

// Longer than any typed history of a thousand lines.
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{32} << 20;

// An entry is one line of the file, with newlines and backslashes escaped by a backslash.
std::string as_line(std::string_view entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c == '\\' ? "\\\\" : std::string(1, c);
    }
  }
  return line + '\n';
}

std::string from_line(std::string_view line) {
  std::string entry;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool escaped = line[i] == '\\' && i + 1 < line.size();
    if (escaped) ++i;
    entry += escaped && line[i] == 'n' ? '\n' : line[i];
  }
  return entry;
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("the history ", path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

History::History(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) return;
  const std::uintmax_t size = std::filesystem::file_size(path_, error);
  if (error) fail("the history ", path_, ": ", error.message(), "; pass --history FILE or off");
  if (size > kMaxFileBytes) fail("the history ", path_, ": larger than 32 MiB; remove it");
  std::ifstream file(path_, std::ios::binary);
  if (!file) fail_errno("the history ", path_);
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    if (line != kHistoryMark) {
      entries_.push_back(from_line(line));
    } else {
      ours |= entries_.empty();
    }
  }
  if (entries_.size() <= kMaxEntries) return;
  entries_.erase(entries_.begin(), entries_.end() - static_cast<std::ptrdiff_t>(kMaxEntries));
  if (ours) shorten_file();
}

void History::add(const std::string& entry) {
  if (entry.find_first_not_of(" \n") == std::string::npos) return;
  if (!entries_.empty() && entries_.back() == entry) return;
  entries_.push_back(entry);
  if (path_.empty() || entry.size() > kMaxEntryBytes) return;
  try {
    append(entry);
  } catch (const Error&) {
    path_.clear();
    throw;
  }
}

void History::append(const std::string& entry) {
  // A single write() appends the line, so that sessions which share the file do not mix their
  // lines.
  const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!file) fail_errno("the history ", path_);
  ::fchmod(file.get(), 0600);
  struct stat status {};
  const bool is_new = ::fstat(file.get(), &status) == 0 && status.st_size == 0;
  write_all(file.get(), (is_new ? str(kHistoryMark, '\n') : "") + as_line(entry), path_);
}

// Another session may append to the old file meanwhile; that entry is lost, but the file is intact.
void History::shorten_file() {
  const std::string next = path_ + ".new";
  const UniqueFd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return;  // try again another time
  std::string text = str(kHistoryMark, '\n');
  for (const std::string& entry : entries_) text += as_line(entry);
  write_all(file.get(), text, next);
  if (::rename(next.c_str(), path_.c_str()) != 0) ::unlink(next.c_str());
}

std::optional<std::size_t> History::find_before(std::size_t end, std::string_view text) const {
  for (std::size_t i = std::min(end, entries_.size()); i-- > 0;) {
    if (entries_[i].find(text) != std::string::npos) return i;
  }
  return std::nullopt;
}

}  // namespace nvllm::launcher
