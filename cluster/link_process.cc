#include "cluster/link_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system_files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "cluster/box_link.h"
#include "ipc/archive.h"
#include "ipc/mirror.h"

namespace nvllm::cluster {
namespace {

using ipc::Group;
using ipc::Phase;

// The first message of a box.
struct Hello {
  std::string host;
  std::vector<Fact> facts;
  std::vector<std::string> gpus;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(host, facts, gpus);
  }
};

// Describes the first difference, as part of a sentence; empty: none.
std::string difference(const std::vector<Fact>& own, const std::vector<Fact>& others) {
  for (std::size_t i = 0; i < std::max(own.size(), others.size()); ++i) {
    if (i >= own.size() || i >= others.size() || own[i].name != others[i].name) {
      return "another version of nvllm";
    }
    if (own[i].value == others[i].value) continue;
    return str("another ", own[i].name, ", '", others[i].value, "' instead of '", own[i].value,
               '\'');
  }
  return "";
}

// A descriptor that becomes readable when the process ends.
UniqueFd open_process(std::uint64_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

void await_end(int process, int limit_ms) {
  pollfd ended{process, POLLIN, 0};
  while (::poll(&ended, 1, limit_ms) < 0 && errno == EINTR) continue;
}

// Open MPI leaves its files in /dev/shm if mpirun is killed, or a link ends without its cleanup. In
// its session folder, which is watched, they are removed, too. Tasks on one machine have such
// files: "sm" of 5.0, "vader" of 4.1.
void keep_shared_memory_in(const std::string& folder) {
  for (const char* component : {"sm", "vader"}) {
    const std::string name = str("OMPI_MCA_btl_", component, "_backing_directory");
    ::setenv(name.c_str(), folder.c_str(), 0);
  }
}

// The starter of the launcher removes these folders, unless it is killed, and sometimes too late if
// a task is killed. So a separate process waits until both have ended, and removes what is left.
void watch(const SessionFolders& folders) {
  constexpr int kLauncher = 3, kStarter = 4, kStarterLimitMs = 15'000;
  const auto starter_pid = number_after(str("/proc/", ::getppid(), "/status"), "PPid:");
  if (!starter_pid) return;
  const UniqueFd launcher = open_process(static_cast<std::uint64_t>(::getppid()));
  const UniqueFd starter = open_process(*starter_pid);
  if (!launcher || !starter || ::fork() != 0) return;
  ::setsid();  // signals to the launcher's process group do not end this process
  const UniqueFd launcher_copy(::fcntl(launcher.get(), F_DUPFD, kStarter + 1));
  const UniqueFd starter_copy(::fcntl(starter.get(), F_DUPFD, kStarter + 1));
  ::dup2(launcher_copy.get(), kLauncher);
  ::dup2(starter_copy.get(), kStarter);
  ::closefrom(kStarter + 1);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  await_end(kLauncher, -1);
  await_end(kStarter, kStarterLimitMs);
  ::execl("/bin/sh", "sh", "-c", "rm -rf \"$0\"; test -z \"$1\" || rmdir \"$1\"",
          folders.own.c_str(), folders.shared.c_str(), nullptr);
  ::_exit(1);
}

bool cores_to_spare(int ranks) {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) > ranks + 1;
}

// How long another box's link outlives its last message after an abort.
constexpr Nanoseconds kLinger = std::chrono::milliseconds(300);

class Link {
 public:
  // Maximum number of messages in flight.
  static constexpr std::size_t kMaxSending = 8;

  Link(ipc::Member& me, const LinkOptions& options)
      : me_(me),
        group_(me.group()),
        link_(Mpi::load(), options.task.box, options.task.boxes),
        mirror_(me, options.stages),
        silence_(
            std::clamp<Nanoseconds>(group_.step_timeout() * 3 / 4, kMinBoxSilence, kMaxBoxSilence)),
        beat_(ipc::Heartbeat::interval(std::min(group_.step_timeout(), silence_))),
        spare_(cores_to_spare(group_.ranks_of(group_.box()))),
        greeted_(static_cast<std::size_t>(group_.boxes())),
        heard_ns_(static_cast<std::size_t>(group_.boxes()), now_ns()) {}

  void greet(const LinkOptions& options);
  // Copies until the boxes disconnect.
  void carry();

 private:
  bool is_other(int box) const { return box != group_.box(); }
  template <typename Condition>
  bool all_others(Condition condition) const {
    for (int box = 0; box < group_.boxes(); ++box) {
      if (is_other(box) && !condition(static_cast<std::size_t>(box))) return false;
    }
    return true;
  }
  bool work();
  bool receive();
  void take_hello(int from, BoxLink::Bytes message);
  void check_gpus(int from, const std::vector<std::string>& gpus) const;
  void send(ipc::GroupMirror::Outboxes& out);
  void look_at_clock();
  bool ranks_ended() const;
  void say_end();
  bool others_ended() const {
    return all_others([this](std::size_t box) { return mirror_.ended(static_cast<int>(box)); });
  }
  bool may_leave();
  void pause();

