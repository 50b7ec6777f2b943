// Segment: a piece of shared memory with a name of its own, mode 0600 and a header that tells what
// it is. Its pages are reserved when it is made, so that a /dev/shm that is too small is an Error
// then and there, and never a SIGBUS later.
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

// A name that nobody else has. It says who owns it, this process: its pid namespace, its pid, when
// it was started, and 64 random bits: "nvllm-4026531836-4711-123456-0123456789abcdef".
std::string new_name();

// The mode of our semaphores: this user's. The C library makes a semaphore under a name of its own
// first; the sticky bit, which means nothing for files, tells that it is one of ours.
inline constexpr unsigned kSemaphoreMode = 01600;

// Removes what runs of this user that were killed have left in /dev/shm: names of ours whose owner
// has ended, and what the C library was making a semaphore of. Returns how many files it removed.
//
// An owner of this pid namespace has ended if no process has its pid and start time. Otherwise
// (another container's, or no /proc) the kernel says whether any process has the file open or
// mapped, as every living owner does from the moment in which the name appears.
int sweep_stale_names(const std::string& folder = "/dev/shm");

}  // namespace nvllm::ipc
