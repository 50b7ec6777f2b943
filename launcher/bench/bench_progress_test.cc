#include "launcher/bench/bench_progress.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace nvllm::launcher {

TEST_CASE("the line says how many requests are done, and comes five times a second") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  BenchProgress progress(0);
  std::vector<RequestRecord> records(3);
  records[0].tokens = 100;
  records[0].finished = true;
  records[1].tokens = 20;
  CHECK(progress.line({}, 8, kSecond) == "");
  CHECK(progress.clear() == "");
  CHECK(progress.line(records, 8, kSecond / 10) == "");
  const std::string line = progress.line(records, 8, 2 * kSecond);
  CHECK(line.find("measuring 1 of 8 requests done, 120 tokens, 60.0 tok/s") != std::string::npos);
  CHECK(line.find('\n') == std::string::npos);
  CHECK(progress.line(records, 8, 2 * kSecond + kSecond / 5 - 1) == "");
  CHECK(progress.line(records, 8, 2 * kSecond + kSecond / 5) != "");
  CHECK(progress.clear() != "");
  CHECK(progress.clear() == "");
  CHECK(progress.line(records, 0, 3 * kSecond).find("1 of 3 requests") != std::string::npos);
}

}  // namespace nvllm::launcher
