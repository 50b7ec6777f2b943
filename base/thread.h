// Starts threads. If the system refuses one, an Error names the thread's purpose.
//
// thread_ = start_thread("of a stream", [this] { run(); });
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace nvllm {

// Thread: std::thread or std::jthread.
template <typename Thread = std::thread, typename Work>
Thread start_thread(const char* purpose, Work&& work) {
  try {
    return Thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    fail("starting a thread ", purpose, ": ", error.what(), "; see ulimit -u");
  }
}

}  // namespace nvllm
