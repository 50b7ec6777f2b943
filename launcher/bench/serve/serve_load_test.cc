// The load generator against servers that stream, reject requests, disconnect or send garbage.
#include "launcher/bench/serve/serve_load.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/json_text.h"
#include "launcher/bench/testing/mock_http_server.h"

namespace nvllm::launcher {
namespace {

using testing::chunk;
using testing::MockConnection;
using testing::MockHttpServer;

std::string event(const std::string& data) {
  return "data: " + data + "\n\n";
}
std::string token(const std::string& text) {
  return event(R"({"choices":[{"text":")" + text + R"(","finish_reason":null}]})");
}
const std::string kUsage =
    event(R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,)"
          R"("prompt_tokens_details":{"cached_tokens":2}}})");
const std::string kFinish = event(R"({"choices":[{"text":"","finish_reason":"length"}]})");
const std::string kDone = event("[DONE]");

// A whole stream of three tokens.
std::string good_stream() {
  return testing::kStreamHead + chunk(token("a")) + chunk(token("b") + token("c")) +
         chunk(kFinish) + chunk(kUsage) + chunk(kDone) + testing::kLastChunk;
}

struct Run {
  BenchServeOptions options;
  WorkloadOptions workload{.sequences = 8, .prompt = {3, 3}, .output = {3, 3}, .vocabulary = 100};
  ServePace pace{.max_concurrency = {}, .prompts = 1};
  Nanoseconds timeout = std::chrono::seconds(20);

  std::vector<ServeRecord> on(const std::vector<const MockHttpServer*>& mocks) const {
    HttpClient client(timeout);
    std::vector<ServeServer> servers;
    for (const MockHttpServer* mock : mocks) {
      const HttpAddress address = parse_http_address(mock->url());
      servers.push_back({address, client.add_server(address)});
    }
    const BodyWriter writer(options, "a-model");
    const std::string headers = "X-Test: 1\r\n";
    ServeLoad load(client, servers, options.endpoint, headers, writer);
    WorkloadStream stream(workload);
    return load.run(stream, pace);
  }
  std::vector<ServeRecord> on(const MockHttpServer& mock) const { return on({&mock}); }
};

// The record of one request to a server that answers with these bytes and then closes.
ServeRecord record_of(const std::string& bytes) {
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    connection.send(bytes);
  });
  return Run().on(server).at(0);
}

std::string body_of(const std::string& request) {
  return request.substr(request.find("\r\n\r\n") + 4);
}

}  // namespace

TEST_CASE("a stream is recorded with its tokens and chunks") {
  const ServeRecord record = record_of(good_stream());
  CHECK(record.succeeded());
  CHECK(record.chunks == 3);
  CHECK(record.gaps_s.size() == 2);
  CHECK((record.prompt_tokens == 5 && record.output_tokens == 3 && record.cached_tokens == 2));
  CHECK(record.counted);
  CHECK(record.sent_ns <= record.first_ns);
  CHECK(record.first_ns <= record.last_ns);
}

TEST_CASE("without usage, each chunk counts as a token, or as many as it has ids") {
  const ServeRecord record =
      record_of(testing::kStreamHead + chunk(token("a")) +
                chunk(event(R"({"choices":[{"text":"bc","token_ids":[1,2]}]})")) +
                chunk(kFinish + kDone) + testing::kLastChunk);
  CHECK(record.succeeded());
  CHECK(record.output_tokens == 3);
  CHECK(!record.counted);
  CHECK(record.prompt_tokens == 3);  // what was sent
}

