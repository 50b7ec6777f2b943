// The engine on real workers: requests that are refused, aborted, or answered with several
// sequences, and calls between steps.
#include "runtime/engine/engine.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/rpc.h"
#include "runtime/engine/testing/test_engine.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr std::int64_t kPositions = 4096;

OpenModel small_model() {
  return open_model({.path = "tests/data/golden-models/qwen3-gqa-tied",
                     .overrides = str("{\"max_position_embeddings\": ", kPositions, "}"),
                     .dtype = DType::f32});
}

EngineOptions small_options() {
  EngineOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 256;
  options.kv_cache_memory_bytes = std::int64_t{8} << 20;
  return options;
}

Request request_of(std::size_t prompt, std::int32_t max_tokens) {
  Request request;
  for (std::size_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<std::int32_t>((7 * i + 3) % 500));
  }
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// No sequence, block or request is left.
void check_empty(TestEngine& engine) {
  const EngineStatistics statistics = engine.client().statistics();
  CHECK(statistics.scheduler.waiting == 0);
  CHECK(statistics.scheduler.running == 0);
  CHECK(statistics.scheduler.free_blocks == statistics.scheduler.total_blocks);
}

}  // namespace

TEST_CASE("what cannot be done is refused with the reason, and the others go on") {
  const OpenModel model = small_model();
  TestEngine engine(model, 1, small_options());
  std::vector<Request> requests(6, request_of(20, 5));
  requests[1].prompt[3] = 512;
  requests[2].prompt.clear();
  requests[3] = request_of(500'000, 5);
  requests[4].sampling.logprobs = 21;
  const auto answers = engine.run(requests);
  const std::string why[] = {"",
                             "the prompt holds token id 512; the vocabulary's ids are 0 to 511",
                             "prompt",
                             "max_model_len",
                             "logprobs 21",
                             ""};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    REQUIRE(answers[i].size() == 1);
    const Answer& answer = answers[i][0];
    if (why[i].empty()) {
      CHECK(answer.error.empty());
      CHECK(answer.tokens.size() == 5);
    } else {
      CAPTURE(answer.error);
      CHECK(answer.error.find(why[i]) != std::string::npos);
      CHECK(answer.tokens.empty());
    }
  }
  check_empty(engine);
  engine.stop();
}

TEST_CASE("a request whose id is taken is refused, and the one that has it goes on") {
  const OpenModel model = small_model();
  const ipc::Group group = ipc::Group::create({.size = 1});
  WorkerProcesses workers(group, model, 1);
  ipc::Member launcher = group.join(ipc::kLauncher);
  ipc::RequestClient front(launcher);  // an EngineClient sends no id twice
  front.send("open", small_options());
  RequestPacker packer;
  packer.add(7, request_of(20, 30));
  packer.add(7, request_of(20, 3));
  front.send("add", *packer.next());
  std::vector<std::string> errors;
  std::size_t tokens = 0;
  for (FinishReason finish = FinishReason::none; finish == FinishReason::none;) {
    const auto event = front.receive_event(std::chrono::seconds(20));
    REQUIRE(event.has_value());
    if (event->kind() != ipc::RequestEvent::Kind::push || event->name() != "updates") continue;
    std::vector<Update> updates;
    SchedulerStatistics statistics;
    event->read(updates, statistics);
    for (const Update& update : updates) {
      if (!update.error.empty()) errors.push_back(update.error);
      tokens += update.tokens.size();
      finish = update.finish;
    }
  }
  CHECK(errors == std::vector<std::string>{"request 7 is under way already"});
  CHECK(tokens == 30);
  group.request_stop();
  CHECK(workers.wait() == "");
}

// Bytes of the process's address space.
std::uint64_t address_space_of(pid_t pid) {
  std::uint64_t pages = 0;
  std::ifstream(str("/proc/", pid, "/statm")) >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST_CASE("a request that the system refuses memory for is refused, and the engine goes on") {
  if (testing::device_under_test() != DeviceKind::cpu) return;
  if (testing::kSanitized) return;  // their allocators end the process
  const OpenModel model = small_model();
  TestEngine engine(model, 1, small_options());
  const pid_t pid = engine.pids()[0];
  const rlimit tight{.rlim_cur = address_space_of(pid) + (std::uint64_t{64} << 20),
                     .rlim_max = RLIM_INFINITY};
  REQUIRE(::prlimit(pid, RLIMIT_AS, &tight, nullptr) == 0);
  Request request = request_of(4000, 1);
  request.sampling.n = 16384;  // 250 MiB of tokens
  const Answers refused = engine.run({request}, 1);
  CHECK(
      refused[0][0].error.starts_with("n 16384: the system refuses memory for as many sequences "
                                      "of 4000 tokens; pass a smaller n"));
  CHECK(engine.run({request_of(20, 5)}, 2)[0][0].tokens.size() == 5);
  check_empty(engine);
  engine.stop();
}

TEST_CASE("n answers are those of n requests with the seeds that follow") {
  const OpenModel model = small_model();
  TestEngine engine(model, 1, small_options());
  Request request = request_of(20, 8);
  request.sampling.n = 4;
  request.sampling.seed = 11;
  const auto together = engine.run({request}, 1);
  REQUIRE(together[0].size() == 4);
  request.sampling.n = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    request.sampling.seed = 11 + i;
    CHECK(engine.run({request}, 10 + i)[0][0].tokens == together[0][i].tokens);
  }
  CHECK(together[0][0].tokens != together[0][1].tokens);
  check_empty(engine);
  engine.stop();
}

