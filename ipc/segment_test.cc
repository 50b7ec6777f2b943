#include "ipc/segment.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"
#include "ipc/group.h"
#include "testing/error_of.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::ipc {
namespace {

using testing::error_of;
using testing::has;

std::string path_of(const Segment& segment) {
  return "/dev/shm/" + segment.name();
}

// Overwrites bytes of the segment's file.
template <typename T>
void write_at(const Segment& segment, std::size_t offset, const T& value) {
  const UniqueFd file(open(path_of(segment).c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(pwrite(file.get(), &value, sizeof(value), static_cast<off_t>(offset)) == sizeof(value));
}

// What the function returns, run in a child process.
std::string in_child(const std::function<std::string()>& function) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string text = error_of([&] { fail(function()); });
    _exit(write(writer.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0
                                                                                             : 1);
  }
  writer.reset();
  std::string text;
  std::array<char, 4096> chunk;
  for (ssize_t n; (n = read(reader.get(), chunk.data(), chunk.size())) > 0;) {
    text.append(chunk.data(), static_cast<std::size_t>(n));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status == 0 ? text : str("child ended with status ", status);
}

// Gives the calling process its own /dev/shm. Returns why that is not possible here, or "".
std::string own_dev_shm(const char* options) {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return str("skip: unshare: ", errno_text(errno));
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return str("skip: mount --make-rprivate: ", errno_text(errno));
  }
  if (mount("tmpfs", "/dev/shm", "tmpfs", 0, options) != 0) {
    return str("skip: mount of a tmpfs: ", errno_text(errno));
  }
  return "";
}

// Drops the capability to write despite permissions.
bool drop_capabilities() {
  struct {
    std::uint32_t version = 0x20080522;  // _LINUX_CAPABILITY_VERSION_3
    int pid = 0;
  } header;
  const std::array<std::uint32_t, 6> none{};
  return syscall(SYS_capset, &header, none.data()) == 0;
}

std::string create_group(int size) {
  return error_of([&] { Group::create({.size = size}); });
}

}  // namespace

TEST_CASE("what one mapping of a segment writes, another reads") {
  const Segment mine = Segment::create(10'000, "test");
  const Segment theirs = Segment::open(mine.name(), "test");
  REQUIRE(theirs.payload().size() >= 10'000);
  mine.payload()[9'999] = std::byte{7};
  CHECK(theirs.payload()[9'999] == std::byte{7});
  CHECK(theirs.payload()[0] == std::byte{0});
}

TEST_CASE("only its user may open a segment's file") {
  const Segment segment = Segment::create(100, "test");
  struct stat info {};
  REQUIRE(stat(path_of(segment).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("a segment loses its name with its creator's object, or before") {
  std::string path;
  {
    Segment segment = Segment::create(100, "test");
    path = path_of(segment);
    CHECK(std::filesystem::exists(path));
    segment.unlink();
    CHECK(!std::filesystem::exists(path));
    segment.payload()[0] = std::byte{1};  // the mapping stays
  }
  {
    const Segment segment = Segment::create(100, "test");
    path = path_of(segment);
  }
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("a segment that is for fork() alone has no name") {
  const Segment segment = Segment::create(10'000, "test", Segment::Name::removed);
  CHECK(::access(("/dev/shm/" + segment.name()).c_str(), F_OK) != 0);
  CHECK(segment.payload().size() >= 10'000);
  CHECK(segment.payload().back() == std::byte{0});
}

TEST_CASE("a missing segment is one clear line") {
  CHECK(error_of([] { Segment::open("nvllm-missing", "test"); }) ==
        "shared memory 'nvllm-missing' does not exist; has its launcher ended?");
}

TEST_CASE("a truncated segment is one clear line") {
  const Segment segment = Segment::create(10'000, "test");
  REQUIRE(truncate(path_of(segment).c_str(), 8192) == 0);
  CHECK(has(error_of([&] { Segment::open(segment.name(), "test"); }),
            "is truncated: it should have 14096 bytes and has 8192"));
  REQUIRE(truncate(path_of(segment).c_str(), 100) == 0);
  CHECK(has(error_of([&] { Segment::open(segment.name(), "test"); }),
            "is truncated: it has 100 bytes"));
  REQUIRE(truncate(path_of(segment).c_str(), 0) == 0);
  CHECK(has(error_of([&] { Segment::open(segment.name(), "test"); }), "is truncated"));
}

TEST_CASE("a foreign segment, another version and another kind are one clear line each") {
  const Segment segment = Segment::create(100, "test");
  CHECK(has(error_of([&] { Segment::open(segment.name(), "group"); }),
            "holds a test, a group was expected"));
  write_at(segment, offsetof(SegmentHeader, version), SegmentHeader::kVersion + 1);
  CHECK(has(error_of([&] { Segment::open(segment.name(), "test"); }),
            "has layout version 2, this program speaks version 1"));
  CHECK(has(error_of([&] { segment.check("test"); }), "layout version 2"));
  write_at(segment, offsetof(SegmentHeader, magic), std::uint64_t{0x1234});
  CHECK(has(error_of([&] { Segment::open(segment.name(), "test"); }), "foreign content"));
}

TEST_CASE("another user's segment is refused") {
  if (geteuid() != 0) SKIP_TEST("needs root, to make another user's file");
  const Segment segment = Segment::create(100, "test");
  REQUIRE(chmod(path_of(segment).c_str(), 0666) == 0);
  if (chown(path_of(segment).c_str(), 12345, 12345) != 0) {
    SKIP_TEST(str("chown: ", errno_text(errno)));
  }
  CHECK(has(error_of([&] { Segment::open(segment.name(), "test"); }), "belongs to user 12345"));
}

TEST_CASE("a /dev/shm that is too small is an Error with sizes and fix, not a SIGBUS") {
  const std::string message = in_child([] {
    const std::string problem = own_dev_shm("size=3m");
    return problem.empty() ? create_group(8) : problem;
  });
  if (message.starts_with("skip")) SKIP_TEST(message);
  CHECK(
      has(message,
          "/dev/shm has no room for 17.9 MiB of shared memory; it has 3 MiB, 3 MiB of them free"));
  CHECK(has(message, "mount -o remount,size="));
  CHECK(has(message, "--shm-size="));
}

TEST_CASE("a /dev/shm that takes the segment but not its semaphores is an Error too") {
  const std::string message = in_child([] {
    const std::string problem = own_dev_shm("size=100m,nr_inodes=4");
    return problem.empty() ? create_group(8) : problem;
  });
  if (message.starts_with("skip")) SKIP_TEST(message);
  CHECK(has(message, "a semaphore cannot be made in /dev/shm: No space left on device"));
}

TEST_CASE("eight ranks fit into a 64 MiB /dev/shm, twice") {
  CHECK(Group::bytes_needed({.size = kMaxRanks}) <= std::size_t{28} << 20);
  const std::string message = in_child([] {
    const std::string problem = own_dev_shm("size=64m");
    if (!problem.empty()) return problem;
    return error_of([] {
      const Group one = Group::create({.size = 8});
      const Group two = Group::create({.size = 8});
    });
  });
  if (message.starts_with("skip")) SKIP_TEST(message);
  CHECK(message == "");
}

TEST_CASE("a /dev/shm without write permission is one clear line") {
  const std::string message = in_child([]() -> std::string {
    const std::string problem = own_dev_shm("size=64m,mode=0555");
    if (!problem.empty()) return problem;
    if (!drop_capabilities()) return str("skip: capset: ", errno_text(errno));
    return create_group(2);
  });
  if (message.starts_with("skip")) SKIP_TEST(message);
  CHECK(has(message, "Permission denied (EACCES)"));
  CHECK(has(message, "chmod 1777 /dev/shm"));
}

TEST_CASE("a read-only /dev/shm is one clear line") {
  const std::string message = in_child([]() -> std::string {
    const std::string problem = own_dev_shm("size=64m");
    if (!problem.empty()) return problem;
    if (mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT | MS_RDONLY, "size=64m") != 0) {
      return str("skip: remount: ", errno_text(errno));
    }
    return create_group(2);
  });
  if (message.starts_with("skip")) SKIP_TEST(message);
  CHECK(has(message, "Read-only file system (EROFS)"));
  CHECK(has(message, "remount,rw"));
}

// A folder instead of /dev/shm, with files of given ages and modes.
class Names {
 public:
  Names() {
    std::string folder = "/dev/shm/names-XXXXXX";  // of the same kind of file system
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
  }
  ~Names() { std::filesystem::remove_all(folder_); }

  // Creates the file and returns it open.
  UniqueFd make(const std::string& name, double age = 0, unsigned mode = 0600) const {
    UniqueFd file(open(path(name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, mode));
    timespec then{};
    clock_gettime(CLOCK_REALTIME, &then);
    then.tv_sec -= static_cast<std::time_t>(age);
    const std::array<timespec, 2> times = {then, then};
    REQUIRE(futimens(file.get(), times.data()) == 0);
    return file;
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }

 private:
  std::string folder_;
};

TEST_CASE("a name whose owner was killed is swept at once, a living owner's never") {
  const Names names;
  const std::string gone = in_child([] { return new_name(); });
  const std::string mine = new_name();
  for (const std::string& name : {gone, "sem." + gone, mine, "sem." + mine}) names.make(name, 100);
  CHECK(sweep_stale_names(names.folder()) == 2);
  CHECK_FALSE(names.has(gone));
  CHECK_FALSE(names.has("sem." + gone));
  CHECK(names.has(mine));
  CHECK(names.has("sem." + mine));
}

TEST_CASE("a pid that another process has by now does not keep a name") {
  const Names names;
  // "nvllm-NAMESPACE-PID-START-RANDOM": this process, but started earlier.
  std::string name = new_name();
  const std::size_t random = name.rfind('-'), start = name.rfind('-', random - 1);
  name.replace(start + 1, random - start - 1, "1");
  names.make(name);
  CHECK(sweep_stale_names(names.folder()) == 1);
}

TEST_CASE("names of other pid namespaces, and of none, are swept if nobody has them open") {
  const Names names;
  const std::string other = "nvllm-1-2-3-0123456789abcdef", old = "nvllm-0123456789abcdef01234567";
  {
    const UniqueFd files[] = {names.make(other, 100), names.make("sem." + other, 100),
                              names.make(old, 100)};
    CHECK(sweep_stale_names(names.folder()) == 0);
  }
  CHECK(sweep_stale_names(names.folder()) == 3);
  names.make(other);  // it may be opened at any moment
  CHECK(sweep_stale_names(names.folder()) == 0);
}

TEST_CASE("what sem_open() has started for us is swept, what looks alike is not") {
  const Names names;
  constexpr const char* kUnnamed = "sem.AbC123";
  {
    const UniqueFd held = names.make(kUnnamed, 100, kSemaphoreMode);
    CHECK(sweep_stale_names(names.folder()) == 0);
  }
  CHECK(sweep_stale_names(names.folder()) == 1);
  names.make(kUnnamed, 100);  // of another program
  names.make("sem.other-program", 100, kSemaphoreMode);
  names.make("other-" + new_name(), 100);
  CHECK(sweep_stale_names(names.folder()) == 0);
}

TEST_CASE("semaphores have the mode by which they are known") {
  const std::string made = in_child([]() -> std::string {
    const std::string problem = own_dev_shm("size=64m");
    if (!problem.empty()) return problem;
    umask(0077);
    if (sem_open("/test", O_CREAT, kSemaphoreMode, 0) == SEM_FAILED) return "none";
    struct stat about {};
    if (stat("/dev/shm/sem.test", &about) != 0) return "no file";
    return str(about.st_mode & ALLPERMS, " ", about.st_size);
  });
  if (made.starts_with("skip")) SKIP_TEST(made);
  CHECK(made == str(kSemaphoreMode, " ", sizeof(sem_t)));
}

}  // namespace nvllm::ipc
