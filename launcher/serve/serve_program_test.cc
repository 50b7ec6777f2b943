// `nvllm-launch serve` as a program: start, shutdown, and workers that die.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "launcher/serve/http/listen_socket.h"
#include "launcher/serve/testing/raw_client.h"
#include "launcher/testing/broken_weights.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"
#include "testing/error_of.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace {

using nvllm::testing::has;
using nvllm::testing::process_gone;
using nvllm::testing::Program;
using nvllm::testing::RawClient;
using nvllm::testing::TemporaryFolder;
using nvllm::testing::TextFolder;

// The server with the tiny model, and the port that it has found.
class ServeProgram {
 public:
  explicit ServeProgram(const std::vector<std::string>& more = {},
                        const std::function<void()>& prepare = {})
      : program_(folder_.arguments("serve", with_port(more)), prepare) {
    REQUIRE(program_.await_error("listening on http://127.0.0.1:"));
    port_ = find_port();
  }

  Program& program() { return program_; }
  RawClient client() const { return RawClient(port_); }
  std::uint16_t port() const { return port_; }

  bool becomes_healthy() const {
    for (int i = 0; i < 1000; ++i) {
      RawClient asking = client();
      asking.get("/health", "Connection: close\r\n");
      if (asking.read_all().starts_with("HTTP/1.1 200")) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

 private:
  static std::vector<std::string> with_port(std::vector<std::string> more) {
    more.insert(more.end(), {"--port=0", "--served-model-name=tiny"});
    return more;
  }
  std::uint16_t find_port() const {
    constexpr std::string_view kBefore = "listening on http://127.0.0.1:";
    const std::string errors = program_.errors();
    return static_cast<std::uint16_t>(
        std::stoi(errors.substr(errors.find(kBefore) + kBefore.size())));
  }

  TextFolder folder_;
  Program program_;
  std::uint16_t port_ = 0;
};

// A prompt whose tokenization takes many seconds.
constexpr std::size_t kLongPrompt = std::size_t{24} << 20;

constexpr const char* kLong =
    R"({"model": "tiny", "prompt": "Hi", "max_tokens": 50000, "ignore_eos": true})";
constexpr const char* kLongStream =
    R"({"model": "tiny", "prompt": "Hi", "max_tokens": 50000, "ignore_eos": true, "stream": true})";
constexpr const char* kShort = R"({"model": "tiny", "prompt": "Hi", "max_tokens": 4})";

}  // namespace

TEST_CASE("serve: a dead worker is named in every open answer, and the group comes back") {
  if (nvllm::testing::kThreadSanitized)
    SKIP_TEST("it refuses threads of a process forked from one that has threads");
  ServeProgram serve({"--tp=2"});
  RawClient whole = serve.client();
  whole.post("/v1/completions", kLong);
  RawClient stream = serve.client();
  stream.post("/v1/completions", kLongStream);
  stream.read_until("data: {");
  const std::vector<pid_t> before = serve.program().workers(2);
  ::kill(before[1], SIGKILL);
  const std::string why = "rank 1 (pid " + std::to_string(before[1]) + ") killed by SIGKILL";
  const std::string failed = whole.read_response();
  CHECK(failed.starts_with("HTTP/1.1 500"));
  CHECK(has(failed, why));
  CHECK(has(stream.read_until("data: [DONE]\n\n"), why));

  CHECK(serve.program().await_error("starting the workers again"));
  REQUIRE(serve.becomes_healthy());
  // The same connection goes on.
  whole.post("/v1/completions", kShort);
  CHECK(whole.read_response().starts_with("HTTP/1.1 200"));
  for (const pid_t pid : before) CHECK(process_gone(pid));
}

TEST_CASE("serve: without restarts the program ends as a worker's death ends it") {
  ServeProgram serve({"--no-restart-workers"});
  ::kill(serve.program().workers(1)[0], SIGKILL);
  CHECK(serve.program().wait() == 3);
  CHECK(has(serve.program().errors(), "killed by SIGKILL"));
}

TEST_CASE("serve: the end of standard input ends everything at once, where that is wanted") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const nvllm::UniqueFd reading(ends[0]);
  nvllm::UniqueFd writing(ends[1]);
  ServeProgram serve({"--exit-when-stdin-closes", "--tp=2"},
                     [&] { ::dup2(reading.get(), STDIN_FILENO); });
  const std::vector<pid_t> workers = serve.program().workers(2);
  RawClient stream = serve.client();
  stream.post("/v1/completions", kLongStream);
  stream.read_until("data: {");
  REQUIRE(::write(writing.get(), "x", 1) == 1);  // what comes is of no importance
  stream.read_until("data: {");
  writing.reset();
  CHECK(serve.program().wait() == 128 + SIGTERM);
  CHECK(has(serve.program().errors(), "standard input was closed"));
  for (const pid_t pid : workers) CHECK(process_gone(pid));
}