TEST_CASE("an engine's seed decides what requests without one say, and nothing else does") {
  const OpenModel model = small_model();
  const auto answers_of = [&](std::uint64_t seed) {
    EngineOptions options = small_options();
    options.seed = seed;
    TestEngine engine(model, 1, options);
    const auto answers = engine.run(std::vector<Request>(2, request_of(20, 8)));
    engine.stop();
    return std::vector{answers[0][0].tokens, answers[1][0].tokens};
  };
  const auto first = answers_of(5);
  CHECK(first == answers_of(5));
  CHECK(first != answers_of(6));
  CHECK(first[0] != first[1]);
}

TEST_CASE("aborted requests end as such, whether they run, wait or are over") {
  const OpenModel model = small_model();
  EngineOptions options = small_options();
  options.max_num_seqs = 2;
  TestEngine engine(model, 2, options);
  EngineClient& client = engine.client();
  for (std::uint64_t id = 1; id <= 4; ++id) client.submit(id, request_of(20, 2000));
  client.submit(5, request_of(20, 3));
  TestEngine::Book book;
  while (book[1].empty() || book[1][0].tokens.empty()) engine.poll_into(book);
  for (std::uint64_t id = 1; id <= 4; ++id) client.abort(id);
  while (client.unfinished() > 0) engine.poll_into(book);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    CAPTURE(id);
    CHECK(book[id][0].finish == FinishReason::abort);
    CHECK(book[id][0].tokens.size() < 2000);
  }
  CHECK(book[5][0].finish == FinishReason::length);
  client.abort(5);
  CHECK(client.poll(std::chrono::milliseconds(50)).empty());
  check_empty(engine);
  engine.stop();
}

TEST_CASE("an answer with log-probabilities of a long prompt is larger than the results ring") {
  const OpenModel model = small_model();
  TestEngine engine(model, 1, small_options());
  Request request = request_of(3000, 2);
  request.sampling.prompt_logprobs = 20;
  const Answer answer = engine.run({request})[0][0];
  CHECK(answer.tokens.size() == 2);
  REQUIRE(answer.prompt_logprobs.size() == 2999);
  for (std::size_t i = 0; i < answer.prompt_logprobs.size(); ++i) {
    REQUIRE(answer.prompt_logprobs[i].chosen.token == request.prompt[i + 1]);
    REQUIRE(answer.prompt_logprobs[i].top.size() == 20);
  }
  engine.stop();
}

TEST_CASE("times of a request follow each other") {
  const OpenModel model = small_model();
  TestEngine engine(model, 1, small_options());
  const std::int64_t begin = now_ns();
  engine.client().submit(1, request_of(20, 8));
  RequestTimes times;
  while (engine.client().unfinished() > 0) {
    for (const Update& update : engine.client().poll(std::chrono::seconds(1))) {
      if (update.finish != FinishReason::none) times = update.times;
    }
  }
  CHECK(times.arrived_ns >= begin);
  CHECK(times.scheduled_ns >= times.arrived_ns);
  CHECK(times.first_token_ns > times.scheduled_ns);
  CHECK(times.last_token_ns > times.first_token_ns);
  CHECK(times.last_token_ns <= now_ns());
  engine.stop();
}

TEST_CASE("statistics add up") {
  const OpenModel model = small_model();
  TestEngine engine(model, 2, small_options());
  std::vector<Request> requests(3, request_of(40, 10));
  requests.push_back(request_of(kPositions + 1, 10));  // is refused, and counts nowhere
  engine.run(requests);
  const EngineStatistics statistics = engine.client().statistics();
  CHECK(statistics.prompt_tokens == 120);
  CHECK(statistics.generated_tokens == 30);
  CHECK(statistics.scheduler.steps >= 10);
  CHECK(statistics.step_message_bytes > 0);
  CHECK(statistics.device_busy_s > 0);
  CHECK(statistics.host_s > 0);
  CHECK(statistics.waiting_s > 0);
  engine.stop();
}

