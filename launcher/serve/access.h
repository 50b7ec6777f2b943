// Access control: API keys, and CORS for web pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/http/http_server.h"

namespace nvllm::launcher {

// Whether the request has one of the keys, as "Authorization: Bearer KEY" or "X-Api-Key: KEY". Its
// timing reveals nothing about a key but its length.
bool has_api_key(const HttpRequest& request, const std::vector<std::string>& keys);

// Reads keys from a file, one per line. Throws an Error if there are none.
std::vector<std::string> read_api_keys(const std::string& path);

// CORS headers for the response to this request; allowed: origins, or "*" for all.
std::vector<HttpHeader> cors_headers(const HttpRequest& request,
                                     const std::vector<std::string>& allowed);

// Whether it is a browser's CORS preflight request.
bool is_preflight(const HttpRequest& request);

}  // namespace nvllm::launcher