TEST_CASE("serve: a request whose client has left is logged as that, and not as answered later") {
  ServeProgram serve({"--enable-log-requests"});
  {
    RawClient leaving = serve.client();
    leaving.post("/v1/completions", kLongStream, "X-Request-Id: left\r\n");
    leaving.read_until("data: {");
  }
  REQUIRE(serve.program().await_error("request left /v1/completions 499: "));
  // Its answer arrives after the engine's last update for the client that left.
  RawClient client = serve.client();
  client.post("/v1/completions", kShort);
  CHECK(client.read_response().starts_with("HTTP/1.1 200"));
  serve.program().signal(SIGTERM);
  CHECK(serve.program().wait() == 0);
  CHECK_FALSE(has(serve.program().errors(), "request left /v1/completions 200"));
}

TEST_CASE("serve: SIGTERM finishes what is under way, and the program ends well") {
  ServeProgram serve;
  RawClient client = serve.client();
  client.post("/v1/completions",
              R"({"model": "tiny", "prompt": "Hi", "max_tokens": 300, "ignore_eos": true,
                  "stream": true})");
  client.read_until("data: {");
  serve.program().signal(SIGTERM);
  REQUIRE(serve.program().await_error("SIGTERM: finishing"));
  CHECK(has(client.read_until("data: [DONE]\n\n"), R"("finish_reason":"length")"));
  CHECK(serve.program().wait() == 0);
}

TEST_CASE("serve: what does not end in time is told so; a second signal ends it at once") {
  SUBCASE("the time") {
    ServeProgram serve({"--shutdown-timeout=0.2"});
    RawClient client = serve.client();
    client.post("/v1/completions", kLong);
    REQUIRE(serve.becomes_healthy());
    serve.program().signal(SIGTERM);
    const std::string failed = client.read_response();
    CHECK(failed.starts_with("HTTP/1.1 503"));
    CHECK(has(failed, "shut down before the answer was complete"));
    CHECK(serve.program().wait() == 0);
  }
  SUBCASE("the second signal") {
    ServeProgram serve;
    RawClient client = serve.client();
    client.post("/v1/completions", kLongStream);
    client.read_until("data: {");
    serve.program().signal(SIGTERM);
    REQUIRE(serve.program().await_error("SIGTERM: finishing"));
    serve.program().signal(SIGTERM);
    CHECK(serve.program().wait() == 128 + SIGTERM);
  }
}

TEST_CASE("serve: a thread of the pool that is busy with a text does not hold up the end") {
  const auto busy = [](const std::vector<std::string>& options,
                       const std::function<void(Program&)>& end) {
    ServeProgram serve(options);
    RawClient client = serve.client();
    client.post("/v1/completions",
                R"({"model": "tiny", "prompt": ")" + std::string(kLongPrompt, 'a') + "\"}");
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    end(serve.program());
    return serve.program().wait(std::chrono::milliseconds(4500));
  };
  CHECK(busy({"--no-restart-workers"},
             [](Program& program) { ::kill(program.workers(1)[0], SIGKILL); }) == 3);
  CHECK(busy({"--shutdown-timeout=0.2"}, [](Program& program) { program.signal(SIGTERM); }) == 0);
  CHECK(busy({}, [](Program& program) {
          program.signal(SIGTERM);
          REQUIRE(program.await_error("SIGTERM: finishing"));
          program.signal(SIGTERM);
        }) == 128 + SIGTERM);
}

TEST_CASE("serve: weights that are NaN are the server's fault, and the tensor is named") {
  const TemporaryFolder folder;
  nvllm::testing::make_broken_model(folder.path("model"));
  ServeProgram serve({"--model=" + folder.path("model"), "--load-format=auto", "--hf-overrides={}",
                      "--max-model-len=64"});
  RawClient client = serve.client();
  client.post("/v1/completions", R"({"model": "tiny", "prompt": [1, 2], "max_tokens": 3})");
  const std::string failed = client.read_response();
  CHECK(failed.starts_with("HTTP/1.1 500"));
  CHECK(has(failed, R"("type":"InternalServerError")"));
  CHECK(has(failed, std::string(nvllm::testing::kBrokenTensor) + " holds NaN at " +
                        nvllm::testing::kBrokenPlace));
  // Invalid requests are still the client's errors.
  client.post("/v1/completions", R"({"model": "tiny", "prompt": [1, 2], "max_tokens": 1000})");
  CHECK(client.read_response().starts_with("HTTP/1.1 400"));
}

TEST_CASE("serve: an address that is taken is named, with who holds it") {
  const nvllm::launcher::ListenSocket taken = nvllm::launcher::listen_tcp("127.0.0.1", 0);
  const TextFolder folder;
  Program program(folder.arguments("serve", {"--port=" + std::to_string(taken.port)}));
  CHECK(program.wait() == 1);
  CHECK(has(program.errors(), "cannot listen on 127.0.0.1:" + std::to_string(taken.port)));
  CHECK(has(program.errors(), "pass another --port"));
}

TEST_CASE("serve: wrong options are refused before anything starts") {
  const TextFolder folder;
  const auto complaint = [&](const std::vector<std::string>& options) {
    Program program(folder.arguments("serve", options));
    CHECK(program.wait() == 2);
    return program.errors();
  };
  CHECK(has(complaint({"--ssl-certfile=a.pem"}), "--ssl-certfile alone"));
  CHECK(has(complaint({"--enable-auto-tool-choice"}), "--tool-call-parser"));
  CHECK(has(complaint({"--reasoning-parser=none"}), "qwen3"));
}
