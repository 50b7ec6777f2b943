// ServeLoad: sends requests to servers and records the responses.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/bench/http_client.h"
#include "launcher/bench/serve/event_stream.h"
#include "launcher/bench/serve/serve_record.h"
#include "launcher/bench/serve/serve_workload.h"

namespace nvllm::launcher {

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
  void take(std::string_view data);
  void take_choice(const StreamChunk& chunk);
  void refuse(const char* kind, std::string_view message);

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
