// ServeRecord: what a load generator observed of one request to a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nvllm::launcher {

// Times are in now_ns().
struct ServeRecord {
  std::size_t server = 0;   // index of the base URL
  std::int64_t due_ns = 0;  // when it should have been sent
  std::int64_t sent_ns = 0;
  std::int64_t first_ns = 0;  // first chunk with text; 0: none
  std::int64_t last_ns = 0;   // last chunk with a choice
  std::int64_t chunks = 0;    // with text
  std::vector<float> gaps_s;  // between chunks: inter-token latencies (ITL), as vLLM measures them

  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  bool counted = false;  // the server reported token counts; otherwise each chunk counts as one
                         // token

  bool ended = false;
  std::string failure;  // kind of failure, "HTTP 503"; empty: success
  std::string message;  // the server's or the system's message

  bool succeeded() const { return ended && failure.empty(); }
  double ttft_s() const { return static_cast<double>(first_ns - sent_ns) * 1e-9; }
  double e2el_s() const { return static_cast<double>(last_ns - sent_ns) * 1e-9; }
  // Time per output token after the first; 0 if there is only one.
  double tpot_s() const {
    if (output_tokens < 2) return 0;
    return static_cast<double>(last_ns - first_ns) * 1e-9 / static_cast<double>(output_tokens - 1);
  }
};

}  // namespace nvllm::launcher
