// Percent-encoding of URLs, "%41" for "A".
#pragma once

#include <string>
#include <string_view>

namespace nvllm::launcher {

// Encodes everything except letters, digits and "/-._~".
std::string percent_encoded_path(std::string_view path);

// Decodes; malformed sequences are kept.
std::string percent_decoded(std::string_view text);

}  // namespace nvllm::launcher
