#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "launcher/hub/net/http_session.h"
#include "launcher/serve/http/http_server.h"
#include "launcher/serve/http/listen_socket.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using model::TestFolder;
using testing::error_of;
using testing::has;

TEST_CASE("a URL in its parts") {
  const Url url = parse_url("https://huggingface.co/a/b?x=1#part");
  CHECK(url.https);
  CHECK(url.authority() == "huggingface.co");
  CHECK(url.target == "/a/b?x=1");
  CHECK(parse_url("http://[::1]:8080").authority() == "[::1]:8080");
  CHECK(parse_url("http://user:secret@host").origin() == "http://host");
  CHECK(parse_url("http://host?x").target == "/?x");
  for (const char* const bad : {"ftp://host", "http://", "http://host:port", "http://host:999999",
                                "http://a b", "http://host/\r\nX: y"}) {
    CHECK(error_of([&] { parse_url(bad); }) != "");
  }
}

TEST_CASE("a redirect may leave the host, but not the encryption") {
  const Url base = parse_url("https://hub/a");
  CHECK(redirected(base, "/b").text() == "https://hub/b");
  CHECK(redirected(base, "//cdn/b").text() == "https://cdn/b");
  CHECK(redirected(base, "https://cdn/b").text() == "https://cdn/b");
  CHECK(has(error_of([&] { redirected(base, "http://cdn/b"); }), "where nothing is encrypted"));
  CHECK(error_of([&] { redirected(base, ""); }) != "");
}

// A self-signed certificate for "localhost"; false: openssl is not installed.
bool make_certificate(const TestFolder& folder) {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
      "-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout " +
      folder.path("key.pem") + " -out " + folder.path("certificate.pem") + " 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

// The body read from a server that sends these bytes and closes the connection.
std::string body_of(const std::string& sent, const std::string& scheme = "http") {
  const ListenSocket listening = listen_tcp("127.0.0.1", 0);
  const std::jthread server([&] {
    pollfd polled{listening.fd.get(), POLLIN, 0};
    ::poll(&polled, 1, 20'000);
    const UniqueFd client(::accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<char, 4096> request;
    if (::read(client.get(), request.data(), request.size()) <= 0) return;
    CHECK(::write(client.get(), sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
  });
  Network network({.first_answer = std::chrono::seconds(20)});
  HttpSession session(network);
  session.begin("GET", parse_url(str(scheme, "://127.0.0.1:", listening.port, "/x")), "");
  return session.whole_body(100);
}

TEST_CASE("an answer may end with its connection, unless it told its length") {
  CHECK(body_of("HTTP/1.0 200 OK\r\n\r\nall of it") == "all of it");
  CHECK(has(error_of([] { body_of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"); }),
            "closed the connection in the middle of its answer"));
  CHECK(has(error_of([] { body_of(""); }), "closed the connection before it answered"));
}

TEST_CASE("https: a certificate must be trusted, and of the host") {
  const TestFolder folder;
  if (!make_certificate(folder)) SKIP_TEST("no program 'openssl' that makes a certificate");
  HttpServer* running = nullptr;
  const auto answer = [&](ExchangeId exchange, HttpRequest request) {
    running->send({{.exchange = exchange, .status = 200, .body = request.path, .last = true}});
  };
  HttpServer server({.port = 0,
                     .tls_certificate = folder.path("certificate.pem"),
                     .tls_key = folder.path("key.pem")},
                    {.request = answer, .gone = [](ExchangeId) {}, .error_body = {}});
  running = &server;
  server.start();
  const auto ask = [&](const std::string& host) {
    Network network({.first_answer = std::chrono::seconds(5)});
    HttpSession session(network);
    session.begin("GET", parse_url(str("https://", host, ':', server.port(), "/x")), "");
    return session.whole_body(100);
  };
  // The library reads the variable once, with its first connection.
  ::setenv("SSL_CERT_FILE", folder.path("certificate.pem").c_str(), 1);
  CHECK(ask("localhost") == "/x");
  const std::string other = error_of([&] { ask("127.0.0.1"); });
  CHECK(has(other, "its certificate is not accepted: IP address mismatch"));
  CHECK(has(other, "set SSL_CERT_FILE"));
  // Another certificate under the same name.
  const TestFolder stranger;
  REQUIRE(make_certificate(stranger));
  HttpServer impostor({.port = 0,
                       .tls_certificate = stranger.path("certificate.pem"),
                       .tls_key = stranger.path("key.pem")},
                      {.request = [](ExchangeId, const HttpRequest&) {},
                       .gone = [](ExchangeId) {},
                       .error_body = {}});
  impostor.start();
  Network network({.first_answer = std::chrono::seconds(5)});
  HttpSession session(network);
  const Url url = parse_url(str("https://localhost:", impostor.port(), "/"));
  CHECK(has(error_of([&] { session.begin("GET", url, ""); }), "its certificate is not accepted"));
}

TEST_CASE("https: a server that speaks no TLS is named, with what OpenSSL says") {
  const std::string why =
      error_of([] { body_of("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "https"); });
  CHECK(why.starts_with("https://127.0.0.1:"));
  CHECK(has(why, ": no TLS connection: "));
  CHECK(has(why, "wrong version number"));
}

}  // namespace
}  // namespace nvllm::launcher
