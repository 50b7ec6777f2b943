// The HTTP client: responses split at every position, keep-alive connections, and servers that
// misbehave.
#include "launcher/bench/http_client.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/bench/testing/mock_http_server.h"

namespace nvllm::launcher {
namespace {

using testing::MockConnection;
using testing::MockHttpServer;

struct Body : BodyReceiver {
  void on_body(std::string_view piece) override { text += piece; }
  std::string text;
};

// The body of a response whose bytes arrive in two pieces, or an error text.
std::string parsed(const std::string& bytes, std::size_t cut) {
  ResponseParser parser;
  Body body;
  try {
    const std::size_t taken = parser.feed(bytes.substr(0, cut), body);
    if (taken < cut) return body.text + ", then more";
    parser.feed(bytes.substr(cut), body);
  } catch (const Error& error) {
    return error.what();
  }
  return body.text + (parser.done() ? "" : ", not done");
}

HttpReply reply_to(const std::string& response, Nanoseconds timeout = std::chrono::seconds(20)) {
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    connection.send(response);
  });
  const HttpAddress address = parse_http_address(server.url());
  return fetch(address, http_request("GET", address, "/", "", ""), timeout);
}

std::string refusal(const std::string& url) {
  try {
    parse_http_address(url);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a response is the same wherever its bytes are cut") {
  const std::string chunked = std::string("HTTP/1.1 100 Continue\r\n\r\n") + testing::kStreamHead +
                              testing::chunk("hello") + "6;name=value\r\n world\r\n" + "0\r\n" +
                              "Trailer: x\r\n\r\n";
  const std::string sized = testing::response("200 OK", "hello world", "X: y\r\n");
  const std::string bare = "HTTP/1.1 200 OK\nContent-Length: 11\n\nhello world";
  for (const std::string& bytes : {chunked, sized, bare}) {
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      CAPTURE(cut);
      CHECK(parsed(bytes, cut) == "hello world");
    }
  }
}

