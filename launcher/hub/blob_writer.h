// BlobWriter: one file as it arrives, in pieces and in any order. The file on disk,
// PATH.incomplete, always holds its first bytes and no gap, so that whatever ends the program,
// another run (or huggingface_hub) goes on where it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "base/unique_fd.h"
#include "launcher/hub/hub_client.h"
#include "launcher/hub/sha256.h"

namespace nvllm::launcher {

// Thread-safe.
class BlobWriter {
 public:
  // path: of the blob. A file is resumed if its hash is known; otherwise it begins anew. keep_going
  // is called every now and then while what is there is hashed.
  BlobWriter(HubFile file, std::string path, const std::function<void()>& keep_going);

  const HubFile& file() const { return file_; }
  std::uint64_t size_at_start() const { return size_at_start_; }

  // Takes bytes that belong at the offset. Those that follow on what the file holds are written;
  // others wait in memory. Throws an Error that names the file.
  void put(std::uint64_t offset, std::string bytes);
  // After all bytes: checks the hash and gives the file its name. Throws an Error, and keeps
  // nothing, if the hash is another.
  void finish();

 private:
  void append(std::string_view bytes);

  const HubFile file_;
  const std::string path_, incomplete_;
  std::uint64_t size_at_start_ = 0;

  std::mutex mutex_;  // guards the rest
  UniqueFd fd_;
  std::uint64_t written_ = 0;
  Sha256 hash_;                                 // of written_ bytes
  std::map<std::uint64_t, std::string> ahead_;  // by offset, above written_
};

}  // namespace nvllm::launcher
