// Error reports conditions caused from outside: a bad file, peer, device or request. A broken
// invariant of the program itself is an NVLLM_CHECK instead (base/check.h).
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "base/text.h"

namespace nvllm {

// The message names the thing, its value and the fix, in one line:
//   --tp 9: this machine has 8 GPUs; pass --tp 8 or less
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// Throws an Error whose message is str(parts...).
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(str(parts...));
}

// "No such file or directory (ENOENT)" for an errno value.
std::string errno_text(int error);

// Throws an Error about a failed system call: "parts: No such file or directory (ENOENT)".
template <typename... Parts>
[[noreturn]] void fail_errno(const Parts&... parts) {
  const int error = errno;
  throw Error(str(parts..., ": ", errno_text(error)));
}

// Runs the function and puts "context: " before the message of an Error thrown inside. Errors of
// derived types pass unchanged, so that callers can still catch them by type.
template <typename Function>
decltype(auto) with_context(std::string_view context, Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) throw;
    throw Error(str(context, ": ", error.what()));
  }
}

}  // namespace nvllm
