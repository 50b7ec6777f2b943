#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/testing/test_folder.h"
#include "runtime/runner/gemm_tuning.h"

namespace nvllm::runtime {
namespace {

using kernels::GemmConfigurations;
using model::TestFolder;

const std::string kHeader = "nvllm GEMM tuning, version 1\n";

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST_CASE(
    "what is added is read again, by other runs too, and replaces what was there for the same") {
  const TestFolder folder;
  const GemmTuningCache file(folder.path("new/folder/gemm_tuning.txt"));
  CHECK(file.read().configurations.empty());
  CHECK(file.read().problem == "");
  file.add({{"H200: a", "id=1"}, {"H200: b", "id=2"}});
  file.add({{"H200: b", "id=3"}, {"H100: a", "id=4"}});
  const GemmTuningCache::Contents contents = GemmTuningCache(file.path()).read();
  CHECK(contents.configurations ==
        GemmConfigurations{{"H100: a", "id=4"}, {"H200: a", "id=1"}, {"H200: b", "id=3"}});
  CHECK(contents.problem == "");
}

TEST_CASE(
    "lines that are no configuration are left out and told of in one line; writing drops them") {
  const TestFolder folder;
  const GemmTuningCache file(folder.path("gemm_tuning.txt"));
  put(file.path(), kHeader + "a\t1\nno tab\n\tno key\nno choice\t\nb\t2\nc\t\x01\nd\t3\ncut\toff");
  const GemmTuningCache::Contents contents = file.read();
  CHECK(contents.configurations == GemmConfigurations{{"a", "1"}, {"b", "2"}, {"d", "3"}});
  CHECK(contents.problem ==
        file.path() + ": line 3 is no GEMM configuration, and 4 more are none; the others count");
  file.add({{"e", "4"}});
  CHECK(file.read().configurations ==
        GemmConfigurations{{"a", "1"}, {"b", "2"}, {"d", "3"}, {"e", "4"}});
  CHECK(file.read().problem == "");
}

TEST_CASE("a file of another format is ignored and replaced") {
  for (const std::string& text :
       {std::string("something else\na\t1\n"), std::string("nvllm GEMM tuning, version 2\na\t1\n"),
        std::string("nvllm GEMM tuning, version 1"), std::string(9999, '\0')}) {
    const TestFolder folder;
    const GemmTuningCache file(folder.path("gemm_tuning.txt"));
    put(file.path(), text);
    CHECK(file.read().configurations.empty());
    CHECK(file.read().problem ==
          file.path() + ": not a file of GEMM tuning, or of another version; it is ignored");
    file.add({{"a", "2"}});
    CHECK(file.read().configurations == GemmConfigurations{{"a", "2"}});
  }
}

TEST_CASE("a file of the old name is read where there is none of the new one, which add() writes") {
  const TestFolder folder;
  put(folder.path("products.txt"), "nvllm products, version 1\na\t1\nb\t2\n");
  const GemmTuningCache file(folder.path("gemm_tuning.txt"));
  CHECK(file.read().configurations == GemmConfigurations{{"a", "1"}, {"b", "2"}});
  CHECK(file.read().problem == "");
  file.add({{"b", "3"}});
  std::filesystem::remove(folder.path("products.txt"));
  CHECK(file.read().configurations == GemmConfigurations{{"a", "1"}, {"b", "3"}});
}

TEST_CASE("a path that is no file is told of when read, and an error when written") {
  const TestFolder folder;
  const GemmTuningCache a_folder(folder.path("gemm_tuning.txt"));
  std::filesystem::create_directory(a_folder.path());
  CHECK(a_folder.read().configurations.empty());
  CHECK(a_folder.read().problem == a_folder.path() + ": not a file that can be read");
  CHECK_THROWS_AS(a_folder.add({{"a", "1"}}), Error);

  put(folder.path("file"), "");
  const GemmTuningCache below_a_file(folder.path("file/gemm_tuning.txt"));
  CHECK_THROWS_AS(below_a_file.add({{"a", "1"}}), Error);
  // No temporary file is left.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename();
    const bool expected =
        name == "gemm_tuning.txt" || name == "gemm_tuning.txt.lock" || name == "file";
    CHECK_MESSAGE(expected, name);
  }
}

TEST_CASE("of several writers none loses what another added, and readers never see a part") {
  const TestFolder folder;
  const std::string path = folder.path("gemm_tuning.txt");
  constexpr int kWriters = 4, kTimes = 20;
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&path, writer] {
      for (int i = 0; i < kTimes; ++i) {
        GemmTuningCache(path).add({{str("writer ", writer, " time ", i), str("id=", i)}});
      }
    });
  }
  std::size_t seen = 0;
  bool whole = true;
  while (seen < kWriters * kTimes) {
    const GemmTuningCache::Contents contents = GemmTuningCache(path).read();
    whole &= contents.problem.empty() && contents.configurations.size() >= seen;
    if (!whole) break;
    seen = contents.configurations.size();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(whole);
  CHECK(GemmTuningCache(path).read().configurations.size() == kWriters * kTimes);
}

}  // namespace
}  // namespace nvllm::runtime
