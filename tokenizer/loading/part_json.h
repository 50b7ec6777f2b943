// The JSON of a tokenizer's parts, as nlohmann's values, with errors that do not quote its text.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/bounded_json.h"
#include "base/error.h"

namespace nvllm::tokenizer {

// Parses, and reports values whose type function() does not expect. `where`: the part and a colon,
// or nothing.
template <typename Function>
auto with_part_json(std::string_view where, std::string_view text, Function&& function) {
  constexpr std::size_t kMany = std::size_t{1} << 21;
  try {
    return std::forward<Function>(function)(
        read_bounded_json(text, {.max_keys = kMany, .repeated_names = true}));
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.type_error.302] type must be string, but is null": the prefix is not
    // helpful.
    const std::string_view what = error.what();
    const std::size_t id_end = what.find("] ");
    fail(where, shown_text(id_end == std::string_view::npos ? what : what.substr(id_end + 2), 120));
  } catch (const BadJson& error) {
    fail(where, error.what());  // not as a BadJson, to which callers could not add the file's name
  }
}

}  // namespace nvllm::tokenizer
