// NVLLM_CHECK guards an invariant of the program itself. If it is broken, the check prints the
// location and the values, and aborts. Conditions caused from outside are Errors instead
// (base/error.h).
#pragma once

#include <string>

#include "base/text.h"

namespace nvllm::internal {

// Logs "file:line: check failed: text" and aborts.
[[noreturn]] void check_failed(const char* file, int line, const std::string& text);

}  // namespace nvllm::internal

// NVLLM_CHECK(index < size, "index ", index, " of ", size);
#define NVLLM_CHECK(condition, ...)                                                               \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      ::nvllm::internal::check_failed(__FILE__, __LINE__,                                         \
                                      ::nvllm::str(#condition __VA_OPT__(, ": ", ) __VA_ARGS__)); \
  } while (false)

#define NVLLM_INTERNAL_CHECK_OP(a, op, b)                                                        \
  do {                                                                                           \
    const auto& check_a = (a);                                                                   \
    const auto& check_b = (b);                                                                   \
    if (!(check_a op check_b)) [[unlikely]]                                                      \
      ::nvllm::internal::check_failed(                                                           \
          __FILE__, __LINE__, ::nvllm::str(#a " " #op " " #b, ": ", check_a, " and ", check_b)); \
  } while (false)

// These print both values.
#define NVLLM_CHECK_EQ(a, b) NVLLM_INTERNAL_CHECK_OP(a, ==, b)
#define NVLLM_CHECK_LT(a, b) NVLLM_INTERNAL_CHECK_OP(a, <, b)
#define NVLLM_CHECK_LE(a, b) NVLLM_INTERNAL_CHECK_OP(a, <=, b)
