#include "launcher/load_display.h"

#include <unistd.h>

#include "base/logging.h"

namespace nvllm::launcher {
namespace {

void print(Console& console, const std::string& text) {
  if (!text.empty()) console.print(text);
}

}  // namespace

LoadDisplay::LoadDisplay(Console& console)
    : console_(console), text_(::isatty(STDERR_FILENO) == 1, now_ns()) {}

LoadDisplay::~LoadDisplay() {
  print(console_, text_.finish());
}

void LoadDisplay::show(const runtime::LoadState& state) {
  if (!log_enabled(LogLevel::info)) return;
  print(console_, text_.update(state.bytes, state.total, now_ns()));
}

}  // namespace nvllm::launcher
