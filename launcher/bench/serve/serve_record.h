// ServeRecord: what a load generator saw of one request to a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nvllm::launcher {

// Times are on the clock of now_ns().
struct ServeRecord {
  std::size_t server = 0;   // number of the base URL
  std::int64_t due_ns = 0;  // when it should have been sent
  std::int64_t sent_ns = 0;
  std::int64_t first_ns = 0;  // of the first chunk with text; 0: none came
  std::int64_t last_ns = 0;   // of the last chunk with a choice
  std::int64_t chunks = 0;    // with text
  std::vector<float> gaps_s;  // between chunks: inter-token latencies (ITL), as vLLM measures them

  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  bool counted = false;  // the server told the numbers of tokens; otherwise a chunk counts as one

  bool ended = false;
  std::string failure;  // its kind, "HTTP 503"; empty: it succeeded
  std::string message;  // what the server or the system said

  bool succeeded() const { return ended && failure.empty(); }
  double ttft_s() const { return static_cast<double>(first_ns - sent_ns) * 1e-9; }
  double e2el_s() const { return static_cast<double>(last_ns - sent_ns) * 1e-9; }
  // Time per output token after the first; 0: there is only one.
  double tpot_s() const {
    if (output_tokens < 2) return 0;
    return static_cast<double>(last_ns - first_ns) * 1e-9 / static_cast<double>(output_tokens - 1);
  }
};

}  // namespace nvllm::launcher
