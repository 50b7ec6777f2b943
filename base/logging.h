// Logging writes each message as one line to standard error, in one piece:
//   12:34:56.789 rank 1 info  ready after 43 ms
// Standard output is for results only. All functions are thread-safe, except configure_logging():
// call it once, before the process has other threads.
#pragma once

#include <string>
#include <string_view>

#include "base/text.h"

namespace nvllm {

enum class LogLevel { debug, info, warning, error, off };

// Parses a level ("debug", "info", "warning", "error", "off"); throws an Error for others.
LogLevel parse_log_level(std::string_view name);

struct LogSettings {
  LogLevel level = LogLevel::info;
  std::string who = "main";  // "launcher", "rank 0": the second column
};

void configure_logging(LogSettings settings);
const LogSettings& log_settings();

// One formatted line, with its newline.
std::string format_log_line(std::string_view who, LogLevel level, std::string_view text);

// Writes to standard error in one piece, unless its reader blocks: that is waited for once, for
// half a second.
void write_error_text(std::string_view text);

// Writes one line at any level. The functions below check the level first.
void log_line(LogLevel level, std::string_view text);

inline bool log_enabled(LogLevel level) {
  return level >= log_settings().level;
}

template <typename... Parts>
void log_debug(const Parts&... parts) {
  if (log_enabled(LogLevel::debug)) log_line(LogLevel::debug, str(parts...));
}

template <typename... Parts>
void log_info(const Parts&... parts) {
  if (log_enabled(LogLevel::info)) log_line(LogLevel::info, str(parts...));
}

template <typename... Parts>
void log_warning(const Parts&... parts) {
  if (log_enabled(LogLevel::warning)) log_line(LogLevel::warning, str(parts...));
}

template <typename... Parts>
void log_error(const Parts&... parts) {
  if (log_enabled(LogLevel::error)) log_line(LogLevel::error, str(parts...));
}

}  // namespace nvllm