  ipc::Member& me_;
  const Group& group_;
  BoxLink link_;
  ipc::GroupMirror mirror_;
  const Nanoseconds silence_, beat_;
  const bool spare_;
  std::vector<Fact> facts_;
  std::vector<std::string> gpus_;
  std::vector<bool> greeted_;           // by box
  std::vector<std::int64_t> heard_ns_;  // by box: when something last arrived
  std::int64_t now_ = now_ns();
  std::int64_t busy_ns_ = now_;  // when there was last something to do
  std::int64_t last_beat_ns_ = 0;
  std::int64_t aborted_ns_ = 0;
  bool end_said_ = false;
};

void Link::greet(const LinkOptions& options) {
  facts_ = options.facts;
  gpus_ = options.gpus;
  ipc::ArchiveWriter archive;
  archive(Hello{host_name(), facts_, gpus_});
  for (int box = 0; box < group_.boxes(); ++box) {
    if (is_other(box)) link_.send(box, {archive.bytes().begin(), archive.bytes().end()});
  }
  while (!all_others([this](std::size_t box) { return greeted_[box]; })) {
    now_ = now_ns();
    if (group_.aborted()) return;
    me_.beat();
    if (receive()) {
      busy_ns_ = now_;
    } else {
      pause();
    }
  }
}

void Link::take_hello(int from, BoxLink::Bytes message) {
  ipc::ArchiveReader reader(message);
  const Hello hello = with_context(group_.box_text(from), [&] {
    auto read = reader.get<Hello>();
    reader.finish();
    return read;
  });
  group_.set_box_name(from, hello.host);
  greeted_[static_cast<std::size_t>(from)] = true;
  // Box 0 compares all others with itself.
  if (group_.box() == 0) {
    const std::string differs = difference(facts_, hello.facts);
    if (differs.empty()) return check_gpus(from, hello.gpus);
    fail(group_.box_text(from), " was started with ", differs,
         "; start all boxes with the same command, program and model");
  }
  if (from > group_.box()) check_gpus(from, hello.gpus);
}

void Link::check_gpus(int from, const std::vector<std::string>& gpus) const {
  for (const std::string& gpu : gpus) {
    if (std::ranges::find(gpus_, gpu) == gpus_.end()) continue;
    fail(group_.box_text(group_.box()), " and ", group_.box_text(from), " would both use ", gpu,
         "; give each task GPUs of its own with CUDA_VISIBLE_DEVICES, or start one task on each "
         "machine");
  }
}

bool Link::receive() {
  bool work = false;
  link_.receive([&](int from, BoxLink::Bytes message) {
    const auto box = static_cast<std::size_t>(from);
    heard_ns_[box] = now_;
    if (greeted_[box]) {
      work = mirror_.apply(from, message);
    } else {
      take_hello(from, message);
      work = true;
    }
  });
  return work;
}

void Link::send(ipc::GroupMirror::Outboxes& out) {
  for (int box = 0; box < group_.boxes(); ++box) {
    auto& message = out[static_cast<std::size_t>(box)];
    if (!message.empty()) link_.send(box, std::exchange(message, {}));
  }
}

// One round. False: there was nothing to do.
bool Link::work() {
  bool worked = receive();
  worked |= mirror_.deliver();
  if (link_.sending() < kMaxSending && mirror_.has_output()) {
    ipc::GroupMirror::Outboxes out(static_cast<std::size_t>(group_.boxes()));
    mirror_.collect(out);
    send(out);
    worked = true;
  }
  return worked;
}

// Updates this box's heartbeat, and checks those of the others.
void Link::look_at_clock() {
  if (now_ - last_beat_ns_ < beat_.count()) return;
  // Time during which this process itself was suspended does not count.
  const bool was_stopped =
      last_beat_ns_ != 0 &&
      now_ - last_beat_ns_ > 2 * beat_.count() + ipc::WaitClock::kStopped.count();
  last_beat_ns_ = now_;
  me_.beat();
  ipc::GroupMirror::Outboxes out(static_cast<std::size_t>(group_.boxes()));
  if (link_.sending() < kMaxSending) {
    mirror_.collect_records(out);
    send(out);
  }
  for (int box = 0; box < group_.boxes(); ++box) {
    const auto index = static_cast<std::size_t>(box);
    if (was_stopped) heard_ns_[index] = now_;
    if (!is_other(box) || mirror_.ended(box) || group_.aborted()) continue;
    if (now_ - heard_ns_[index] <= silence_.count()) continue;
    fail("nothing has come from ", group_.box_text(box), " for ",
         format_duration(static_cast<double>(now_ - heard_ns_[index]) * 1e-9),
         ": it has failed, or the network to it");
  }
}

bool Link::ranks_ended() const {
  const int first = group_.first_rank(group_.box());
  for (int rank = first; rank < first + group_.ranks_of(group_.box()); ++rank) {
    if (group_.snapshot(rank).phase != Phase::ended) return false;
  }
  return true;
}

void Link::say_end() {
  if (std::exchange(end_said_, true)) return;
  ipc::GroupMirror::Outboxes out(static_cast<std::size_t>(group_.boxes()));
  mirror_.collect_records(out);
  mirror_.collect_end(out);
  send(out);
}

// After an abort the first box leaves when its launcher has reported what happened, and the others
// after it: the starter of the tasks ends all as soon as one of them fails.
bool Link::may_leave() {
  if (group_.aborted()) {
    if (aborted_ns_ == 0) aborted_ns_ = now_;
    if (now_ - aborted_ns_ > kPartingLimit.count()) return true;
    if (group_.box() == 0 ? !group_.told() : !mirror_.ended(0)) return false;
    say_end();
    // The first box waits for the others' last messages: closing a connection with unread data
    // discards data in flight to the other side.
    return link_.sending() == 0 && (group_.box() != 0 || others_ended());
  }
  if (!end_said_ && (mirror_.has_output() || !ranks_ended())) return false;
  say_end();
  return link_.sending() == 0 && others_ended();
}

void Link::carry() {
  while (true) {
    now_ = now_ns();
    look_at_clock();
    if (work()) {
      busy_ns_ = now_;
      continue;
    }
    if (may_leave()) break;
    pause();
  }
  // After an abort the others may be gone, and are not waited for.
  if (!group_.aborted()) return link_.leave();
  // But Open MPI 5.0 ends the run, with an exit code of its own, when a link that still calls MPI
  // hears that another process has ended: the first box's goes before.
  if (group_.box() != 0) std::this_thread::sleep_for(kLinger);
}

void Link::pause() {
  const Nanoseconds pause = link_pause(Nanoseconds(now_ - busy_ns_), spare_);
  if (pause.count() == 0) {
    ::sched_yield();
    return;
  }
  ipc::Doorbell::Sleeper sleeper(me_.main_bell(ipc::kLink));
  if (!mirror_.has_output()) sleeper.sleep(pause);
}

}  // namespace

