#include "launcher/hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "base/thread.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kConnections = 8;
constexpr std::uint64_t kRangeBytes = std::uint64_t{8} << 20;
// Ranges that may start while the first incomplete one is not done; bounds the memory of those that
// must wait for it.
constexpr std::size_t kWindow = 2 * kConnections;

// A part of a file, fetched by one request.
struct ByteRange {
  BlobWriter* blob = nullptr;
  std::uint64_t begin = 0, end = 0;
  std::atomic<std::size_t>* left = nullptr;  // ranges of the file that are not complete
};

// Delays a range until it is not too far ahead of the others.
class Window {
 public:
  explicit Window(std::size_t ranges) : done_(ranges) {}

  void wait_for(std::size_t range) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || range < first_ + kWindow; });
    if (ended_) throw NetworkStopped("stopped");
  }
  void complete(std::size_t range) {
    const std::lock_guard lock(mutex_);
    done_[range] = true;
    while (first_ < done_.size() && done_[first_]) ++first_;
    changed_.notify_all();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  std::size_t first_ = 0;  // the first range that is not complete
  bool ended_ = false;
};

struct RangeReceiver : BodyReceiver {
  explicit RangeReceiver(const std::function<void(std::uint64_t)>& on_bytes) : on_bytes(on_bytes) {}
  void on_body(std::string_view piece) override {
    bytes.append(piece);
    on_bytes(piece.size());
  }
  std::string bytes;
  const std::function<void(std::uint64_t)>& on_bytes;
};

// The number of attempts restarts whenever bytes have arrived.
void fetch_bytes(HubClient& client, HttpSession& session, const ByteRange& range,
                 RangeReceiver& receiver) {
  while (range.begin + receiver.bytes.size() < range.end) {
    client.with_attempts([&] {
      const std::size_t before = receiver.bytes.size();
      try {
        client.fetch(session, range.blob->file(), range.begin + before, range.end, receiver);
      } catch (const NetworkError&) {
        if (before == receiver.bytes.size()) throw;
      }
    });
  }
}

void fetch_range(HubClient& client, HttpSession& session, const ByteRange& range,
                 const std::function<void(std::uint64_t)>& on_bytes) {
  RangeReceiver receiver(on_bytes);
  receiver.bytes.reserve(range.end - range.begin);
  try {
    fetch_bytes(client, session, range, receiver);
  } catch (...) {
    range.blob->put(range.begin, std::move(receiver.bytes));  // another run continues from here
    throw;
  }
  range.blob->put(range.begin, std::move(receiver.bytes));
  if (--*range.left == 0) range.blob->finish();
}

constexpr Nanoseconds kTerminalEvery = std::chrono::milliseconds(200);
constexpr Nanoseconds kLineEvery = std::chrono::seconds(10);

// The remaining time: "40 s", "3 min".
std::string rest_of_time(double seconds) {
  if (seconds < 90) return fixed(std::max(1.0, seconds), 0) + " s";
  if (seconds < 5400) return fixed(seconds / 60, 0) + " min";
  return fixed(seconds / 3600, 1) + " h";
}

}  // namespace

BlobWriter::BlobWriter(HubFile file, std::string path, const std::function<void()>& keep_going)
    : file_(std::move(file)), path_(std::move(path)), incomplete_(path_ + ".incomplete") {
  fd_.reset(::open(incomplete_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  struct stat status {};
  if (!fd_ || ::fstat(fd_.get(), &status) != 0) fail_errno(incomplete_);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (file_.sha256.empty() || size > file_.size) {
    if (::ftruncate(fd_.get(), 0) != 0) fail_errno(incomplete_);
    return;
  }
  std::vector<char> buffer(std::size_t{4} << 20);
  while (written_ < size) {
    keep_going();
    const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0) fail_errno(incomplete_);
    if (count == 0) break;
    hash_.add({buffer.data(), static_cast<std::size_t>(count)});
    written_ += static_cast<std::uint64_t>(count);
  }
  size_at_start_ = written_;
}

void BlobWriter::put(std::uint64_t offset, std::string bytes) {
  const std::lock_guard lock(mutex_);
  ahead_[offset] = std::move(bytes);
  while (!ahead_.empty() && ahead_.begin()->first == written_) {
    append(ahead_.begin()->second);
    ahead_.erase(ahead_.begin());
  }
}

void BlobWriter::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(written_));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      fail(
          incomplete_, ": ", errno_text(count < 0 ? errno : ENOSPC),
          "; make room, or set HF_HUB_CACHE to a folder on another disk. What has arrived is kept");
    }
    const auto done = static_cast<std::size_t>(count);
    hash_.add(bytes.substr(0, done));
    written_ += done;
    bytes.remove_prefix(done);
  }
}

