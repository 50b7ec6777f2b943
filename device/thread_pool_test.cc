#include "device/cpu/thread_pool.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "device/cpu/stream.h"
#include "device/topology.h"

namespace nvllm {
namespace {

using cpu::ThreadPool;
using Range = std::pair<std::int64_t, std::int64_t>;

std::vector<Range> ranges_of(ThreadPool& pool, std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.run(count, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

int threads_of_this_process() {
  int threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += entry.is_directory();
  }
  return threads;
}

TEST_CASE("the ranges make up the whole, start at multiples of the grain and are not shorter") {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (const std::int64_t count : {1, 2, 3, 7, 15, 16, 17, 64, 100, 1001}) {
      for (const std::int64_t grain : {1, 2, 3, 16, 64, 5000}) {
        CAPTURE(threads);
        CAPTURE(count);
        CAPTURE(grain);
        std::int64_t reached = 0;
        for (const Range& range : ranges_of(pool, count, grain)) {
          REQUIRE(range.first == reached);
          REQUIRE(range.second > range.first);
          REQUIRE(range.first % grain == 0);
          if (count >= grain) REQUIRE(range.second - range.first >= grain);
          reached = range.second;
        }
        REQUIRE(reached == count);
      }
    }
  }
}

TEST_CASE("nothing to do calls nothing") {
  ThreadPool pool(3);
  CHECK(ranges_of(pool, 0, 1).empty());
  CHECK(ranges_of(pool, 0, 16).empty());
}

TEST_CASE("what the parts wrote is there when run returns, thousands of times") {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(50);
  for (std::int64_t round = 1; round <= 5000; ++round) {
    pool.run(static_cast<std::int64_t>(values.size()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] += i;
    });
    for (std::size_t i = 0; i < values.size(); i += 7) {
      REQUIRE(values[i] == round * static_cast<std::int64_t>(i));
    }
  }
}

TEST_CASE("as many threads take part as the pool has") {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  CHECK(pool.size() == kThreads);
  // Each part stays until all have come.
  std::atomic<int> here{0};
  pool.run(kThreads, [&](std::int64_t begin, std::int64_t end) {
    REQUIRE(end == begin + 1);
    here.fetch_add(1);
    while (here.load() < kThreads) std::this_thread::yield();
  });
  CHECK(here.load() == kThreads);
}

TEST_CASE("a call from within a part is done alone by that thread") {
  ThreadPool pool(2);
  std::atomic<std::int64_t> sum{0};
  pool.run(4, [&](std::int64_t begin, std::int64_t end) {
    const std::thread::id self = std::this_thread::get_id();
    for (std::int64_t i = begin; i < end; ++i) {
      pool.run(10, [&](std::int64_t inner_begin, std::int64_t inner_end) {
        CHECK(std::this_thread::get_id() == self);
        for (std::int64_t k = inner_begin; k < inner_end; ++k) sum.fetch_add(k);
      });
    }
  });
  CHECK(sum.load() == 4 * 45);
}

TEST_CASE("callers at the same time get their own sums") {
  ThreadPool pool(2);
  std::atomic<int> wrong{0};
  const auto call = [&](std::int64_t factor) {
    for (int round = 0; round < 500; ++round) {
      std::atomic<std::int64_t> sum{0};
      pool.run(64, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t part = 0;
        for (std::int64_t i = begin; i < end; ++i) part += factor * i;
        sum.fetch_add(part);
      });
      wrong += sum.load() != factor * (63 * 64 / 2);
    }
  };
  std::thread other([&] { call(3); });
  std::thread third([&] { call(5); });
  call(1);
  other.join();
  third.join();
  CHECK(wrong.load() == 0);
}

TEST_CASE("what a part throws is thrown to the caller, and the pool works on") {
  ThreadPool pool(3);
  for (const std::int64_t bad : {0, 17, 29}) {
    CAPTURE(bad);
    const auto part = [&](std::int64_t begin, std::int64_t end) {
      if (begin <= bad && bad < end) throw std::runtime_error("part of " + std::to_string(bad));
    };
    CHECK_THROWS_WITH_AS(pool.run(30, part), ("part of " + std::to_string(bad)).c_str(),
                         std::runtime_error);
    CHECK(ranges_of(pool, 30, 1).back().second == 30);
  }
}

TEST_CASE("no thread starts before there is work to share") {
  const int before = threads_of_this_process();
  ThreadPool pool(3);
  CHECK(pool.size() == 3);
  ranges_of(pool, 15, 8);  // one range
  CHECK(threads_of_this_process() == before);
  ranges_of(pool, 3, 1);
  CHECK(threads_of_this_process() == before + 2);
}

TEST_CASE("a pool that has not worked yet works after a fork") {
  ThreadPool pool(2);
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<std::int64_t> sum{0};
    pool.run(100, [&](std::int64_t begin, std::int64_t end) { sum.fetch_add(end - begin); });
    _exit(sum.load() == 100 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("an idle pool uses no processor time") {
  ThreadPool pool(4);
  ranges_of(pool, 100, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it spins for less
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(seconds < 0.05);  // three spinning threads would use 0.2 at least
}

TEST_CASE("by itself a pool has a thread per core") {
  CHECK(ThreadPool().size() == static_cast<int>(allowed_cores().size()));
}

TEST_CASE("the streams of a backend share its pool, also in graphs") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto other = backend->create_stream();
  ThreadPool& pool = cpu::stream(*stream).thread_pool();
  CHECK(&pool == &cpu::stream(*other).thread_pool());

  std::vector<int> values(1000, 0);
  const auto graph = backend->capture(*stream, [&] {
    cpu::stream(*stream).submit([&values, &pool] {
      pool.run(1000, 10, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++values[i];
      });
    });
  });
  graph->launch(*stream);
  graph->launch(*stream);
  stream->synchronize();
  CHECK(std::count(values.begin(), values.end(), 2) == 1000);
}

}  // namespace
}  // namespace nvllm
