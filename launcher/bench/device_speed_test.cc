#include "launcher/bench/device_speed.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {

TEST_CASE("what is known of a device is not measured") {
  const DeviceSpeed speed = device_speed({.device = "NVIDIA H200"});
  CHECK(speed.bytes_per_second == 4.41e12);
  CHECK(speed.source == "known of the H200");
  CHECK_FALSE(known_speed("NVIDIA A100-SXM4-80GB"));
}

TEST_CASE("what the command line says goes first") {
  const DeviceSpeed given =
      device_speed({.device = "CPU, 2 cores", .bandwidth_tb_s = 0.5, .tflops = 2});
  CHECK(given.bytes_per_second == 0.5e12);
  CHECK(given.flops_per_second == 2e12);
  CHECK(given.attention_flops_per_second == 2e12);
  CHECK(given.source == "given");
  const DeviceSpeed half = device_speed({.device = "NVIDIA H200", .bandwidth_tb_s = 4.8});
  CHECK(half.bytes_per_second == 4.8e12);
  CHECK(half.flops_per_second == 650e12);
  CHECK(half.source == "given, known of the H200");
}

TEST_CASE("this machine's CPU is measured, and its ranks share it") {
  const DeviceSpeed speed = device_speed({.device = "CPU, 2 cores"});
  CHECK(speed.bytes_per_second > 1e8);
  CHECK(speed.bytes_per_second < 1e13);
  CHECK(speed.flops_per_second > 1e8);
  CHECK(speed.flops_per_second < 1e15);
  CHECK(speed.source == "measured");
}

TEST_CASE("a measurement that does not end is given up") {
  std::string why;
  try {
    device_speed({.device = "CPU, 2 cores", .limit = std::chrono::milliseconds(1)});
  } catch (const Error& error) {
    why = error.what();
  }
  CHECK(why ==
        "measuring the device for the floor: its process took more than 1.00 ms; pass --bandwidth "
        "and "
        "--tflops");
}

TEST_CASE("a thread that cannot be started is an Error with the reason and the fix") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more address space than any limit leaves");
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit little = before;  // room to begin with, but for no thread's stack
  little.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{2} << 20);
  REQUIRE(::setrlimit(RLIMIT_AS, &little) == 0);
  std::string why;
  try {
    device_speed({.device = "CPU, 2 cores"});
  } catch (const Error& error) {
    why = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  INFO(why);
  CHECK(why.starts_with(
      "measuring the device for the floor: starting a thread to read memory with: "));
  CHECK(why.ends_with("; see ulimit -u; or pass --bandwidth and --tflops"));
}

}  // namespace nvllm::launcher
