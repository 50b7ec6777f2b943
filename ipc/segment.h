// Segment: a piece of shared memory with a name of its own, mode 0600 and a header that identifies
// its content. Its pages are reserved when it is created, so that a /dev/shm which is too small
// causes an Error then, and never a SIGBUS later.
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
  // Increment whenever the layout of anything in a segment changes.
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kKindBytes = 16;

  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t total_bytes;  // including the header
  char kind[kKindBytes];      // "group", padded with zeros
};

// Not thread-safe; the thread-safety of the memory depends on its content.
class Segment {
 public:
  enum class Name { kept, removed };
  // Creates a segment with payload_bytes of zeroed memory. kind: at most 15 characters. With
  // Name::removed it can only be shared through fork(): the name is removed before pages are
  // reserved, because that takes milliseconds in which a SIGKILL would leave the segment behind.
  static Segment create(std::size_t payload_bytes, std::string_view kind, Name name = Name::kept);
  // Maps a segment by its name. An Error with the reason if it does not exist, belongs to another
  // user, is shorter than its header says, or is of another program, version or kind.
  static Segment open(const std::string& name, std::string_view kind);

  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  // Unmaps the memory; the process that created the segment also removes its name, if it still has
  // one.
  ~Segment();

  const std::string& name() const;
  std::span<std::byte> payload() const;  // starts at a page
  // Throws an Error if the header no longer matches this program, version and kind.
  void check(std::string_view kind) const;
  // Removes the name. Mappings stay valid, and are inherited by fork().
  void unlink();

  static constexpr std::size_t kHeaderBytes = 4096;

 private:
  struct Mapping;
  explicit Segment(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

// A unique name. It identifies its owner, this process: its pid namespace, its pid, its start time,
// and 64 random bits: "nvllm-4026531836-4711-123456-0123456789abcdef".
std::string new_name();

// The mode of our semaphores: access by this user only. The C library creates a semaphore under a
// temporary name first; the sticky bit, which has no effect on files, marks it as ours.
inline constexpr unsigned kSemaphoreMode = 01600;

// Removes what killed runs of this user have left in /dev/shm: our names whose owner has ended, and
// unfinished semaphore files of the C library. Returns the number of files removed.
//
// An owner in this pid namespace has ended if no process has its pid and start time. Otherwise
// (another container's, or no /proc) the kernel is asked whether any process has the file open or
// mapped, as every living owner does from the moment in which the name appears.
int sweep_stale_names(const std::string& folder = "/dev/shm");

}  // namespace nvllm::ipc
