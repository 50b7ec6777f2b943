// The doctor as a program: on this machine, and with simulated defects.
#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "device/topology.h"
#include "launcher/testing/program.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using testing::kNotAllowed;
using testing::Program;

struct Outcome {
  int exit_code;
  Json json;
  std::string errors;

  const Json& finding(const std::string& subject) const {
    for (const Json& one : json.at("findings")) {
      if (one.at("subject") == subject) return one;
    }
    FAIL("nothing is said of " << subject << ": " << json_text(json));
    return json;
  }
};

Outcome doctor(const std::function<void()>& prepare = {}) {
  Program program({"doctor", "--json"}, prepare);
  const int exit_code = program.wait();
  if (exit_code == kNotAllowed) return {exit_code, {}, ""};
  REQUIRE_MESSAGE(Json::accept(program.output()), program.errors());
  return {exit_code, parse_json(program.output()), program.errors()};
}

// Replaces the machine's GPUs by these.
std::function<void()> with_gpus(const std::string& setting, const std::string& more = "") {
  return [=] {
    const auto folder = std::filesystem::absolute("launcher/doctor/fake_nvml");
    ::setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
    ::setenv("FAKE_NVML", setting.c_str(), 1);
    if (!more.empty()) ::setenv("CUDA_VISIBLE_DEVICES", more.c_str(), 1);
  };
}

bool has_real_gpus() {
  return std::filesystem::exists("/proc/driver/nvidia/gpus");
}

}  // namespace

TEST_CASE("every part of this machine is told, in lines for people") {
  Program program({"doctor"});
  CHECK(program.wait() <= 1);
  const std::string text = program.output();
  INFO(text);
  for (const char* const part : {"driver", "cuBLASLt", "NCCL", "memory lock limit", "processor",
                                 "NUMA", "huge pages", "/dev/shm", "default model"}) {
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(text.find('\033') == std::string::npos);
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("without a driver nothing stops, and the exit code is 0") {
  if (has_real_gpus()) SKIP_TEST("needs a machine without a driver");
  const Outcome outcome = doctor();
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.errors == "");
  CHECK(outcome.json.at("works") == true);
  CHECK(outcome.finding("driver").at("verdict") == "note");
  CHECK(outcome.json.at("gpus").empty());
}

TEST_CASE("GPUs, their links and their driver are what NVML tells") {
  if (has_real_gpus()) SKIP_TEST("needs a machine without a driver");
  const Outcome outcome = doctor(with_gpus("gpus=3 nvlink", "2,0"));
  const Json& json = outcome.json;
  CHECK(json.at("driver") == "580.82.07");
  CHECK(json.at("driver_cuda_version") == 13000);
  REQUIRE(json.at("gpus").size() == 3);
  CHECK(json.at("gpus")[1].at("name") == "Fake H200");
  CHECK(json.at("gpus")[1].at("pci") == "0000:3c:00.0");
  CHECK(json.at("gpus")[1].at("compute_capability") == 90);
  CHECK(json.at("gpus")[1].at("nvlinks") == 18);
  CHECK(json.at("gpus")[1].at("visible") == false);
  CHECK(json.at("gpus")[2].at("visible") == true);
  CHECK(json.at("peer_links").size() == 3);
  CHECK(outcome.finding("peer links").at("found") ==
        "NVLink (18 links each) between GPUs 0-1, 0-2, 1-2");
}

TEST_CASE("GPUs that cannot read each other are told") {
  if (has_real_gpus()) SKIP_TEST("needs a machine without a driver");
  const Outcome outcome = doctor(with_gpus("gpus=2 apart"));
  CHECK(outcome.finding("peer links").at("found") == "one PCIe switch between GPUs 0-1");
  CHECK(outcome.finding("peer access").at("verdict") == "warning");
}

TEST_CASE("a driver that does not start is told with its reason") {
  if (has_real_gpus()) SKIP_TEST("needs a machine without a driver");
  const Outcome outcome = doctor(with_gpus("error=18"));
  CHECK(outcome.finding("driver").at("found") == "no NVIDIA GPU: Driver/library version mismatch");
}

TEST_CASE("the limit of locked memory is the process's own") {
  const Outcome outcome = doctor([] {
    const rlimit limit{65536, 65536};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
  });
  CHECK(outcome.json.at("memory_lock_bytes") == 65536);
  CHECK(outcome.finding("memory lock limit").at("found").get<std::string>().starts_with("64 KiB"));
}

TEST_CASE("a tiny /dev/shm stops nvllm: exit code 1, and the fix") {
  const Outcome outcome = doctor([] {
    if (!testing::mount_own_shm("size=64k")) ::_exit(kNotAllowed);
  });
  if (outcome.exit_code == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.json.at("works") == false);
  const Json& finding = outcome.finding("/dev/shm");
  CHECK(finding.at("verdict") == "stops");
  CHECK(finding.at("fix").get<std::string>().starts_with("mount -o remount,size="));
  CHECK(outcome.errors.starts_with("nvllm-launch: /dev/shm: 64 KiB, "));
  CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
}

TEST_CASE("a /dev/shm that cannot be written stops nvllm") {
  const Outcome outcome = doctor([] {
    if (!testing::mount_own_shm("size=64m", MS_RDONLY)) ::_exit(kNotAllowed);
  });
  if (outcome.exit_code == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.finding("/dev/shm").at("found") == "Read-only file system (EROFS)");
}

TEST_CASE("a default model that is not there, and no place for one") {
  CHECK(doctor([] { ::setenv("XDG_CACHE_HOME", "/nowhere", 1); })
            .finding("default model")
            .at("fix") == "nvllm-launch pull Qwen/Qwen3-0.6B, or pass --model");
  CHECK(doctor([] {
          ::unsetenv("XDG_CACHE_HOME");
          ::unsetenv("HOME");
        })
            .finding("default model")
            .at("fix") == "set one of them, or pass --model");
}

}  // namespace nvllm::launcher
