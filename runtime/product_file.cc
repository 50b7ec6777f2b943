#include "runtime/product_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace nvllm::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeader = "nvllm products, version 1\n";
constexpr std::uintmax_t kMostBytes = 64 << 20;

bool is_text(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// Whether a line, without its end, is a choice; if so it is added.
bool take_line(std::string_view line, kernels::ProductChoices& choices) {
  const std::size_t tab = line.find('\t');
  if (tab == std::string_view::npos) return false;
  const std::string_view key = line.substr(0, tab), choice = line.substr(tab + 1);
  if (!is_text(key) || !is_text(choice)) return false;
  choices.insert_or_assign(std::string(key), std::string(choice));
  return true;
}

// The file's text; empty if it is not there.
std::string text_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (error || !fs::is_regular_file(status)) fail("not a file that can be read");
  if (fs::file_size(path) > kMostBytes) fail("larger than a file of measured products can be");
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail("not a file that can be read");
  return text;
}

ProductFile::Contents parse(std::string_view text) {
  ProductFile::Contents contents;
  if (text.empty()) return contents;
  if (!text.starts_with(kHeader)) {
    contents.problem =
        "not a file of measured products, or of another version; it counts for nothing";
    return contents;
  }
  text.remove_prefix(kHeader.size());
  std::int64_t number = 1, first_bad = 0, bad = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;  // else it was cut off
    if (!whole || !take_line(text.substr(0, end), contents.choices)) {
      if (bad++ == 0) first_bad = number;
    }
    text.remove_prefix(whole ? end + 1 : text.size());
  }
  if (bad > 0) {
    contents.problem =
        str("line ", first_bad, " is no measured product",
            bad > 1 ? str(", and ", bad - 1, " more are none") : "", "; the others count");
  }
  return contents;
}

std::string format(const kernels::ProductChoices& choices) {
  std::string text(kHeader);
  for (const auto& [key, choice] : choices)
    text.append(key).append("\t").append(choice).append("\n");
  return text;
}

// Waits its turn. Where there are no locks, a file that two runs write at once has what one of them added.
UniqueFd lock(const std::string& path) {
  constexpr int kTries = 500;
  constexpr useconds_t kBetweenUs = 10'000;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) fail_errno(path);
  for (int i = 0; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (i == kTries) fail(path, ": another run has held this lock for seconds");
    ::usleep(kBetweenUs);
  }
  return file;
}

}  // namespace

ProductFile::Contents ProductFile::read() const {
  Contents contents;
  try {
    contents = parse(text_of(path_));
  } catch (const std::exception& error) {
    contents.problem = error.what();
  }
  if (!contents.problem.empty()) contents.problem = path_ + ": " + contents.problem;
  return contents;
}

void ProductFile::add(const kernels::ProductChoices& choices) const {
  std::error_code error;
  const fs::path folder = fs::path(path_).parent_path();
  fs::create_directories(folder, error);
  if (error) fail(folder.string(), ": ", error.message());
  const UniqueFd locked = lock(path_ + ".lock");
  kernels::ProductChoices all = read().choices;
  for (const auto& [key, choice] : choices) all.insert_or_assign(key, choice);
  replace(format(all));
}

void ProductFile::replace(const std::string& text) const {
  std::string written = path_ + ".XXXXXX";
  UniqueFd file(::mkostemp(written.data(), O_CLOEXEC));
  if (!file) fail_errno(written);
  try {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t some = ::write(file.get(), text.data() + at, text.size() - at);
      if (some < 0 && errno != EINTR) fail_errno(written);
      if (some > 0) at += static_cast<std::size_t>(some);
    }
    if (::fchmod(file.get(), 0644) != 0) fail_errno(written);
    if (std::rename(written.c_str(), path_.c_str()) != 0) fail_errno(path_);
  } catch (...) {
    ::unlink(written.c_str());
    throw;
  }
}

}  // namespace nvllm::runtime
