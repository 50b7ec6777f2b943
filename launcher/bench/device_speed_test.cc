#include "launcher/bench/device_speed.h"

#include <doctest/doctest.h>

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

}  // namespace nvllm::launcher
