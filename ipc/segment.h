// Segment: a piece of shared memory with a random name, mode 0600 and a header that tells what it
// is. Its pages are reserved when it is made, so that a /dev/shm that is too small is an Error then
// and there, and never a SIGBUS later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace nvllm::ipc {

// The beginning of every segment. The payload follows at kHeaderBytes.
struct SegmentHeader {
  static constexpr std::uint64_t kMagic = 0x6d6d'6c6c'766e'2e31;
  // Changes whenever anything that lies in a segment changes its layout.
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kKindBytes = 16;

  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t total_bytes;  // of the whole segment, header included
  char kind[kKindBytes];      // "group", padded with zeros
};

// Not thread-safe; the memory is as safe as what lies in it.
class Segment {
 public:
  enum class Name { kept, removed };
  // Makes a segment with payload_bytes of zeroed memory. kind: at most 15 characters. With
  // Name::removed only fork() hands it on: the name is gone before pages are reserved, which takes
  // milliseconds in which a SIGKILL would leave them behind.
  static Segment create(std::size_t payload_bytes, std::string_view kind, Name name = Name::kept);
  // Maps a segment by its name. An Error with the reason if it does not exist, is another user's,
  // is shorter than it says, or is of another program, version or kind.
  static Segment open(const std::string& name, std::string_view kind);

  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  // Unmaps; the process that made the segment also removes the name, if it still has one.
  ~Segment();

  const std::string& name() const;
  std::span<std::byte> payload() const;  // begins on a page
  // Throws an Error if the header is no longer that of a segment of this program, version and kind.
  void check(std::string_view kind) const;
  // Removes the name. Mappings stay, and are inherited by fork().
  void unlink();

  static constexpr std::size_t kHeaderBytes = 4096;

 private:
  struct Mapping;
  explicit Segment(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

// A name nobody else has: "nvllm-" and 96 random bits in hexadecimal.
std::string random_name();

// Removes what earlier runs of this user could have left in /dev/shm: files "nvllm-*" and
// "sem.nvllm-*" older than 60 s. A name lives only for the microseconds between its creation and
// its removal by the same function, so an older one is stale by construction: its process was
// killed in between. Returns how many files it removed.
int sweep_stale_names();

}  // namespace nvllm::ipc
