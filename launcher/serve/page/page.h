// The chat page, embedded into the program at build time. See README.md.
#pragma once

#include <string_view>

namespace nvllm::launcher {

// All views stay valid while the program runs.
struct ChatPage {
  std::string_view html;
  std::string_view gzip;  // the same, for Content-Encoding: gzip
  std::string_view etag;  // with its quotes: a strong validator of `html`
  // Content-Security-Policy: the page's own script and style, and connections to this server.
  std::string_view content_security_policy;
};

const ChatPage& chat_page();

}  // namespace nvllm::launcher
