// mock_server: the server with a mock engine, to measure the server alone.
//
//   mock_server MODEL_FOLDER [--port N] [--step-us N] [--max-num-seqs N] [--max-model-len N]
//
// On SIGTERM or Ctrl-C it ends, and prints as JSON the tokens that it sent, the requests, its
// processor time, and the largest memory that it took.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "launcher/serve/server.h"
#include "launcher/serve/testing/mock_engine.h"

namespace nvllm::launcher {
namespace {

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

long peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

struct Arguments {
  std::string model;
  std::int64_t port = 8000;
  std::int64_t step_us = 0;
  std::int64_t max_model_len = 32768;
  std::int64_t max_num_seqs = 1 << 20;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      arguments.model = name;
      continue;
    }
    if (i + 1 == argc) fail(name, " needs a value");
    const std::int64_t value = std::atoll(argv[++i]);
    if (name == "--port") {
      arguments.port = value;
    } else if (name == "--step-us") {
      arguments.step_us = value;
    } else if (name == "--max-num-seqs") {
      arguments.max_num_seqs = value;
    } else if (name == "--max-model-len") {
      arguments.max_model_len = value;
    } else {
      fail("unknown option ", name);
    }
  }
  if (arguments.model.empty())
    fail("usage: mock_server MODEL_FOLDER [--port N] [--step-us N] [--max-num-seqs N]");
  return arguments;
}

int run(const Arguments& arguments) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const int stop = ::signalfd(-1, &signals, SFD_CLOEXEC);

  const TextModel text = TextModel::open(arguments.model);
  const auto ids = text.tokenizer().encode(
      "The lighthouse keeper's \"little\" boat drifted slowly,\nfar away. ", false);
  MockEngine engine({.step = std::chrono::microseconds(arguments.step_us),
                     .tokens = {ids.begin(), ids.end()},
                     .max_num_seqs = arguments.max_num_seqs});
  Server server({.port = arguments.port, .max_queued_requests = 1 << 20});
  server.start();
  server.open(engine,
              {.text = &text, .max_model_len = arguments.max_model_len, .model_names = {"mock"}},
              {.model_name = "mock"});
  std::fprintf(stderr, "listening on %s\n", server.address().c_str());
  const double processor_before = processor_seconds();
  std::uint64_t tokens = 0, ends = 0;
  pollfd stopping{stop, POLLIN, 0};
  while (::poll(&stopping, 1, 0) == 0) {
    const std::vector<runtime::Update> updates = engine.poll(std::chrono::milliseconds(50));
    for (const runtime::Update& update : updates) {
      tokens += update.tokens.size();
      ends += update.finish != runtime::FinishReason::none ? 1 : 0;
    }
    server.apply(updates, engine.load());
    server.tick();
  }
  const double used = processor_seconds() - processor_before;
  server.stop(std::chrono::seconds(1));
  std::printf("{\"tokens\": %llu, \"answers\": %llu, \"processor_s\": %.3f, \"peak_kib\": %ld}\n",
              static_cast<unsigned long long>(tokens), static_cast<unsigned long long>(ends), used,
              peak_kib());
  return 0;
}

}  // namespace
}  // namespace nvllm::launcher

int main(int argc, char** argv) {
  try {
    return nvllm::launcher::run(nvllm::launcher::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mock_server: %s\n", error.what());
    return 1;
  }
}