SessionFolders session_folders(const std::string& server_files) {
  const std::filesystem::path own(server_files);
  const auto is_named = [](const std::filesystem::path& path,
                           std::initializer_list<std::string_view> beginnings) {
    const std::string name = path.filename().string();
    return std::ranges::any_of(
        beginnings, [&](std::string_view beginning) { return name.starts_with(beginning); });
  };
  const std::filesystem::path above = own.parent_path();
  if (is_named(above, {"ompi.", "prte."})) return {.own = server_files, .shared = above.string()};
  if (is_named(own, {"ompi.", "prte.", "prted.", "prterun."})) {
    return {.own = server_files, .shared = ""};
  }
  return {};
}

Nanoseconds link_pause(Nanoseconds idle, bool cores_to_spare) {
  constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
  constexpr Nanoseconds kLongSpin = std::chrono::milliseconds(2);
  if (idle < (cores_to_spare ? kLongSpin : kSpin)) return Nanoseconds(0);
  return std::clamp<Nanoseconds>(idle / 16, std::chrono::microseconds(5),
                                 std::chrono::milliseconds(8));
}

int run_link(const Group& group, const LinkOptions& options) {
  configure_logging({.level = options.log_level, .who = "link"});
  const char* const files = ::getenv("PMIX_SERVER_TMPDIR");
  const SessionFolders folders = session_folders(files == nullptr ? "" : files);
  if (!folders.own.empty()) {
    keep_shared_memory_in(folders.own);
    watch(folders);
  }
  ::prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: short sleeps are short
  ipc::Member me = group.join(ipc::kLink);
  group.set_box_name(group.box(), host_name());
  try {
    Link link(me, options);
    link.greet(options);
    me.set_phase(Phase::ready);
    link.carry();
    return 0;
  } catch (const std::exception& error) {
    me.set_error_text(error.what());
    group.abort(error.what());
    me.set_phase(Phase::ended);
    std::fflush(nullptr);
    // MPI may be in any state, so skip its cleanup.
    ::_exit(1);
  }
}

}  // namespace nvllm::cluster
