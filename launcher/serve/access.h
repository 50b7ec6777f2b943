// Access: who may use the server, and from which web pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/http/http_server.h"

namespace nvllm::launcher {

// Whether the request has one of the keys, as "Authorization: Bearer KEY" or "X-Api-Key: KEY".
// The time it takes tells nothing about a key but its length.
bool has_api_key(const HttpRequest& request, const std::vector<std::string>& keys);

// Reads keys from a file, one in each line. Throws an Error if there is none.
std::vector<std::string> read_api_keys(const std::string& path);

// The headers of CORS that a response to the request has; allowed: origins, or "*" for all.
std::vector<HttpHeader> cors_headers(const HttpRequest& request,
                                     const std::vector<std::string>& allowed);

// Whether it is a browser's question if it may send a request.
bool is_preflight(const HttpRequest& request);

}  // namespace nvllm::launcher