TEST_CASE("the role at the beginning of a message is no token") {
  const ServeRecord record = record_of(
      testing::kStreamHead +
      chunk(event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")) +
      chunk(event(R"({"choices":[{"delta":{"content":"a"},"finish_reason":null}]})")) +
      chunk(event(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})")) + testing::kLastChunk);
  CHECK(record.succeeded());
  CHECK(record.chunks == 1);
}

TEST_CASE("refusals are told by status, with the server's message") {
  const std::string error = R"({"error":{"message":"too many requests wait","code":503}})";
  const ServeRecord full = record_of(testing::response("503 Service Unavailable", error));
  CHECK(full.failure == "HTTP 503");
  CHECK(full.message == "too many requests wait");
  CHECK(record_of(testing::response("401 Unauthorized", R"({"detail":"no key"})")).message ==
        "\"no key\"");
  CHECK(record_of(testing::response("404 Not Found", "<html>")).message == "<html>");
}

TEST_CASE("streams that go wrong are failures by their kind") {
  const std::string begin = testing::kStreamHead + chunk(token("a"));
  CHECK(record_of(begin).failure == "connection closed");
  CHECK(record_of(begin + testing::kLastChunk).failure == "torn stream");
  CHECK(record_of(begin + chunk(event("{\"choices\":[")) + testing::kLastChunk).failure ==
        "bad chunk");
  CHECK(record_of(testing::response("200 OK", "{\"choices\":[{\"text\":\"whole\"}]}")).failure ==
        "no stream");
  CHECK(record_of("HTTP/1.1 2OO OK\r\n\r\n").failure == "bad response");
  const ServeRecord died = record_of(
      begin + chunk(event(R"({"error":{"message":"rank 1 died"}})") + kDone) + testing::kLastChunk);
  CHECK(died.failure == "error in the stream");
  CHECK(died.message == "rank 1 died");
}

TEST_CASE("a server that stops in the middle fails after the timeout") {
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    connection.send(testing::kStreamHead + chunk(token("a")));
    connection.request();  // waits until the client has left
  });
  Run run;
  run.timeout = std::chrono::milliseconds(200);
  CHECK(run.on(server).at(0).failure == "timeout");
}

TEST_CASE("times are those of the server") {
  const auto pause = std::chrono::milliseconds(50);
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    std::this_thread::sleep_for(pause);
    connection.send(testing::kStreamHead + chunk(token("a")));
    std::this_thread::sleep_for(2 * pause);
    connection.send(chunk(token("b")) + chunk(kFinish + kDone) + testing::kLastChunk);
  });
  float longest_gap = 0;  // shorter where the first token is noticed late
  for (int tries = 0; tries < 5 && longest_gap < 0.1F * 0.99F; ++tries) {
    const ServeRecord record = Run().on(server).at(0);
    CHECK(record.succeeded());
    CHECK(record.ttft_s() >= 0.05);
    CHECK(record.ttft_s() + record.gaps_s.at(0) >= 0.15 * 0.9999);
    CHECK(record.e2el_s() >= 0.15);
    longest_gap = std::max(longest_gap, static_cast<float>(record.gaps_s.at(0)));
  }
  CHECK(longest_gap >= 0.1F * 0.99F);
}

TEST_CASE("at most so many requests are in flight, and all are sent") {
  std::atomic<int> now = 0, at_once = 0, requests = 0;
  MockHttpServer server([&](MockConnection& connection) {
    while (!connection.request().empty()) {
      at_once = std::max<int>(at_once, ++now);
      ++requests;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --now;
      connection.send(good_stream());
    }
  });
  Run run;
  run.pace = {.max_concurrency = 3, .prompts = 30};
  const std::vector<ServeRecord> records = run.on(server);
  CHECK(std::all_of(records.begin(), records.end(), [](const auto& r) { return r.succeeded(); }));
  CHECK(requests == 30);
  CHECK(at_once == 3);
  CHECK(server.connections() == 3);
}

TEST_CASE("several servers get requests by turns") {
  std::atomic<int> first = 0, second = 0;
  const auto counts = [](std::atomic<int>& count) {
    return [&count](MockConnection& connection) {
      while (!connection.request().empty()) {
        ++count;
        connection.send(good_stream());
      }
    };
  };
  const MockHttpServer one(counts(first)), two(counts(second));
  Run run;
  run.pace.prompts = 10;
  const std::vector<ServeRecord> records = run.on({&one, &two});
  CHECK((first == 5 && second == 5));
  CHECK((records.at(0).server == 0 && records.at(1).server == 1));
}

