// What a stream of server-sent events says, for tests.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::launcher {

// The data of all events. An Error if the stream does not end with [DONE], or has another form.
inline std::vector<nlohmann::json> events_of(const std::string& stream) {
  constexpr std::size_t kPrefix = 6;  // "data: "
  std::vector<nlohmann::json> all;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = stream.find("\n\n", at);
    if (end == std::string::npos) fail("an event does not end: ", stream.substr(at));
    const std::string event = stream.substr(at, end - at);
    if (!event.starts_with("data: ")) fail("no data: ", event);
    at = end + 2;
    if (event == "data: [DONE]") {
      if (at != stream.size()) fail("behind [DONE]: ", stream.substr(at));
      return all;
    }
    all.push_back(parse_json(event.substr(kPrefix)));
  }
  fail("no [DONE]");
}

}  // namespace nvllm::launcher
