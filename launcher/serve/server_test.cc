// The server over real sockets, with a mock engine.
#include <doctest/doctest.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/serve/testing/server_fixture.h"
#include "testing/error_of.h"
#include "testing/skip.h"

namespace {

using nvllm::testing::has;
using nvllm::testing::RawClient;
using nvllm::testing::ServerFixture;

constexpr const char* kEndless = R"({"model": "tiny", "prompt": "Hi", "max_tokens": 90000})";
constexpr const char* kEndlessStream =
    R"({"model": "tiny", "prompt": "Hi", "max_tokens": 90000, "stream": true})";
constexpr std::string_view kNumber = "\"sequence_number\":";
constexpr const char* kShort = R"({"model": "tiny", "prompt": "Hi", "max_tokens": 5})";

int count(const std::string& text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

// What /metrics says of a gauge or counter, as text.
std::string metric(const ServerFixture& fixture, const std::string& name) {
  RawClient client = fixture.client();
  client.get("/metrics", "Connection: close\r\n");
  const std::string all = client.read_all();
  const std::size_t at = all.find("\n" + name + "{");
  REQUIRE(at != std::string::npos);
  const std::size_t value = all.find("} ", at) + 2;
  return all.substr(value, all.find('\n', value) - value);
}

}  // namespace

TEST_CASE("server: health is 503 until the engine is there, and 200 then") {
  ServerFixture fixture({}, {}, false);
  RawClient client = fixture.client();
  client.get("/health");
  CHECK(client.read_response().starts_with("HTTP/1.1 503"));
  client.post("/v1/completions", kShort);
  const std::string refused = client.read_response();
  CHECK(refused.starts_with("HTTP/1.1 503"));
  CHECK(has(refused, "Retry-After: 1"));
  CHECK(has(refused, "the model is being loaded"));
  fixture.open();
  client.get("/health");
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: a completion, whole and as a stream, on one connection") {
  const ServerFixture fixture;
  RawClient client = fixture.client();
  client.post("/v1/completions", kShort, "X-Request-Id: mine\r\n");
  const std::string whole = client.read_response();
  CHECK(whole.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(has(whole, "X-Request-Id: mine\r\n"));
  CHECK(has(whole, R"("completion_tokens")"));
  client.post("/v1/completions",
              R"({"model": "tiny", "prompt": "Hi", "max_tokens": 5, "stream": true})");
  const std::string stream = client.read_until("0\r\n\r\n");
  CHECK(has(stream, "Content-Type: text/event-stream"));
  CHECK(has(stream, "Transfer-Encoding: chunked"));
  CHECK(has(stream, "data: [DONE]\n\n"));
  client.get("/ping");
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: a stream's events are numbered in the order in which they are sent") {
  const ServerFixture fixture;
  RawClient client = fixture.client();
  client.post("/v1/responses", R"({"input": "Hi", "max_output_tokens": 5, "stream": true})");
  const std::string stream = client.read_until("0\r\n\r\n");
  CHECK(has(stream, "response.incomplete"));  // by max_output_tokens
  int events = 0;
  for (std::size_t at = 0; (at = stream.find(kNumber, at)) != std::string::npos; ++events) {
    at += kNumber.size();
    CHECK(std::atoi(stream.c_str() + at) == events);
  }
  CHECK(events > 5);
}

TEST_CASE("server: pipelined requests are answered in their order") {
  const ServerFixture fixture;
  RawClient client = fixture.client();
  client.send(
      "GET /version HTTP/1.1\r\nHost: a\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"
      "GET /ping HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(has(client.read_response(), "\"version\""));
  CHECK(client.read_response().starts_with("HTTP/1.1 404"));
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: wrong methods, paths and bytes are answered, each in its way") {
  const ServerFixture fixture({.max_request_bytes = 4096});
  const auto answer_to = [&](const std::string& bytes) {
    RawClient client = fixture.client();
    client.send(bytes);
    return client.read_response();
  };
  const std::string wrong_method = answer_to("GET /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(wrong_method.starts_with("HTTP/1.1 405"));
  CHECK(has(wrong_method, "Allow: POST\r\n"));
  CHECK(answer_to("HELO there\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(answer_to("GET / HTTP/3.0\r\n\r\n").starts_with("HTTP/1.1 505"));
  CHECK(answer_to("GET / HTTP/1.1\r\nHost: a\r\nA: " + std::string(100000, 'a') + "\r\n\r\n")
            .starts_with("HTTP/1.1 431"));
  CHECK(answer_to("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n{}")
            .starts_with("HTTP/1.1 413"));
  CHECK(answer_to("POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            .starts_with("HTTP/1.1 400"));
  // A value of a header cannot begin another one.
  const std::string id = answer_to(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Request-Id: a\tb\r\nContent-Length: "
      "2\r\n\r\n{}");
  CHECK(has(id, "X-Request-Id: a b\r\n"));
}

TEST_CASE(
    "server: a request that a proxy may read as another one is refused, and nothing after it") {
  const ServerFixture fixture;
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n";
  const std::string next = "GET /ping HTTP/1.1\r\nHost: a\r\n\r\n";
  const auto answers_to = [&](const std::string& bytes) {
    RawClient client = fixture.client();
    client.send(bytes + next);
    return client.read_all();
  };
  for (const std::string& request : {
           post + "Transfer-Encoding: gzip\r\n\r\n",
           post + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
           post + "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
           post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
           post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           std::string("GET /ping HTTP/1.1\r\n\r\n"),
           std::string("GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
       }) {
    CAPTURE(request);
    const std::string answers = answers_to(request);
    CHECK(answers.starts_with("HTTP/1.1 400"));
    CHECK(has(answers, "Connection: close\r\n"));
    CHECK_FALSE(has(answers, "HTTP/1.1 200"));
  }
  CHECK(has(answers_to(post + "Transfer-Encoding: gzip\r\n\r\n"),
            "Transfer-Encoding 'gzip': the body's end is unknown; send it chunked"));
  CHECK(has(answers_to("GET /ping HTTP/1.1\r\n\r\n"),
            "the request has 0 Host headers; HTTP/1.1 needs one"));
  RawClient old = fixture.client();
  old.send("GET /ping HTTP/1.0\r\n\r\n");
  CHECK(old.read_all().starts_with("HTTP/1.0 200"));
  RawClient chunked = fixture.client();
  chunked.send(post + "Transfer-Encoding: chunked\r\n\r\n" + "20\r\n" +
               R"({"prompt":"Hi","max_tokens":  2})" + "\r\n0\r\n\r\n");
  CHECK(chunked.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: keys guard /v1 and nothing else") {
  const ServerFixture fixture({.api_keys = {"secret", "other"}});
  RawClient client = fixture.client();
  client.get("/v1/models");
  CHECK(client.read_response().starts_with("HTTP/1.1 401"));
  client.get("/v1/models", "Authorization: Bearer secreT\r\n");
  CHECK(client.read_response().starts_with("HTTP/1.1 401"));
  client.get("/v1/models", "Authorization: Bearer other\r\n");
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
  client.get("/v1/models", "X-Api-Key: secret\r\n");
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
  client.get("/health");
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: a model of the list by its name, whose slashes may be encoded") {
  ServerFixture fixture({.api_keys = {"secret"}}, {.step = std::chrono::milliseconds(1)}, false);
  fixture.open({"org/tiny", "tiny"});
  RawClient client = fixture.client();
  const auto answer_to = [&](const char* path) {
    client.get(path, "X-Api-Key: secret\r\n");
    return client.read_response();
  };
  for (const char* const path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny"}) {
    const std::string model = answer_to(path);
    CHECK(model.starts_with("HTTP/1.1 200"));
    CHECK(has(model, "\r\n\r\n{\"id\":\"org/tiny\",\"object\":\"model\","));
  }
  CHECK(has(answer_to("/v1/models/tiny"), "{\"id\":\"tiny\","));
  const std::string missing = answer_to("/v1/models/org/other");
  CHECK(missing.starts_with("HTTP/1.1 404"));
  CHECK(has(missing,
            R"({"error":{"message":"The model \"org/other\" does not exist; this server has )"
            R"(org/tiny","type":"NotFoundError","param":"model","code":404}})"));
  CHECK(answer_to("/v1/models/").starts_with("HTTP/1.1 404"));
  client.post("/v1/models/tiny", "{}", "X-Api-Key: secret\r\n");
  CHECK(has(client.read_response(), "Allow: GET\r\n"));
  client.get("/v1/models/tiny");
  CHECK(client.read_response().starts_with("HTTP/1.1 401"));
}

TEST_CASE("server: a file of keys or of a certificate that is none is refused with the fix") {
  const auto refusal = [](const nvllm::launcher::ServeOptions& options) {
    return nvllm::testing::error_of([&] { const ServerFixture fixture(options); });
  };
  const std::string fix = "; pass a file with a key in each line";
  CHECK(refusal({.api_key_file = "/nowhere"}) ==
        "--api-key-file /nowhere: No such file or directory (ENOENT)" + fix);
  CHECK(refusal({.api_key_file = "/"}) == "--api-key-file /: cannot be read" + fix);
  CHECK(refusal({.api_key_file = "/dev/null"}) ==
        "--api-key-file /dev/null: has no key; write one into each line");
  const std::string certificate =
      refusal({.ssl_certfile = "/etc/passwd", .ssl_keyfile = "/etc/passwd"});
  if (has(certificate, "needs OpenSSL 3")) SKIP_TEST("there is no OpenSSL 3");
  CHECK(certificate.starts_with("--ssl-certfile /etc/passwd: no certificate in PEM form ("));
  CHECK(certificate.ends_with("); pass a file with -----BEGIN CERTIFICATE-----"));
}

TEST_CASE("server: a client that leaves frees its sequence within a step, streaming or not") {
  ServerFixture fixture({}, {.step = std::chrono::milliseconds(300)});
  for (const char* const body : {kEndless, kEndlessStream}) {
    RawClient client = fixture.client();
    client.post("/v1/completions", body);
    REQUIRE(ServerFixture::becomes([&] { return fixture.engine().running() == 1; }));
    const std::uint64_t before = fixture.engine().steps();
    client.close();
    CHECK(ServerFixture::becomes([&] { return fixture.engine().running() == 0; }));
    CHECK(fixture.engine().steps() <= before + 1);
  }
}

TEST_CASE("server: however many clients leave, no step is needed to free their sequences") {
  ServerFixture fixture;
  constexpr int kClients = 500;
  for (const char* const body : {kEndless, kEndlessStream}) {
    std::vector<RawClient> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.push_back(fixture.client());
      clients.back().post("/v1/completions", body);
    }
    REQUIRE(ServerFixture::becomes([&] { return fixture.engine().running() == kClients; }));
    // No token is written any more, whose failure would tell the server.
    fixture.engine().hold(true);
    const std::uint64_t before = fixture.engine().steps();
    for (int i = 0; i < kClients; ++i) {
      if (i % 2 == 0) {
        clients[static_cast<std::size_t>(i)].close();
      } else {
        clients[static_cast<std::size_t>(i)].reset();
      }
    }
    CHECK(ServerFixture::becomes([&] { return fixture.engine().running() == 0; }));
    CHECK(fixture.engine().steps() == before);
    fixture.engine().hold(false);
  }
  CHECK(fixture.engine().aborted() == 2 * kClients);
  CHECK(fixture.server().open_requests() == 0);
  CHECK(
      ServerFixture::becomes([&] { return metric(fixture, "vllm:num_requests_running") == "0"; }));
}

TEST_CASE("server: a client that does not read loses its request, and delays nobody") {
  ServerFixture fixture({}, {.step = std::chrono::microseconds(20)});
  RawClient lazy = fixture.client(4096);
  lazy.post("/v1/completions", kEndlessStream);
  REQUIRE(ServerFixture::becomes([&] { return fixture.engine().running() == 1; }));
  for (int i = 0; i < 20; ++i) {
    RawClient client = fixture.client();
    client.post("/v1/completions", kShort);
    CHECK(client.read_response().starts_with("HTTP/1.1 200"));
  }
  CHECK(ServerFixture::becomes([&] { return fixture.engine().aborted() == 1; }));
}

TEST_CASE("mock engine: a step gives tokens to as many answers as may run, the others wait") {
  nvllm::launcher::MockEngine engine({.max_num_seqs = 2});
  nvllm::runtime::Request request;
  request.sampling.max_tokens = 2;
  engine.submit(1, {request, request, request});
  const auto step = [&] {
    std::vector<std::uint64_t> requests;
    for (const auto& update : engine.poll(std::chrono::seconds(1)))
      requests.push_back(update.request);
    return requests;
  };
  CHECK(step() == std::vector<std::uint64_t>{1, 2});
  CHECK(engine.load().running == 2);
  CHECK(engine.load().waiting == 1);
  CHECK(step() == std::vector<std::uint64_t>{1, 2});
  CHECK(step() == std::vector<std::uint64_t>{3});
  CHECK(engine.load().waiting == 0);
}

TEST_CASE("server: a full queue is 503 with Retry-After, and is taken again when it is not") {
  ServerFixture fixture({.max_queued_requests = 2});
  fixture.engine().hold(true);
  std::vector<RawClient> waiting;
  for (int i = 0; i < 2; ++i) {
    waiting.push_back(fixture.client());
    waiting.back().post("/v1/completions", kShort);
  }
  REQUIRE(ServerFixture::becomes([&] { return fixture.engine().running() == 2; }));
  RawClient client = fixture.client();
  client.post("/v1/completions", kShort);
  const std::string refused = client.read_response();
  CHECK(refused.starts_with("HTTP/1.1 503"));
  CHECK(has(refused, "Retry-After: 1"));
  fixture.engine().hold(false);
  for (RawClient& each : waiting) CHECK(each.read_response().starts_with("HTTP/1.1 200"));
  client.post("/v1/completions", kShort);
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: what the engine refuses is the request's error, with a status") {
  ServerFixture fixture;
  fixture.engine().refuse_with("prompt is too long for this engine");
  RawClient client = fixture.client();
  for (const char* const body : {kEndless, kEndlessStream}) {
    client.post("/v1/completions", body);
    const std::string refused = client.read_response();
    CHECK(refused.starts_with("HTTP/1.1 400"));
    CHECK(has(refused, "prompt is too long for this engine"));
    CHECK(has(refused, R"("param":null)"));
  }
  // Only the engine knows the vocabulary.
  for (const auto& [error, field] : std::initializer_list<std::pair<std::string, std::string>>{
           {"the prompt holds token id 9; the vocabulary's ids are 0 to 8", "prompt"},
           {"logit_bias holds token id 9; the vocabulary's ids are 0 to 8", "logit_bias"}}) {
    fixture.engine().refuse_with(error);
    client.post("/v1/completions", kShort);
    CHECK(has(client.read_response(), "\"param\":\"" + field + "\""));
  }
}

TEST_CASE("server: an error of the model is no fault of the request, and says so in its status") {
  ServerFixture fixture;
  fixture.engine().refuse_with("no token can be sampled: all logits are NaN", true);
  RawClient client = fixture.client();
  for (const char* const body : {kEndless, kEndlessStream}) {
    client.post("/v1/completions", body);
    const std::string failed = client.read_response();
    CHECK(failed.starts_with("HTTP/1.1 500"));
    CHECK(has(failed, R"({"error":{"message":"no token can be sampled: all logits are NaN",)"
                      R"("type":"InternalServerError","param":null,"code":500}})"));
  }
}

TEST_CASE("server: a request's deadline ends it, whole or in a stream") {
  ServerFixture fixture({.request_timeout = std::chrono::milliseconds(300)});
  RawClient whole = fixture.client();
  whole.post("/v1/completions", kEndless);
  RawClient stream = fixture.client();
  stream.post("/v1/completions", kEndlessStream);
  CHECK(has(whole.read_response(), "HTTP/1.1 504"));
  const std::string events = stream.read_until("0\r\n\r\n");
  CHECK(has(events, "\"error\""));
  CHECK(has(events, "data: [DONE]"));
  CHECK(ServerFixture::becomes([&] { return fixture.engine().running() == 0; }));
}

TEST_CASE("server: a lost engine answers every open request, and another one can come") {
  ServerFixture fixture;
  RawClient whole = fixture.client();
  whole.post("/v1/completions", kEndless);
  RawClient stream = fixture.client();
  stream.post("/v1/completions", kEndlessStream);
  stream.read_until("data: {");
  REQUIRE(ServerFixture::becomes([&] { return fixture.engine().running() == 2; }));
  fixture.end_engine();
  fixture.server().close_engine("rank 1 (pid 4711) killed by SIGKILL");
  const std::string failed = whole.read_response();
  CHECK(failed.starts_with("HTTP/1.1 500"));
  CHECK(has(failed, "rank 1 (pid 4711) killed by SIGKILL"));
  CHECK(has(stream.read_until("data: [DONE]\n\n"), "killed by SIGKILL"));
  whole.get("/health");
  CHECK(whole.read_response().starts_with("HTTP/1.1 503"));
  CHECK(fixture.server().open_requests() == 0);
  CHECK(fixture.server().pause(std::chrono::seconds(60)));
  fixture.server().resume();
  fixture.open();
  whole.get("/health");
  CHECK(whole.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: draining refuses new requests and finishes the old ones") {
  ServerFixture fixture({}, {.step = std::chrono::milliseconds(20)});
  RawClient old = fixture.client();
  old.post("/v1/completions", R"({"model": "tiny", "prompt": "Hi", "max_tokens": 20})");
  REQUIRE(ServerFixture::becomes([&] { return fixture.engine().running() == 1; }));
  fixture.server().drain();
  RawClient client = fixture.client();
  client.get("/health");
  // The connection ends: a client or a proxy tries again elsewhere.
  const std::string health = client.read_all();
  CHECK(health.starts_with("HTTP/1.1 503"));
  CHECK(count(health, "Connection: close\r\n") == 1);
  RawClient other = fixture.client();
  other.post("/v1/completions", kShort);
  const std::string refused = other.read_all();
  CHECK(has(refused, "the server is shutting down"));
  CHECK(count(refused, "Connection: close\r\n") == 1);
  CHECK(old.read_response().starts_with("HTTP/1.1 200"));
}

TEST_CASE("server: a browser's page may use it if its origin may") {
  const ServerFixture fixture({.allowed_origins = {"http://good.example"}});
  RawClient client = fixture.client();
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: http://good.example\r\n"
      "Access-Control-Request-Method: POST\r\n\r\n");
  const std::string allowed = client.read_until("\r\n\r\n");
  CHECK(allowed.starts_with("HTTP/1.1 204"));
  CHECK(has(allowed, "Access-Control-Allow-Origin: http://good.example\r\n"));
  client.get("/health", "Origin: http://bad.example\r\n");
  CHECK_FALSE(has(client.read_response(), "Access-Control-Allow-Origin"));
}

TEST_CASE("server: the chat page, with and without a prefix, and only once") {
  const ServerFixture fixture({.root_path = "/llm"});
  RawClient client = fixture.client();
  for (const char* const path : {"/llm", "/llm/", "/"}) {
    client.get(path);
    const std::string page = client.read_response();
    CHECK(page.starts_with("HTTP/1.1 200"));
    CHECK(has(page, "Content-Security-Policy: default-src 'none'"));
    CHECK(has(page, "<!DOCTYPE html>"));
  }
  client.get("/llm/", "Accept-Encoding: gzip\r\n");
  const std::string zipped = client.read_response();
  CHECK(has(zipped, "Content-Encoding: gzip\r\n"));
  const std::size_t etag = zipped.find("ETag: ") + 6;
  client.get("/llm/",
             "If-None-Match: " + zipped.substr(etag, zipped.find('\r', etag) - etag) + "\r\n");
  CHECK(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 304"));
}

TEST_CASE("server: an answer's tokens reach a stream step by step") {
  ServerFixture fixture({}, {.step = std::chrono::milliseconds(5)});
  RawClient client = fixture.client();
  client.post("/v1/completions",
              R"({"model": "tiny", "prompt": [1, 2], "max_tokens": 12, "stream": true,
                  "stream_options": {"include_usage": true}})");
  const std::string stream = client.read_until("0\r\n\r\n");
  CHECK(count(stream, "\r\ndata: ") >= 6);
  CHECK(has(stream, R"("completion_tokens")"));
}
