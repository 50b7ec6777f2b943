#include "device/topology.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/error.h"

namespace nvllm {
namespace {

using Strings = std::vector<std::string>;
using Cores = std::vector<int>;

const Strings kUuids = {"GPU-3fa0c9d1-aaaa", "GPU-3fb1d2e3-bbbb", "GPU-90ab12cd-cccc",
                        "GPU-90ab12cd-dddd"};

TEST_CASE("CUDA_VISIBLE_DEVICES not set: all GPUs") {
  CHECK(select_gpus(std::nullopt, kUuids) == Strings{"0", "1", "2", "3"});
}

TEST_CASE("CUDA_VISIBLE_DEVICES empty or -1: none, and why") {
  for (const char* value : {"", "-1", " ", "NoDevFiles", "none"}) {
    std::string why;
    CHECK(select_gpus(value, kUuids, &why).empty());
    CHECK(why == std::string("CUDA_VISIBLE_DEVICES=") + value + " selects none of 4 GPUs");
  }
}

TEST_CASE("indices select in their order") {
  CHECK(select_gpus("2,0", kUuids) == Strings{"2", "0"});
  CHECK(select_gpus(" 1 , 3 ", kUuids) == Strings{"1", "3"});
}

TEST_CASE("UUIDs select, whole or by an unambiguous beginning, in any case of letters") {
  CHECK(select_gpus("GPU-90ab12cd-dddd,GPU-3fb", kUuids) ==
        Strings{"GPU-90ab12cd-dddd", "GPU-3fb"});
  CHECK(select_gpus("gpu-3FA", kUuids) == Strings{"gpu-3FA"});
  CHECK(select_gpus("GPU-3f", kUuids).empty());
  CHECK(select_gpus("GPU-", kUuids).empty());
}

TEST_CASE("the list ends before the first entry that names no GPU") {
  CHECK(select_gpus("1,-1,2", kUuids) == Strings{"1"});
  CHECK(select_gpus("0,4,1", kUuids) == Strings{"0"});
  CHECK(select_gpus("0,,1", kUuids) == Strings{"0"});
  CHECK(select_gpus("0,1x,2", kUuids) == Strings{"0"});
  CHECK(select_gpus("GPU-3fa,GPU-77,0", kUuids) == Strings{"GPU-3fa"});
}

TEST_CASE("a GPU named twice leaves none") {
  for (const char* value : {"0,1,0", "1,GPU-3fb1", "GPU-3fa,GPU-3fa0"}) {
    std::string why;
    CHECK(select_gpus(value, kUuids, &why).empty());
    CHECK(why.find("twice") != std::string::npos);
  }
}

TEST_CASE("MIG entries are passed on") {
  CHECK(select_gpus("MIG-1234,MIG-GPU-3fa/1/0", kUuids) == Strings{"MIG-1234", "MIG-GPU-3fa/1/0"});
}

TEST_CASE("names of GPUs are UUIDs, however they were selected, and no plain numbers") {
  CHECK(names_of_gpus({"2", "GPU-3fb"}, kUuids) == Strings{kUuids[2], kUuids[1]});
  CHECK(names_of_gpus({"MIG-1"}, kUuids) == Strings{"MIG-1"});
  CHECK(names_of_gpus({"0"}, {}).empty());
}

TEST_CASE("without GPUs nothing is selected") {
  std::string why;
  CHECK(select_gpus(std::nullopt, {}, &why).empty());
  CHECK_FALSE(why.empty());
  CHECK(select_gpus("0", {}).empty());
}

TEST_CASE("visible_gpus says why there are none") {
  std::string why;
  if (visible_gpus(&why).empty()) {
    CHECK_FALSE(why.empty());
  } else {
    CHECK(why.empty());
  }
}

TEST_CASE("cores are shared evenly, all of them, none twice") {
  const Cores cores = {0, 1, 2, 5, 6, 7, 8};
  Cores all;
  for (int rank = 0; rank < 3; ++rank) {
    const Cores share = share_of_cores(cores, rank, 3);
    CHECK(share.size() >= 2);
    CHECK(share.size() <= 3);
    all.insert(all.end(), share.begin(), share.end());
  }
  CHECK(all == cores);
}

TEST_CASE("with fewer cores than ranks each has one") {
  CHECK(share_of_cores({4, 9}, 0, 4) == Cores{4});
  CHECK(share_of_cores({4, 9}, 1, 4) == Cores{9});
  CHECK(share_of_cores({4, 9}, 2, 4) == Cores{4});
  CHECK(share_of_cores({}, 0, 4).empty());
}

TEST_CASE("lists of cores are read as the kernel writes them") {
  CHECK(parse_core_list("0-3,8,10-11\n") == Cores{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_core_list("").empty());
  for (const char* bad : {"x", "3-1", "1,,2", "-1", "0-", "0-99999999"}) {
    CHECK_THROWS_AS(parse_core_list(bad), Error);
  }
}

TEST_CASE("a process can be restricted to cores, with the threads it has and will have") {
  const Cores before = allowed_cores();
  REQUIRE_FALSE(before.empty());
  CHECK(std::is_sorted(before.begin(), before.end()));
  run_on_cores({});
  CHECK(allowed_cores() == before);
  run_on_cores({before.back()});
  CHECK(allowed_cores() == Cores{before.back()});
  Cores in_thread;
  std::thread([&] { in_thread = allowed_cores(); }).join();
  CHECK(in_thread == Cores{before.back()});
  run_on_cores(before);
  CHECK(allowed_cores() == before);
}

TEST_CASE("a PCI device that does not exist has no cores near") {
  CHECK(cores_near_pci_device("ffff:ff:1f.7").empty());
  CHECK(cores_near_pci_device("").empty());
  CHECK(cores_near_pci_device("../../../../etc").empty());
}

}  // namespace
}  // namespace nvllm
