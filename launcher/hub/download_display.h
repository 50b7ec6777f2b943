// DownloadDisplay: shows the progress of a download on standard error: on a terminal as one line
// that is updated, otherwise as a line at intervals.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace nvllm::launcher {

class DownloadDisplay {
 public:
  // done: bytes that exist already. Starts a thread, which ends with this object.
  DownloadDisplay(std::string name, std::uint64_t done, std::uint64_t total);
  DownloadDisplay(const DownloadDisplay&) = delete;
  DownloadDisplay& operator=(const DownloadDisplay&) = delete;
  ~DownloadDisplay();

  // Thread-safe.
  void add(std::uint64_t bytes) { done_ += bytes; }
  std::uint64_t done() const { return done_; }

 private:
  void run();
  void show();

  const std::string name_;
  const std::uint64_t at_start_, total_;
  const std::int64_t started_ns_;
  const bool terminal_;
  std::atomic<std::uint64_t> done_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

// "Qwen/Qwen3-0.6B: [###...] 50%, 0.7 of 1.4 GiB, 112 MB/s, 6 s left". seconds: since the start,
// when there were at_start bytes.
std::string download_line(const std::string& name, std::uint64_t at_start, std::uint64_t done,
                          std::uint64_t total, double seconds);

}  // namespace nvllm::launcher
