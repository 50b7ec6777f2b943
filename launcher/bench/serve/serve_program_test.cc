// bench serve as users run it, against a server that streams and against a missing one.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/bench/testing/mock_http_server.h"
#include "launcher/testing/program.h"
#include "launcher/testing/test_file.h"

namespace nvllm::launcher {
namespace {

using testing::chunk;
using testing::MockConnection;
using testing::MockHttpServer;
using testing::Program;

const std::string kStream =
    testing::kStreamHead + chunk("data: {\"choices\":[{\"text\":\"a\"}]}\n\n") +
    chunk("data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n") +
    chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n") +
    chunk("data: [DONE]\n\n") + testing::kLastChunk;

void serve(MockConnection& connection) {
  while (true) {
    const std::string request = connection.request();
    if (request.empty()) return;
    if (request.starts_with("GET /v1/models ")) {
      connection.send(testing::response("200 OK", R"({"data":[{"id":"listed"}]})"));
    } else if (request.find("\"model\":\"listed\"") == std::string::npos) {
      connection.send(testing::response("404 Not Found", R"({"error":{"message":"no model"}})"));
    } else if (request.find("Authorization: Bearer secret\r\n") == std::string::npos) {
      connection.send(testing::response("401 Unauthorized", R"({"error":{"message":"who?"}})"));
    } else {
      connection.send(kStream);
    }
  }
}

std::vector<std::string> words(const std::string& url, std::vector<std::string> more) {
  std::vector<std::string> all = {"bench",       "serve", "--base-url",   url, "--num-prompts", "9",
                                  "--input-len", "4",     "--output-len", "2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE("a server is measured, by the model that it lists") {
  MockHttpServer server(serve);
  const TestFile requests("");
  Program program(words(server.url() + "/v1", {"--api-key", "secret", "--max-concurrency", "2",
                                               "--json", "--save-requests", requests.path()}));
  CHECK(program.wait() == 0);
  CHECK(program.errors() == "");
  const nlohmann::json json = parse_json(program.output());
  CHECK(json.at("model_id") == "listed");
  CHECK(json.at("completed") == 9);
  CHECK((json.at("total_input_tokens") == 36 && json.at("total_output_tokens") == 18));
  const std::string lines = requests.text();
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 9);
}

TEST_CASE("a file of requests is opened before the run, and only replaces one of its kind") {
  MockHttpServer server(serve);
  const auto run = [&](const std::string& path) {
    return Program(words(server.url(), {"--api-key", "secret", "--save-requests", path}));
  };
  Program nowhere = run("/nowhere/requests");
  CHECK(nowhere.wait() == 1);
  CHECK(nowhere.errors() ==
        "nvllm-launch: --save-requests /nowhere/requests: No such file or directory (ENOENT)\n");
  CHECK(server.connections() == 0);

  const TestFile other("notes\n"), earlier("{\"base_url\":\"http://a\"}\n");
  Program refused = run(other.path());
  CHECK(refused.wait() == 2);
  CHECK(refused.errors() == "nvllm-launch: --save-requests " + other.path() +
                                ": is there already, and has no requests of a benchmark; pass "
                                "another file\n");
  CHECK(other.text() == "notes\n");
  CHECK(run(earlier.path()).wait() == 0);
  const std::string lines = earlier.text();
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 9);
}

TEST_CASE("the report is printed even if the requests cannot be saved") {
  MockHttpServer server(serve);
  Program program(
      words(server.url(), {"--api-key", "secret", "--json", "--save-requests", "/dev/full"}));
  CHECK(program.wait() == 1);
  CHECK(parse_json(program.output()).at("completed") == 9);
  CHECK(program.errors() ==
        "nvllm-launch: --save-requests /dev/full: No space left on device (ENOSPC)\n");
}

TEST_CASE("a run that never began leaves no file of requests") {
  const std::string path = TestFile("").path();
  Program program(words("http://127.0.0.1:1", {"--save-requests", path}));
  CHECK(program.wait() == 1);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("the client's processor time is that of the measurement, without the warm-up's") {
  MockHttpServer server(serve);
  Program program({"bench", "serve", "--base-url", server.url(), "--api-key", "secret", "--json",
                   "--num-prompts", "1", "--warmup", "2000", "--input-len", "4", "--output-len",
                   "2"});
  CHECK(program.wait() == 0);
  const nlohmann::json json = parse_json(program.output());
  const double cpu_s = json.at("client").at("cpu_s"), wall_s = json.at("duration");
  CHECK(cpu_s > 0);
  CHECK(cpu_s < wall_s + 0.02);  // one thread cannot use more; the warm-up takes several times that
}

TEST_CASE("what fails in the warm-up ends the run with the server's message") {
  MockHttpServer server(serve);
  Program refused(words(server.url(), {"--api-key", "wrong"}));
  CHECK(refused.wait() == 1);
  CHECK(refused.errors() == "nvllm-launch: the warm-up failed: HTTP 401: who?\n");
  Program unknown(words(server.url(), {"--model", "Qwen/other", "--warmup", "0"}));
  CHECK(unknown.wait() == 1);
  CHECK(unknown.errors() ==
        "nvllm-launch: no request succeeded; 9 of 9 failed with HTTP 404: no model\n");
}

TEST_CASE("a URL that is none is a wrong command line") {
  Program range(words("http://127.0.0.1:99999", {}));
  CHECK(range.wait() == 2);
  CHECK(range.errors() ==
        "nvllm-launch: --base-url: http://127.0.0.1:99999: port 99999: out of range; pass 1 to "
        "65535\n");
  for (const char* const url : {"http://127.0.0.1:abc", "http://127.0.0.1:-5"}) {
    Program program(words(url, {}));
    CHECK(program.wait() == 2);
    CHECK(program.errors() == std::string("nvllm-launch: --base-url: ") + url +
                                  ": has a port that is no number; pass http://HOST:PORT or "
                                  "unix:/PATH\n");
  }
}

TEST_CASE("a server that is not there, or speaks of no model, is named") {
  std::string url;
  {
    MockHttpServer server([](MockConnection& connection) {
      connection.request();
      connection.send(testing::response("200 OK", "hello"));
    });
    url = server.url();
    Program program(words(url, {}));
    CHECK(program.wait() == 1);
    CHECK(program.errors() == "nvllm-launch: " + url +
                                  "/v1/models: lists no model; pass --model NAME, or the "
                                  "--base-url of a server with the API of OpenAI\n");
  }
  Program program(words(url, {}));
  CHECK(program.wait() == 1);
  CHECK(program.errors() ==
        "nvllm-launch: " + url +
            ": Connection refused (ECONNREFUSED); is a server running there?\n");
  CHECK(program.output() == "");
}

}  // namespace nvllm::launcher
