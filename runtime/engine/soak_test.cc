// Random requests for a long time: all are answered, memory does not grow, and no block is
// referenced at the end. NVLLM_SOAK_REQUESTS sets their number; 10000 are a real soak.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "runtime/engine/testing/random_requests.h"
#include "runtime/engine/testing/test_engine.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr std::uint64_t kUnderWay = 64;  // maximum number of requests in flight

std::uint64_t requests_to_ask() {
  const char* wished = std::getenv("NVLLM_SOAK_REQUESTS");
  return wished == nullptr ? 300 : std::strtoull(wished, nullptr, 10);
}

// A process's resident memory.
std::uint64_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  std::uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Resident memory of the launcher and all ranks.
std::vector<std::uint64_t> all_resident_bytes(const TestEngine& engine) {
  std::vector<std::uint64_t> bytes = {resident_bytes(::getpid())};
  for (const pid_t pid : engine.pids()) bytes.push_back(resident_bytes(pid));
  return bytes;
}

EngineOptions small_and_busy() {
  EngineOptions options;
  options.max_model_len = 160;
  options.max_num_seqs = 24;
  options.max_num_batched_tokens = 128;
  // A block takes 8 KiB on each of two ranks. The cache holds little more than one sequence, and
  // the swap space less.
  options.block_size = 4;
  options.kv_cache_memory_bytes = 400 << 10;
  options.swap_space_bytes = 200 << 10;
  return options;
}

// Submits until all requests are answered, and aborts one in thirty.
class Soak {
 public:
  Soak(TestEngine& engine, const OpenModel& model)
      : engine_(engine), requests_({.vocabulary = model.config.vocab_size}, 5), random_(6) {}

  void run_to(std::uint64_t last) {
    while (finished_ < last) {
      while (submitted_ < last && submitted_ - finished_ < kUnderWay) ask();
      TestEngine::Book book;
      const std::size_t before = engine_.client().unfinished();
      engine_.poll_into(book);
      finished_ += before - engine_.client().unfinished();
      for (const auto& [id, answers] : book) take(answers);
    }
  }

  std::uint64_t errors() const { return errors_; }
  std::uint64_t tokens() const { return tokens_; }

 private:
  void ask() {
    engine_.client().submit(++submitted_, requests_.next());
    if (random_() % 30 == 0)
      engine_.client().abort(submitted_ - random_() % std::min(submitted_, kUnderWay));
  }
  void take(const std::vector<Answer>& answers) {
    for (const Answer& answer : answers) {
      tokens_ += answer.tokens.size();
      errors_ += answer.error.empty() ? 0 : 1;
    }
  }

  TestEngine& engine_;
  RandomRequests requests_;
  std::mt19937 random_;
  std::uint64_t submitted_ = 0, finished_ = 0, errors_ = 0, tokens_ = 0;
};

// Sanitizers keep freed memory to detect later uses, so memory grows.
constexpr bool kKeepsFreedMemory = testing::kSanitized;

TEST_CASE("soak: all requests are answered, memory is flat, and the cache is free in the end") {
  const std::uint64_t requests = requests_to_ask();
  const OpenModel model =
      open_model({.path = "tests/data/golden-models/qwen3-uneven", .dtype = DType::f32});
  TestEngine engine(model, 2, small_and_busy());
  Soak soak(engine, model);
  // One-time allocations (buffers that grew, touched pages of the cache) are complete after a
  // fifth.
  soak.run_to(requests / 5);
  const auto before = all_resident_bytes(engine);
  soak.run_to(requests);
  const auto after = all_resident_bytes(engine);
  CHECK(soak.errors() == 0);
  CHECK(soak.tokens() > requests);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (kKeepsFreedMemory) break;
    CAPTURE(i);
    CHECK(after[i] <= before[i] + (std::uint64_t{8} << 20));
    MESSAGE("process ", i, ": ", before[i] >> 10, " KiB, then ", after[i] >> 10, " KiB");
  }
  const SchedulerStatistics statistics = engine.client().statistics().scheduler;
  CHECK(statistics.running == 0);
  CHECK(statistics.waiting == 0);
  CHECK(statistics.free_blocks == statistics.total_blocks);
  CHECK(statistics.preemptions > 0);
  CHECK(statistics.prefix.hit_tokens > 0);
  engine.stop();
}

}  // namespace
}  // namespace nvllm::runtime
