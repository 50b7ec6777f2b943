// BlobWriter: writes one file whose pieces arrive in any order. The file on disk, PATH.incomplete,
// always contains a prefix without gaps, so that after any abort another run (or huggingface_hub)
// can continue from its end.
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

}  // namespace nvllm::launcher
