// Downloads files over several concurrent connections into blobs of the hub's cache (BlobWriter),
// and shows the progress (DownloadDisplay).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/hub/hub_client.h"
#include "launcher/hub/sha256.h"

namespace nvllm::launcher {

// Writes one file whose parts arrive in any order. The file on disk, PATH.incomplete, always
// contains a prefix without gaps, so that after any abort another run (or huggingface_hub) can
// continue from its end. Thread-safe.
class BlobWriter {
 public:
  // path: of the blob. A file is resumed if its hash is known; otherwise it starts from the
  // beginning. keep_going is called regularly while existing bytes are hashed.
  BlobWriter(HubFile file, std::string path, const std::function<void()>& keep_going);

  const HubFile& file() const { return file_; }
  std::uint64_t size_at_start() const { return size_at_start_; }

  // Stores bytes for the given offset. Bytes that continue the file are written; others wait in
  // memory. Throws an Error that names the file.
  void put(std::uint64_t offset, std::string bytes);
  // Call after all bytes: checks the hash and renames the file. Throws an Error, and deletes the
  // file, if the hash differs.
  void finish();

 private:
  void append(std::string_view bytes);

  const HubFile file_;
  const std::string path_, incomplete_;
  std::uint64_t size_at_start_ = 0;

  std::mutex mutex_;  // guards the members below
  UniqueFd fd_;
  std::uint64_t written_ = 0;
  Sha256 hash_;                                 // of the first written_ bytes
  std::map<std::uint64_t, std::string> ahead_;  // by offset, beyond written_
};

// Calls work(0) to work(count - 1) in several threads, which have all ended when this returns.
// After an error no further call starts; stop() is called to end the running ones, and the first
// error is thrown.
void run_in_threads(std::size_t count, const std::function<void()>& stop,
                    const std::function<void(HttpSession& session, std::size_t number)>& work,
                    Network& network);

// Downloads the missing parts of all files. on_bytes(count) is called by any thread.
void download(HubClient& client, Network& network,
              const std::vector<std::unique_ptr<BlobWriter>>& blobs,
              const std::function<void()>& stop,
              const std::function<void(std::uint64_t bytes)>& on_bytes);

// Shows the progress of a download on standard error: on a terminal as one line that is updated,
// otherwise as a line at intervals.
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
