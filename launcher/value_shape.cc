#include "launcher/value_shape.h"

#include <algorithm>
#include <cstddef>

namespace nvllm::launcher {
namespace {

// "prefill-first", "bash"; no capitals as in "N", and no sign of a form as in "A:B".
bool stands_for_itself(std::string_view word) {
  return std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

void take(ValueShape& shape, std::string_view alternative) {
  if (alternative == "FILE" || alternative == "MODEL") {
    shape.file = true;
  } else if (alternative == "JSON") {
    shape.json = true;
  } else if (alternative.find(',') != alternative.npos) {
    shape.list = true;
  } else if (stands_for_itself(alternative)) {
    shape.choices.emplace_back(alternative);
  } else if (alternative != "TEXT") {
    shape.number = true;
  }
}

}  // namespace

ValueShape shape_of(std::string_view placeholder) {
  ValueShape shape;
  while (true) {
    const std::size_t bar = placeholder.find('|');
    take(shape, placeholder.substr(0, bar));
    if (bar == placeholder.npos) return shape;
    placeholder.remove_prefix(bar + 1);
  }
}

}  // namespace nvllm::launcher