TEST_CASE("a rate spreads requests over time") {
  MockHttpServer server([&](MockConnection& connection) {
    while (!connection.request().empty()) connection.send(good_stream());
  });
  Run run;
  run.pace = {
      .rate = 100, .burstiness = 1e6, .max_concurrency = {}, .prompts = 21};  // even gaps of 10 ms
  const std::vector<ServeRecord> records = run.on(server);
  CHECK(static_cast<double>(records.back().sent_ns - records.front().sent_ns) * 1e-9 >= 0.19);
  CHECK(static_cast<double>(records.back().due_ns - records.front().due_ns) * 1e-9 < 0.21);
}

TEST_CASE("a duration ends the sending, not what is in flight") {
  MockHttpServer server([&](MockConnection& connection) {
    while (!connection.request().empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      connection.send(good_stream());
    }
  });
  Run run;
  run.pace = {.max_concurrency = 2, .prompts = 1, .duration_s = 0.3};
  const std::vector<ServeRecord> records = run.on(server);
  CHECK(records.size() > 2);
  for (const ServeRecord& record : records) CHECK(record.succeeded());
}

TEST_CASE("requests are those of the workload, in the API's form") {
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    connection.send(good_stream());
  });
  Run run;
  run.options.extra_body = R"({"priority": 7, "temperature": 0.5})";
  run.on(server);
  const std::string request = server.last_request();
  CHECK(request.starts_with("POST /v1/completions HTTP/1.1\r\n"));
  CHECK(request.find("\r\nX-Test: 1\r\n") != std::string::npos);
  const nlohmann::json body = parse_json(body_of(request));
  CHECK(body.at("model") == "a-model");
  CHECK(body.at("prompt") == make_workload(run.workload).requests.at(0).prompt);
  CHECK(body.at("max_tokens") == 3);
  CHECK(body.at("ignore_eos") == true);
  CHECK(body.at("stream_options").at("include_usage") == true);
  CHECK(body.at("priority") == 7);
  CHECK(body.at("temperature") == 0.5);
  run.options.endpoint = "/v1/chat/completions";
  run.on(server);
  const nlohmann::json chat = parse_json(body_of(server.last_request()));
  CHECK(chat.at("max_completion_tokens") == 3);
  const std::string text = chat.at("messages").at(0).at("content");
  CHECK(std::count(text.begin(), text.end(), ' ') == 2);  // three words
}

TEST_CASE("arrivals are a Poisson process, the same one for the same seed") {
  Arrivals one(10, 1, 7), same(10, 1, 7), other(10, 1, 8);
  double sum = 0, squares = 0;
  bool differs = false;
  constexpr int kMany = 100'000;
  for (int i = 0; i < kMany; ++i) {
    const double gap = one.next_gap_s();
    CHECK(gap == same.next_gap_s());
    differs = differs || gap != other.next_gap_s();
    sum += gap;
    squares += gap * gap;
  }
  CHECK(differs);
  CHECK(sum / kMany == doctest::Approx(0.1).epsilon(0.02));
  CHECK(squares / kMany == doctest::Approx(0.02).epsilon(0.05));  // of an exponential distribution
  Arrivals bursty(10, 0.25, 7);
  double mean = 0;
  for (int i = 0; i < kMany; ++i) mean += bursty.next_gap_s() / kMany;
  CHECK(mean == doctest::Approx(0.1).epsilon(0.05));
}

TEST_CASE("no prompt comes twice, however long a run is") {
  const WorkloadOptions options{.sequences = 2, .prompt = {9, 9}, .vocabulary = 10'000};
  WorkloadStream stream(options);
  std::vector<std::vector<std::int32_t>> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(stream.next().prompt);
  CHECK(prompts.at(1) == make_workload(options).requests.at(1).prompt);
  std::sort(prompts.begin(), prompts.end());
  CHECK(std::adjacent_find(prompts.begin(), prompts.end()) == prompts.end());
}

}  // namespace nvllm::launcher
