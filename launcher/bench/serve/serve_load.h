// ServeLoad: sends requests to servers and records the responses, one ServeRecord for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/bench/http_client.h"
#include "launcher/bench/serve/event_stream.h"
#include "launcher/bench/serve/serve_workload.h"

namespace nvllm::launcher {

// What was observed of one request. Times are in now_ns().
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

// The error message of a server: that of an error object of OpenAI's API, or the start of any other
// body.
std::string message_of(std::string_view body);

// One streamed completion.
class StreamExchange : public HttpExchange {
 public:
  explicit StreamExchange(const HttpClient& client) : client_(client) {}

  void on_head(const ResponseParser& response) override;
  void on_body(std::string_view piece) override;
  void on_end(const std::string& kind, const std::string& error) override;

  ServeRecord record;

 private:
  void on_event(std::string_view data);
  void on_choice(const StreamChunk& chunk);
  void record_failure(const char* kind, std::string_view message);

  const HttpClient& client_;
  EventReader events_;
  int status_ = 0;
  bool finished_ = false;   // a finish reason or [DONE] was received
  std::string other_body_;  // body of a response that is not a stream
};

struct ServeServer {
  HttpAddress address;
  std::size_t number = 0;  // of the client
};

// How many requests are sent, and when.
struct ServePace {
  double rate = std::numeric_limits<double>::infinity();  // requests per second
  double burstiness = 1;
  std::uint64_t seed = 0;
  std::optional<std::int64_t> max_concurrency;
  std::int64_t prompts = 0;
  double duration_s = 0;  // if not 0, replaces `prompts`
};

class ServeLoad {
 public:
  // All arguments must outlive it. headers: sent with every request.
  ServeLoad(HttpClient& client, const std::vector<ServeServer>& servers,
            const std::string& endpoint, const std::string& headers, const BodyWriter& writer)
      : client_(client),
        servers_(servers),
        endpoint_(endpoint),
        headers_(headers),
        writer_(writer) {}

  // Sends requests to the servers in turn, and waits until all have ended.
  std::vector<ServeRecord> run(WorkloadStream& workload, const ServePace& pace);

 private:
  class Schedule;

  Nanoseconds send_due(WorkloadStream& workload, Schedule& schedule);
  void send(const runtime::Request& request, std::int64_t due_ns);

  HttpClient& client_;
  const std::vector<ServeServer>& servers_;
  const std::string& endpoint_;
  const std::string& headers_;
  const BodyWriter& writer_;
  std::deque<StreamExchange> exchanges_;
};

}  // namespace nvllm::launcher
