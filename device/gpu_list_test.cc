#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "device/topology.h"

namespace nvllm {
namespace {

using Strings = std::vector<std::string>;

// Folders that look like /proc/driver/nvidia/gpus and /dev, gone when the test ends.
class FakeDriver {
 public:
  FakeDriver() {
    const char* base = std::getenv("TEST_TMPDIR");
    std::string pattern = std::string(base ? base : "/tmp") + "/gpusXXXXXX";
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    std::filesystem::create_directories(root_ / "proc");
    std::filesystem::create_directories(root_ / "dev");
  }
  ~FakeDriver() { std::filesystem::remove_all(root_); }

  void add(const std::string& bus, int minor, const std::string& uuid,
           const char* excluded = "No") {
    std::filesystem::create_directories(root_ / "proc" / bus);
    std::ofstream(root_ / "proc" / bus / "information")
        << "Model: \t\t NVIDIA H200\nGPU UUID: \t " << uuid
        << "\nBus Type: \t PCIe\nDevice Minor: \t " << minor << "\nGPU Excluded:\t " << excluded
        << "\n";
    std::ofstream(dev() + "/nvidia" + std::to_string(minor)) << "";
  }
  std::string proc() const { return root_ / "proc"; }
  std::string dev() const { return root_ / "dev"; }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST_CASE("GPUs are listed by bus address, whatever their minor numbers") {
  FakeDriver driver;
  driver.add("0000:3b:00.0", 0, "GPU-b");
  driver.add("0000:07:00.0", 1, "GPU-a");
  driver.add("0000:d8:00.0", 2, "GPU-c");
  CHECK(gpu_uuids_of_driver(driver.proc(), driver.dev()) == Strings{"GPU-a", "GPU-b", "GPU-c"});
}

TEST_CASE("a GPU without a device file here, or taken out of service, is not listed") {
  FakeDriver driver;
  driver.add("0000:07:00.0", 0, "GPU-a");
  driver.add("0000:08:00.0", 1, "GPU-b");
  driver.add("0000:09:00.0", 2, "GPU-c", "Yes");
  std::filesystem::remove(driver.dev() + "/nvidia0");
  CHECK(gpu_uuids_of_driver(driver.proc(), driver.dev()) == Strings{"GPU-b"});
}

TEST_CASE("where the driver's files do not tell, nothing is claimed") {
  FakeDriver driver;
  CHECK_FALSE(gpu_uuids_of_driver(driver.proc(), driver.dev()));
  CHECK_FALSE(gpu_uuids_of_driver(driver.proc() + "/nowhere", driver.dev()));
  driver.add("0000:07:00.0", 0, "GPU-" + std::string(8, '?'));
  CHECK_FALSE(gpu_uuids_of_driver(driver.proc(), driver.dev()));
}

}  // namespace nvllm
