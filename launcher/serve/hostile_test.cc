// Thousands of malformed requests over sockets. Whatever bytes arrive, in whatever pieces, and
// however clients disconnect: the server answers or closes, goes on serving others, and leaks
// nothing. NVLLM_HOSTILE_REQUESTS=100000 runs more than the default few thousand,
// NVLLM_HOSTILE_SEED selects others.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>

#include "base/error.h"
#include "launcher/serve/testing/server_fixture.h"
#include "launcher/testing/process_use.h"
#include "testing/sanitizers.h"

namespace {

using nvllm::str;
using nvllm::testing::open_files;
using nvllm::testing::RawClient;
using nvllm::testing::resident_bytes;
using nvllm::testing::ServerFixture;

constexpr std::size_t kMaxBody = std::size_t{256} << 10;

std::uint64_t number_from_environment(const char* name, std::uint64_t fallback) {
  const char* const text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

std::string http_post(const std::string& path, const std::string& body) {
  return str("POST ", path,
             " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ",
             body.size(), "\r\n\r\n", body);
}

std::string repeated(std::string_view part, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += part;
  return all;
}

class HostileClients {
 public:
  HostileClients(const ServerFixture& fixture, std::uint64_t seed)
      : fixture_(fixture), random_(seed) {}

  // One client: it sends something and disconnects, or joins the slow ones.
  void send_one() {
    RawClient client = fixture_.client();
    std::string bytes =
        below(3) == 0 ? http_post("/v1/completions", body()) : http_post(path(), body());
    bool whole = false;
    switch (below(10)) {
      case 0: bytes = random_bytes(below(2000)); break;
      case 1: mutate(bytes); break;
      case 2: bytes.resize(below(bytes.size())); break;
      case 3: bytes = str("GET / HTTP/1.1\r\nHost: a\r\n", oversized_headers(), "\r\n"); break;
      case 4:
        bytes =
            str("POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                chunks());
        break;
      case 5:
        bytes = repeated(bytes.size() < 1000 ? bytes : "GET /ping HTTP/1.1\r\nHost: a\r\n\r\n",
                         1 + below(20));
        break;
      case 6:
        bytes = str("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ", wrong_length(),
                    "\r\n\r\n{}");
        break;
      default: whole = true; break;  // its body may be wrong
    }
    leave(std::move(client), bytes, whole);
  }

  // Each slow client sends one byte.
  void drip() {
    for (Slow& each : slow_) {
      if (each.rest.empty()) continue;
      try_to([&] { each.client.send(each.rest.substr(0, 1)); });
      each.rest.erase(0, 1);
    }
  }
  void let_slow_ones_go() { slow_.clear(); }
  std::uint64_t answers() const { return answers_; }

 private:
  struct Slow {
    RawClient client;
    std::string rest;
  };

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  template <std::size_t count>
  std::string one_of(const std::array<const char*, count>& choices) {
    return choices[below(count)];
  }

  std::string path() {
    return one_of(std::array{
        "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize",
        "/detokenize", "/v1/messages/count_tokens", "/metrics", "/%00", "//", "/v1/models/%ff"});
  }

  std::string body() {
    std::string text = one_of(std::array{
        R"({"prompt":"Hi","max_tokens":4})",
        R"({"prompt":"Hi","max_tokens":400,"stream":true})",
        R"({"prompt":[[1,2],[3]],"n":3,"max_tokens":2,"stream":true,
            "stream_options":{"include_usage":true}})",
        R"({"messages":[{"role":"user","content":"who"}],"max_tokens":3,"logprobs":true})",
        R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stream":true})",
        R"({"input":[{"role":"user","content":"who"}],"max_output_tokens":3})",
        R"({"prompt":"\ud800","max_tokens":1e999,"temperature":-1,"stop":["",null]})",
        R"({"tokens":[1,2,-3,99999999999999999999]})",
    });
    switch (below(12)) {
      case 0: return repeated("[", 1 + below(100'000));
      case 1: return repeated(R"({"a":)", 1 + below(20'000));
      case 2:
        return str(R"({"prompt":")", repeated("\xff\xc0\x80\xed\xa0\x80", 1 + below(100)), "\"}");
      case 3: return str(R"({"prompt":")", random_bytes(200), R"(","max_tokens":1})");
      case 4: return str(R"({"prompt":[)", repeated("1,", below(30'000)), "1],\"max_tokens\":1}");
      case 5: return str(R"({"prompt":")", repeated("a ", below(20'000)), R"(","max_tokens":1})");
      case 6:
      case 7: mutate(text); return text;
      default: return text;
    }
  }

  std::string random_bytes(std::size_t count) {
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  void mutate(std::string& bytes) {
    for (std::size_t i = 1 + below(8); i > 0 && !bytes.empty(); --i) {
      const std::size_t at = below(bytes.size());
      switch (below(3)) {
        case 0: bytes[at] = static_cast<char>(random_()); break;
        case 1: bytes.erase(at, 1 + below(10)); break;
        default: bytes.insert(at, bytes.substr(below(bytes.size()), below(20))); break;
      }
    }
  }
  std::string oversized_headers() {
    return below(2) == 0 ? str("A: ", std::string(100'000, 'a'), "\r\n")
                         : repeated("A: b\r\n", 20'000);
  }
  std::string chunks() {
    std::string all;
    for (std::size_t i = below(6); i > 0; --i) {
      all += one_of(std::array{"2\r\n{}\r\n", "1\r\n{\r\n", "5;a=b\r\n12345\r\n", "0\r\n\r\n",
                               "zz\r\n", "ffffffffffffffff\r\n", "-1\r\n",
                               "00000000000000000000002\r\n{}\r\n"});
    }
    return all;
  }
  std::string wrong_length() {
    return one_of(
        std::array{"-1", "1e3", "18446744073709551616", "3", "0x2", "999999999", "2, 2", ""});
  }

  // Sends in one or more pieces, and waits for the answer to a whole request, or disconnects in one
  // of several ways.
  void leave(RawClient client, std::string bytes, bool whole) {
    if (below(8) == 0) {
      slow_.push_back({std::move(client), std::move(bytes)});
      if (slow_.size() > kMaxSlow) slow_.pop_front();
      return;
    }
    const std::size_t cut = below(4) == 0 ? below(bytes.size()) : bytes.size();
    try_to([&] {
      client.send(std::string_view(bytes).substr(0, cut));
      client.send(std::string_view(bytes).substr(cut));
    });
    if (whole && below(4) != 0) {
      CHECK(client.read_until("\r\n").starts_with("HTTP/1.1 "));
      ++answers_;
      return;
    }
    switch (below(4)) {
      case 0: client.reset(); break;
      case 1: client.close(); break;
      default:
        // Half-closed: the server closes, whether it has answered or not.
        client.shut_down_writing();
        client.read_all();
        break;
    }
  }

  // The server may have closed; any other error fails the test.
  template <typename Function>
  static void try_to(Function function) {
    try {
      function();
    } catch (const nvllm::Error& error) {
      const std::string_view what = error.what();
      CHECK_MESSAGE((what.find("EPIPE") != what.npos || what.find("ECONNRESET") != what.npos),
                    what);
    }
  }

  static constexpr std::size_t kMaxSlow = 64;
  const ServerFixture& fixture_;
  std::mt19937_64 random_;
  std::deque<Slow> slow_;
  std::uint64_t answers_ = 0;
};

}  // namespace

TEST_CASE("server: hostile requests harm nobody and leave nothing") {
  const std::uint64_t requests =
      number_from_environment("NVLLM_HOSTILE_REQUESTS", nvllm::testing::kSanitized ? 500 : 4000);
  const std::uint64_t seed = number_from_environment("NVLLM_HOSTILE_SEED", std::random_device{}());
  CAPTURE(seed);
  // The log reads what other threads still write of a request whose client has left.
  const ServerFixture fixture({.max_request_bytes = kMaxBody,
                               .request_timeout = std::chrono::seconds(10),
                               .log_requests = nvllm::testing::kSanitized});
  const auto serves = [&] {
    RawClient client = fixture.client();
    client.post("/v1/completions", R"({"prompt": "Hi", "max_tokens": 3})", "Connection: close\r\n");
    return client.read_all().starts_with("HTTP/1.1 200");
  };
  REQUIRE(serves());
  const std::size_t files = open_files();
  HostileClients clients(fixture, seed);
  std::size_t resident = 0;
  for (std::uint64_t i = 0; i < requests; ++i) {
    clients.send_one();
    if (i % 64 == 0) clients.drip();
    if (i % 512 == 0) REQUIRE(serves());
    if (i == requests / 4) resident = resident_bytes();  // one-time allocations are complete
  }
  CHECK(clients.answers() > requests / 8);
  clients.let_slow_ones_go();
  CHECK(ServerFixture::becomes([&] { return fixture.server().open_requests() == 0; }));
  CHECK(ServerFixture::becomes([&] { return fixture.engine().running() == 0; }));
  CHECK(ServerFixture::becomes([&] { return open_files() <= files; }));
  // Sanitizers keep freed memory.
  constexpr std::size_t kMaxGrowth = std::size_t{48} << 20;
  if (!nvllm::testing::kSanitized) CHECK(resident_bytes() < resident + kMaxGrowth);
  CHECK(serves());
}
