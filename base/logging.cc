#include "base/logging.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <utility>

#include "base/error.h"

namespace nvllm {
namespace {

constexpr std::array<const char*, 5> kNames = {"debug", "info", "warning", "error", "off"};

// The settings are the only mutable global: they belong to the whole process.
LogSettings& settings() {
  static LogSettings instance;
  return instance;
}

// Whether a line can be written without blocking for long on its reader (a stopped pager, a full
// pipe). After one wait has timed out, later calls do not wait until the file accepts data again.
bool accepts(int fd) {
  constexpr int kLimitMs = 500;
  static std::atomic<bool> stuck = false;
  pollfd polled = {fd, POLLOUT, 0};
  const int ready = ::poll(&polled, 1, stuck ? 0 : kLimitMs);
  stuck = ready == 0;
  return ready != 0;
}

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<LogLevel>(i);
  }
  fail("log level '", name, "' is unknown; use debug, info, warning, error or off");
}

void configure_logging(LogSettings settings_of_process) {
  settings() = std::move(settings_of_process);
}

const LogSettings& log_settings() {
  return settings();
}

std::string format_log_line(std::string_view who, LogLevel level, std::string_view text) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  std::array<char, 32> time;
  std::snprintf(time.data(), time.size(), "%02d:%02d:%02d.%03d", local.tm_hour, local.tm_min,
                local.tm_sec, static_cast<int>(now.tv_nsec / 1'000'000));
  return str(time.data(), ' ', who, ' ', kNames[static_cast<std::size_t>(level)], ' ', text, '\n');
}

void write_error_text(std::string_view text) {
  if (!accepts(STDERR_FILENO)) return;
  // A single write, so that lines of several processes do not mix. A failure cannot be reported:
  // standard error is the only place for it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void log_line(LogLevel level, std::string_view text) {
  write_error_text(format_log_line(settings().who, level, text));
}

}  // namespace nvllm
