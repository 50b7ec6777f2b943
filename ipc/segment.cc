#include "ipc/segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::ipc {
namespace bip = boost::interprocess;
namespace {

constexpr const char* kShmFolder = "/dev/shm";

// The fix for an error of shm_open.
std::string explain(int error) {
  switch (error) {
    case EACCES:
    case EPERM: return "; this user may not write to /dev/shm: chmod 1777 /dev/shm";
    case EROFS: return "; /dev/shm is mounted read-only: mount -o remount,rw /dev/shm";
    case ENOENT:
    case ENOSYS: return "; there is no /dev/shm: mount -t tmpfs tmpfs /dev/shm";
    case ENOMEM: return "; allow more memory to be mapped: ulimit -v unlimited";
    default: return "";
  }
}

[[noreturn]] void fail_without_room(std::size_t bytes) {
  struct statvfs fs {};
  std::string room;
  if (statvfs(kShmFolder, &fs) == 0) {
    room = str("; it has ", format_bytes(fs.f_blocks * fs.f_frsize), ", ",
               format_bytes(fs.f_bavail * fs.f_frsize), " of them free");
  }
  const std::size_t mebibytes = (bytes >> 20) + 1;
  fail("/dev/shm has no room for ", format_bytes(bytes), " of shared memory", room,
       ". Make it larger: mount -o remount,size=", mebibytes + 64,
       "M /dev/shm, or docker run --shm-size=", mebibytes + 64, "m");
}

// ftruncate() alone would succeed on a full tmpfs and the first store would raise SIGBUS.
void reserve(int fd, std::size_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error == ENOSPC || error == ENOMEM) fail_without_room(bytes);
  if (error != 0) fail("reserving ", format_bytes(bytes), " in /dev/shm: ", errno_text(error));
}

void check_header(const SegmentHeader& header, std::size_t bytes, const std::string& name,
                  std::string_view kind) {
  if (header.magic != SegmentHeader::kMagic) {
    fail("shared memory '", name, "' is not a segment of nvllm (foreign content)");
  }
  if (header.version != SegmentHeader::kVersion) {
    fail("shared memory '", name, "' has layout version ", header.version,
         ", this program speaks version ", SegmentHeader::kVersion,
         "; run the same build in all processes");
  }
  if (header.header_bytes != Segment::kHeaderBytes || header.total_bytes != bytes) {
    fail("shared memory '", name, "' is truncated: it should have ", header.total_bytes,
         " bytes and has ", bytes);
  }
  const std::string_view found(header.kind, strnlen(header.kind, SegmentHeader::kKindBytes));
  if (found != kind) {
    fail("shared memory '", name, "' holds a ", found, ", a ", kind, " was expected");
  }
}

}  // namespace

struct Segment::Mapping {
  std::string name;
  bip::mapped_region region;
  pid_t owner = 0;  // the process that removes the name; 0: the name is removed already, or another
                    // process does it

  const SegmentHeader& header() const {
    return *static_cast<const SegmentHeader*>(region.get_address());
  }
};

Segment::Segment(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
Segment::Segment(Segment&&) noexcept = default;

Segment& Segment::operator=(Segment&& other) noexcept {
  Segment(std::move(other)).mapping_.swap(mapping_);
  return *this;
}

Segment::~Segment() {
  if (mapping_ && mapping_->owner == getpid()) unlink();
}

Segment Segment::create(std::size_t payload_bytes, std::string_view kind, Name after) {
  NVLLM_CHECK_LT(kind.size(), SegmentHeader::kKindBytes);
  const std::size_t bytes = kHeaderBytes + payload_bytes;
  const std::string name = new_name();
  try {
    bip::shared_memory_object object(bip::create_only, name.c_str(), bip::read_write,
                                     bip::permissions(0600));
    auto mapping = std::make_unique<Mapping>();
    mapping->name = name;
    mapping->owner = getpid();
    Segment segment(std::move(mapping));  // from here on the name is removed in any case
    if (after == Name::removed) segment.unlink();
    reserve(object.get_mapping_handle().handle, bytes);
    bip::mapped_region(object, bip::read_write, 0, bytes).swap(segment.mapping_->region);
    auto* header = new (segment.mapping_->region.get_address()) SegmentHeader{};
    header->magic = SegmentHeader::kMagic;
    header->version = SegmentHeader::kVersion;
    header->header_bytes = kHeaderBytes;
    header->total_bytes = bytes;
    kind.copy(header->kind, kind.size());
    return segment;
  } catch (const bip::interprocess_exception& error) {
    const int code = error.get_native_error();
    if (code == ENOSPC) fail_without_room(bytes);
    fail("shared memory of ", format_bytes(bytes), " cannot be made: ", errno_text(code),
         explain(code));
  }
}

Segment Segment::open(const std::string& name, std::string_view kind) {
  try {
    bip::shared_memory_object object(bip::open_only, name.c_str(), bip::read_write);
    struct stat info {};
    if (fstat(object.get_mapping_handle().handle, &info) != 0) {
      fail_errno("shared memory '", name, "'");
    }
    if (info.st_uid != geteuid()) {
      fail("shared memory '", name, "' belongs to user ", info.st_uid, ", not to this user (",
           geteuid(), ")");
    }
    const auto bytes = static_cast<std::size_t>(info.st_size);
    if (bytes < kHeaderBytes) {
      fail("shared memory '", name, "' is truncated: it has ", bytes,
           " bytes, its header alone needs ", kHeaderBytes);
    }
    auto mapping = std::make_unique<Mapping>();
    mapping->name = name;
    bip::mapped_region(object, bip::read_write, 0, bytes).swap(mapping->region);
    check_header(mapping->header(), bytes, name, kind);
    return Segment(std::move(mapping));
  } catch (const bip::interprocess_exception& error) {
    const int code = error.get_native_error();
    if (code == ENOENT) {
      fail("shared memory '", name, "' does not exist; has its launcher ended?");
    }
    fail("shared memory '", name, "' cannot be opened: ", errno_text(code));
  }
}

const std::string& Segment::name() const {
  return mapping_->name;
}

std::span<std::byte> Segment::payload() const {
  auto* start = static_cast<std::byte*>(mapping_->region.get_address());
  return {start + kHeaderBytes, mapping_->region.get_size() - kHeaderBytes};
}

void Segment::check(std::string_view kind) const {
  check_header(mapping_->header(), mapping_->region.get_size(), mapping_->name, kind);
}

void Segment::unlink() {
  mapping_->owner = 0;
  bip::shared_memory_object::remove(mapping_->name.c_str());
}

}  // namespace nvllm::ipc
