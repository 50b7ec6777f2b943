// Url: an http or https address, in its parts.
#pragma once

#include <string>
#include <string_view>

namespace nvllm::launcher {

struct Url {
  bool https = false;
  std::string host;    // without the brackets of an IPv6 address
  std::string port;    // "443"
  std::string target;  // path and query, "/api/models/gpt2?blobs=true"

  std::string authority() const;  // "huggingface.co", "127.0.0.1:8000": for the header Host
  std::string origin() const;     // "https://huggingface.co"
  std::string text() const { return origin() + target; }
};

// Throws an Error that names the URL.
Url parse_url(std::string_view text);

// Resolves a response's Location relative to `base`. Throws an Error if it cannot be followed, for
// example if it leads from https to http.
Url redirected(const Url& base, std::string_view location);

}  // namespace nvllm::launcher