void BlobWriter::finish() {
  const std::lock_guard lock(mutex_);
  if (written_ != file_.size) {
    fail(incomplete_, ": holds ", written_, " of ", file_.size, " bytes; pull the model again");
  }
  if (const std::string hash = hash_.finish(); !file_.sha256.empty() && hash != file_.sha256) {
    ::unlink(incomplete_.c_str());
    fail("file ", file_.name, ": arrived with SHA-256 ", hash, ", not ", file_.sha256,
         " as the hub says; nothing of it was kept. Pull the model again; if that repeats, ",
         "something between the hub and this machine changes files");
  }
  fd_.reset();
  if (::rename(incomplete_.c_str(), path_.c_str()) != 0) fail_errno(path_);
}

void run_in_threads(std::size_t count, const std::function<void()>& stop,
                    const std::function<void(HttpSession& session, std::size_t number)>& work,
                    Network& network) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run = [&] {
    try {
      HttpSession session(network);
      for (std::size_t number; (number = next++) < count;) work(session, number);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
      stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min(count, kConnections); ++i) {
      threads.push_back(start_thread<std::jthread>("of a download", run));
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

void download(HubClient& client, Network& network,
              const std::vector<std::unique_ptr<BlobWriter>>& blobs,
              const std::function<void()>& stop,
              const std::function<void(std::uint64_t bytes)>& on_bytes) {
  std::vector<ByteRange> ranges;
  std::vector<std::atomic<std::size_t>> left(blobs.size());
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    const std::uint64_t size = blobs[i]->file().size;
    for (std::uint64_t begin = blobs[i]->size_at_start(); begin < size; begin += kRangeBytes) {
      ranges.push_back({blobs[i].get(), begin, std::min(size, begin + kRangeBytes), &left[i]});
      ++left[i];
    }
    if (left[i] == 0) blobs[i]->finish();
  }
  Window window(ranges.size());
  const auto stop_all = [&] {
    window.end();
    stop();
  };
  const auto fetch_one = [&](HttpSession& session, std::size_t number) {
    window.wait_for(number);
    fetch_range(client, session, ranges[number], on_bytes);
    window.complete(number);
  };
  run_in_threads(ranges.size(), stop_all, fetch_one, network);
}

std::string download_line(const std::string& name, std::uint64_t at_start, std::uint64_t done,
                          std::uint64_t total, double seconds) {
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  const double rate = seconds > 0 ? static_cast<double>(done - at_start) / seconds : 0;
  std::string line = str(name, ": ", progress_bar(std::min(1.0, share)), format_bytes(done), " of ",
                         format_bytes(total), ", ", three_digits(rate * 1e-6), " MB/s");
  if (rate > 0 && done < total) {
    line += ", " + rest_of_time(static_cast<double>(total - done) / rate) + " left";
  }
  return line;
}

DownloadDisplay::DownloadDisplay(std::string name, std::uint64_t done, std::uint64_t total)
    : name_(std::move(name)),
      at_start_(done),
      total_(total),
      started_ns_(now_ns()),
      terminal_(::isatty(STDERR_FILENO) == 1),
      done_(done) {
  thread_ = start_thread("of a progress display", [this] { run(); });
}

DownloadDisplay::~DownloadDisplay() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (terminal_) std::fputs(kClearLine, stderr);
}

void DownloadDisplay::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, terminal_ ? kTerminalEvery : kLineEvery, [&] { return ended_; })) {
    show();
  }
}

void DownloadDisplay::show() {
  const std::string line =
      download_line(name_, at_start_, done_, total_, seconds_since(started_ns_));
  std::fputs((terminal_ ? kClearLine + line : line + '\n').c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace nvllm::launcher
