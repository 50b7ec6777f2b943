// Characters of URLs that are escaped, "%41" for "A".
#pragma once

#include <string>
#include <string_view>

namespace nvllm::launcher {

// A path with everything but letters, digits and "/-._~" written as "%20".
std::string percent_encoded_path(std::string_view path);

// The text that is meant. What is badly escaped stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace nvllm::launcher
