#include "launcher/supervise/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/visible_text.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kQueueLimit = std::size_t{1} << 20;

// A pipe that poll() reports as writable accepts PIPE_BUF bytes, so a write of that size does not
// block.
constexpr std::size_t kWriteAtOnce = PIPE_BUF;
static_assert(LineTagger::kMaxLine + 64 <= kWriteAtOnce, "a line is written in one piece");

// "12:34:56.789 rank 1 ...": a line of the worker's own log.
bool is_log_line(std::string_view line, std::string_view who) {
  constexpr std::string_view kTime = "dd:dd:dd.ddd ";
  if (line.size() < kTime.size() + who.size() + 1) return false;
  for (std::size_t i = 0; i < kTime.size(); ++i) {
    const bool digit = line[i] >= '0' && line[i] <= '9';
    if (kTime[i] == 'd' ? !digit : line[i] != kTime[i]) return false;
  }
  line.remove_prefix(kTime.size());
  return line.starts_with(who) && line[who.size()] == ' ';
}

}  // namespace

void LineTagger::emit(std::string_view line, std::string& out) const {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!is_log_line(line, who_)) out.append(who_).append(": ");
  out.append(line).append("\n");
}

void LineTagger::feed(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const std::size_t space = kMaxLine - partial_.size();
    const std::size_t newline = bytes.substr(0, space).find('\n');
    const std::size_t taken =
        newline != std::string_view::npos ? newline : std::min(space, bytes.size());
    partial_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (newline != std::string_view::npos) bytes.remove_prefix(1);
    if (newline != std::string_view::npos || partial_.size() == kMaxLine) {
      emit(partial_, out);
      partial_.clear();
    }
  }
}

void LineTagger::finish(std::string& out) {
  if (!partial_.empty()) emit(partial_, out);
  partial_.clear();
}

struct Console::State {
  struct Source {
    UniqueFd pipe;
    LineTagger tagger;
    bool open = true;
  };

  int out;
  UniqueFd wake;  // an eventfd: the queue or `finishing` has changed

  std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::vector<Source> sources;
  std::string queue;
  std::size_t dropped = 0;  // workers' lines dropped since the queue was last below its limit
  bool writing = false;     // the relay has a piece that is neither queued nor written
  bool out_gone = false;    // the output is closed or stuck
  bool stuck = false;       // a flush timed out
  bool finishing = false;
  bool finished = false;  // the relay has ended

  bool all_written() const { return queue.empty() && !writing; }
  void wake_relay() const;
  void read_all();
  void read_from(Source& source);
  void add_workers_lines(const std::string& lines);
  std::string next_piece();
};

void Console::State::wake_relay() const {
  // The counter cannot overflow, and if it is already set the relay wakes as well.
  [[maybe_unused]] const int result = eventfd_write(wake.get(), 1);
}

void Console::State::add_workers_lines(const std::string& lines) {
  if (lines.empty() || out_gone) return;
  if (queue.size() + lines.size() > kQueueLimit) {
    dropped += static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
    return;
  }
  if (dropped > 0) {
    queue += str("launcher: ", dropped,
                 " lines of workers were dropped, since nobody read standard error\n");
    dropped = 0;
  }
  queue += lines;
}

// Called with the mutex held. Reads do not block.
void Console::State::read_from(Source& source) {
  std::array<char, 16384> chunk;
  std::string lines;
  // Bounded, so that a worker that writes without end does not keep the mutex locked.
  for (int round = 0; round < 16; ++round) {
    const ssize_t n = ::read(source.pipe.get(), chunk.data(), chunk.size());
    if (n > 0) {
      source.tagger.feed({chunk.data(), static_cast<std::size_t>(n)}, lines);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      source.tagger.finish(lines);
      source.open = false;
      break;
    } else {
      break;
    }
  }
  add_workers_lines(visible_on(out, lines));
}

void Console::State::read_all() {
  for (Source& source : sources) {
    if (source.open) read_from(source);
  }
}