TEST_CASE("an engine at rest has its ranks wait for their devices once, not at each question") {
  const OpenModel model = small_model();
  TestEngine engine(model, 2, small_options());
  engine.run({request_of(40, 10)});
  const auto calls = [&] { return engine.group().snapshot(1).call.number; };
  bool rests = false;
  for (int i = 0; i < 20 && !rests; ++i) {  // the engine may become idle between two polls
    const std::uint64_t before = calls();
    engine.client().statistics();
    engine.client().statistics();
    rests = calls() == before + 2;
  }
  CHECK(rests);
  engine.stop();
}

TEST_CASE("a trace shows the loop of rank 0 and the steps of all ranks") {
  const OpenModel model = small_model();
  EngineOptions options = small_options();
  options.profile = true;
  TestEngine engine(model, 2, options);
  engine.run({request_of(40, 10)});
  const std::vector<ProcessTrace> traces = engine.client().take_trace();
  REQUIRE(traces.size() == 2);
  CHECK(traces[0].name == "rank 0");
  CHECK(traces[1].name == "rank 1");
  std::map<std::string, int> spans;
  for (const TraceEvent& event : traces[0].events) {
    CHECK(event.end_ns >= event.begin_ns);
    ++spans[event.track + " " + event.name];
  }
  for (const char* name :
       {"host schedule", "host send", "host wait", "host complete", "host push"}) {
    CAPTURE(name);
    CHECK(spans[name] >= 10);
  }
  int steps = 0;
  for (const TraceEvent& event : traces[1].events) steps += event.name == "step" ? 1 : 0;
  CHECK(steps >= 10);
  engine.stop();
}

TEST_CASE("a group that is told to stop in the middle of its work ends in order") {
  const OpenModel model = small_model();
  TestEngine engine(model, 2, small_options());
  for (std::uint64_t id = 1; id <= 8; ++id) engine.client().submit(id, request_of(20, 2000));
  TestEngine::Book book;
  while (book.empty()) engine.poll_into(book);
  engine.stop();
}

TEST_CASE("on the CPU prompts are read in steps of a given time") {
  if (testing::device_under_test() != DeviceKind::cpu) return;
  const OpenModel model = small_model();
  const Request request = request_of(200, 4);
  const auto steps_of = [&](double prefill_step_s, std::vector<std::int32_t>& tokens) {
    EngineOptions options = small_options();
    options.prefill_step_s = prefill_step_s;
    TestEngine engine(model, 1, options);
    engine.client().submit(1, request);
    TestEngine::Book book;
    while (engine.client().unfinished() > 0) engine.poll_into(book);
    tokens = book[1].at(0).tokens;
    const EngineStatistics statistics = engine.client().statistics();
    CHECK(statistics.scheduler.completed_rows == statistics.scheduler.rows);
    engine.stop();
    return statistics.scheduler.steps;
  };
  std::vector<std::int32_t> whole, cut;
  CHECK(steps_of(0, whole) < 10);
  CHECK(steps_of(1e-9, cut) >= 200 / 16);  // no step is this short, so they have the minimum number
                                           // of rows
  CHECK(cut == whole);
}

TEST_CASE("layer-wise prompts are whole, also if --kv-offload auto has chosen that mode") {
  if (testing::device_under_test() != DeviceKind::cpu) return;
  const OpenModel model = small_model();
  const model::ModelConfig& config = model.config;
  EngineOptions options = small_options();
  options.prefill_step_s = 1e-9;
  options.kv_offload = KvOffload::automatic;
  options.kv_offloading_bytes = std::int64_t{64} << 20;
  options.kv_buffers = 2;
  options.max_num_seqs = 1;
  // A third of the one sequence fits.
  const std::int64_t token_bytes =
      config.layers * 2 * config.kv_heads * config.head_dim * std::int64_t{sizeof(float)};
  options.kv_cache_memory_bytes = kPositions * token_bytes / 3;
  TestEngine engine(model, 1, options);
  REQUIRE(engine.info().kv_mode == KvMode::layerwise);
  const Answers answers = engine.run({request_of(200, 4)});
  CHECK(answers[0][0].tokens.size() == 4);
  CHECK(engine.client().statistics().scheduler.steps < 10);
  engine.stop();
}

TEST_CASE("options that cannot be are an error of open, that says the fix") {
  const OpenModel model = small_model();
  EngineOptions options = small_options();
  options.max_model_len = 100'000;
  CHECK_THROWS_WITH_AS(TestEngine(model, 1, options), doctest::Contains("max-model-len 100000"),
                       Error);
}

}  // namespace nvllm::runtime