TEST_CASE("what is no HTTP/1.1 is refused with what it is") {
  CHECK(parsed("SSH-2.0-OpenSSH_9.2\r\n\r\n", 5) ==
        "the server does not speak HTTP/1.1: it answers 'SSH-2.0-OpenSSH_9.2'");
  CHECK(parsed("HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", 0) ==
        "the server's response has a bad Content-Length, 'ten'");
  CHECK(parsed(std::string(testing::kStreamHead) + "xyz\r\n", 0) ==
        "the server's response has a bad chunk size, 'xyz'");
  CHECK(parsed(std::string(testing::kStreamHead) + "2\r\nabc\r\n", 0) ==
        "the server's response has a chunk that is longer than it says");
  CHECK(parsed("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'), 0) ==
        "the server's response has more than 64 KiB of headers");
}

TEST_CASE("headers are found whatever their case") {
  const std::string head = "HTTP/1.1 200 OK\r\nA: 1\r\nRetry-After:  7 \r\n\r\n";
  CHECK(header_of(head, "retry-after") == "7");
  CHECK(header_of(head, "retry") == "");
}

TEST_CASE("addresses are URLs of HTTP servers") {
  const HttpAddress address = parse_http_address("http://[::1]:8000/prefix/");
  CHECK(address.host == "[::1]");
  CHECK(address.port == "8000");
  CHECK(address.prefix == "/prefix");
  CHECK(parse_http_address("http://localhost").port == "80");
  CHECK(parse_http_address("unix:/run/socket").unix_socket == "/run/socket");
  CHECK(refusal("https://a") ==
        "https://a: HTTPS is not spoken here; pass http://HOST:PORT or unix:/PATH");
  for (const char* port : {"0", "65536", "99999", "1000000"}) {
    const std::string url = std::string("http://a:") + port;
    CHECK(refusal(url) == url + ": port " + port + ": out of range; pass 1 to 65535");
  }
  CHECK(parse_http_address("http://a:65535").port == "65535");
  for (const char* url :
       {"a", "http://", "http://:80", "http://a:b", "http://a:-5", "http://a b", "unix:"}) {
    CHECK(refusal(url).starts_with(std::string(url) + ": "));
    CHECK(refusal(url).ends_with("; pass http://HOST:PORT or unix:/PATH"));
  }
}

TEST_CASE("a server gets the whole request, and its response comes back") {
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    connection.send(testing::response("418 Teapot", "short", "X: y\r\n"));
  });
  const HttpAddress address = parse_http_address(server.url() + "/prefix");
  const HttpReply reply =
      fetch(address, http_request("POST", address, "/path", "A: b\r\n", std::string(200'000, 'x')));
  CHECK(reply.error == "");
  CHECK(reply.status == 418);
  CHECK(reply.body == "short");
  CHECK(header_of(reply.head, "x") == "y");
  const std::string request = server.last_request();
  CHECK(request.starts_with("POST /prefix/path HTTP/1.1\r\nHost: 127.0.0.1:" + address.port +
                            "\r\nA: b\r\nContent-Type: application/json\r\n"));
  CHECK(request.ends_with(std::string(200'000, 'x')));
}

TEST_CASE("a body without a length ends with the connection") {
  const HttpReply reply = reply_to("HTTP/1.1 200 OK\r\n\r\nto the end");
  CHECK(reply.error == "");
  CHECK(reply.body == "to the end");
}

TEST_CASE("a server that leaves or breaks off is an error that says so") {
  const std::string closed = ": the server closed the connection ";
  CHECK(reply_to("").error.find(closed + "instead of a response") != std::string::npos);
  const HttpReply torn = reply_to("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
  CHECK(torn.kind == "connection closed");
  CHECK(torn.error.find(closed + "in the middle of a response") != std::string::npos);
  CHECK(torn.body == "half");
  CHECK(reply_to("nonsense\r\n\r\n").kind == "bad response");
}

TEST_CASE("a server that says nothing is given up after the timeout") {
  MockHttpServer server([](MockConnection& connection) {
    while (!connection.request().empty()) continue;
  });
  const HttpAddress address = parse_http_address(server.url());
  const HttpReply reply =
      fetch(address, http_request("GET", address, "/", "", ""), std::chrono::milliseconds(200));
  CHECK(reply.kind == "timeout");
  CHECK(reply.error == server.url() + ": nothing came for 0.2 s");
}

TEST_CASE("a server that is not there is named") {
  std::string url;
  {
    MockHttpServer server([](MockConnection&) {});
    url = server.url();
  }
  const HttpAddress address = parse_http_address(url);
  CHECK_THROWS_WITH_AS(
      fetch(address, ""),
      (url + ": Connection refused (ECONNREFUSED); is a server running there?").c_str(), Error);
}

namespace {

struct Count : HttpExchange {
  void on_head(const ResponseParser&) override {}
  void on_body(std::string_view) override {}
  void on_end(const std::string&, const std::string& what) override {
    ++ended;
    error = what;
  }
  int ended = 0;
  std::string error;
};

void finish(HttpClient& client) {
  while (client.in_flight() > 0) client.poll(std::chrono::seconds(1));
}

}  // namespace

TEST_CASE("connections are used again, until a server wants them closed") {
  std::atomic<bool> close = false;
  MockHttpServer server([&](MockConnection& connection) {
    while (!connection.request().empty()) {
      const bool last = close;
      connection.send(testing::response("200 OK", "", last ? "Connection: close\r\n" : ""));
      if (last) return;
    }
  });
  HttpClient client(std::chrono::seconds(20));
  const HttpAddress address = parse_http_address(server.url());
  const std::size_t number = client.add_server(address);
  const std::string request = http_request("GET", address, "/", "", "");
  Count count;
  for (int i = 0; i < 3; ++i) {
    client.send(number, request, count);
    finish(client);
  }
  CHECK(server.connections() == 1);
  close = true;
  for (int i = 0; i < 3; ++i) {
    client.send(number, request, count);
    finish(client);
  }
  CHECK(server.connections() == 3);
  CHECK(count.ended == 6);
  CHECK(count.error == "");
}

TEST_CASE("a connection that the server closed while it was idle is replaced") {
  MockHttpServer server([&](MockConnection& connection) {
    connection.request();
    connection.send(testing::response("200 OK", ""));  // and closes without announcing it
  });
  HttpClient client(std::chrono::seconds(20));
  const HttpAddress address = parse_http_address(server.url());
  const std::size_t number = client.add_server(address);
  Count count;
  for (int i = 0; i < 20; ++i) {
    client.send(number, http_request("GET", address, "/", "", ""), count);
    finish(client);
  }
  CHECK(count.ended == 20);
  CHECK(count.error == "");
}

TEST_CASE("many exchanges run at once") {
  MockHttpServer server([&](MockConnection& connection) {
    while (!connection.request().empty()) connection.send(testing::response("200 OK", "body"));
  });
  HttpClient client(std::chrono::seconds(60));
  const HttpAddress address = parse_http_address(server.url());
  const std::size_t number = client.add_server(address);
  std::vector<Count> counts(100);
  for (Count& count : counts) {
    client.send(number, http_request("GET", address, "/", "", ""), count);
  }
  finish(client);
  for (const Count& count : counts) CHECK(count.ended == 1);
  CHECK(server.connections() == 100);
}

}  // namespace nvllm::launcher