// The complete lines at the front of the queue that can be written at once.
std::string Console::State::next_piece() {
  if (queue.size() <= kWriteAtOnce) return std::exchange(queue, {});
  const std::size_t newline = queue.rfind('\n', kWriteAtOnce - 1);
  const std::size_t size = newline == std::string::npos ? kWriteAtOnce : newline + 1;
  std::string piece = queue.substr(0, size);
  queue.erase(0, size);
  return piece;
}

void Console::relay(State& state) {
  std::vector<pollfd> polled;
  std::string piece;  // being written
  while (true) {
    {
      std::lock_guard lock(state.mutex);
      if (state.out_gone) {
        state.queue.clear();
        piece.clear();
      }
      if (piece.empty()) {
        piece = state.next_piece();
        state.writing = !piece.empty();
        if (state.all_written()) {
          state.changed.notify_all();
          if (state.finishing) break;
        }
      }
      polled.assign({{state.wake.get(), POLLIN, 0}, {piece.empty() ? -1 : state.out, POLLOUT, 0}});
      for (const State::Source& source : state.sources) {
        if (source.open) polled.push_back({source.pipe.get(), POLLIN, 0});
      }
    }
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) break;
    eventfd_t count = 0;
    if ((polled[0].revents & POLLIN) != 0) eventfd_read(state.wake.get(), &count);

    if (polled[1].revents != 0) {
      const ssize_t written = ::write(state.out, piece.data(), piece.size());
      if (written > 0) {
        piece.erase(0, static_cast<std::size_t>(written));
      } else if (written < 0 && errno != EAGAIN && errno != EINTR) {
        piece.clear();
        std::lock_guard lock(state.mutex);
        state.out_gone = true;
      }
    }
    std::lock_guard lock(state.mutex);
    state.read_all();
  }
  std::lock_guard lock(state.mutex);
  state.finished = true;
  state.changed.notify_all();
}

Console::Console(int out_fd) : state_(std::make_shared<State>()) {
  state_->out = out_fd;
  state_->wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state_->wake) fail_errno("eventfd for the console");
}

void Console::add_worker(int rank, UniqueFd pipe) {
  add_source(str("rank ", rank), std::move(pipe));
}

void Console::add_source(const std::string& who, UniqueFd pipe) {
  NVLLM_CHECK(!thread_.joinable());
  if (::fcntl(pipe.get(), F_SETFL, O_NONBLOCK) != 0) fail_errno("pipe of ", who);
  state_->sources.push_back({std::move(pipe), LineTagger(who)});
}

void Console::start() {
  thread_ = start_thread("of the console", [state = state_] { relay(*state); });
}

void Console::print(std::string_view lines) {
  draw(visible_on(state_->out, lines));
}

void Console::draw(std::string_view text) {
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->out_gone) state_->queue += text;
  }
  state_->wake_relay();
}

void Console::collect() {
  {
    std::lock_guard lock(state_->mutex);
    state_->read_all();
  }
  state_->wake_relay();
}

bool Console::flush(Nanoseconds limit) {
  state_->wake_relay();
  std::unique_lock lock(state_->mutex);
  state_->stuck = !state_->changed.wait_for(
      lock, limit, [&] { return state_->all_written() || state_->out_gone; });
  return !state_->stuck;
}

Console::~Console() {
  if (!thread_.joinable()) return;
  constexpr Nanoseconds kRelayEnds = std::chrono::milliseconds(50);
  bool finished = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->read_all();
    state_->finishing = true;
    state_->wake_relay();
    finished = state_->changed.wait_for(lock, state_->stuck ? kRelayEnds : kLastWrites,
                                        [&] { return state_->finished; });
    if (!finished) {
      // Standard error accepts nothing: queued text is lost, and the relay ends by itself.
      state_->out_gone = true;
      state_->wake_relay();
      finished = state_->changed.wait_for(lock, kRelayEnds, [&] { return state_->finished; });
    }
  }
  if (finished) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace nvllm::launcher
