// Error texts, for tests.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace nvllm::testing {

// The text of the Error that a function throws; empty if it throws none.
template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace nvllm::testing
