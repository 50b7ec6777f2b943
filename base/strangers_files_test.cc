// Untrusted files and JSON: files that are not regular do not block, files that are too large are
// not read, and JSON is limited during parsing.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bounded_json.h"
#include "base/regular_file.h"

namespace nvllm {
namespace {

class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const char* name) const { return path_ + '/' + name; }

 private:
  std::string path_ = "/tmp/strangers_files_test_XXXXXX";
};

template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
    return "no error";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("a pipe, a folder and a device in place of a file are refused at once") {
  const Folder folder;
  const std::string pipe = folder.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, folder.path(""), std::string("/dev/zero")}) {
    CHECK(error_of([&] { (void)read_regular_file(path, 100); }) ==
          path + ": expected a file, found something else");
    CHECK(error_of([&] { (void)read_regular_file_if_there(path, 100); }) ==
          path + ": expected a file, found something else");
  }
}

TEST_CASE("a file that is too large is refused before it is read") {
  const Folder folder;
  const std::string path = folder.path("large");
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  REQUIRE(::ftruncate(file.get(), off_t{1} << 40) == 0);
  CHECK(error_of([&] { (void)read_regular_file(path, 1 << 20); }) ==
        path + ": expected at most 1048576 bytes, found 1099511627776");
}

TEST_CASE("a file is read whole, and one that is not there is nothing") {
  const Folder folder;
  const std::string path = folder.path("file");
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  REQUIRE(::write(file.get(), "a\0b", 3) == 3);
  CHECK(read_regular_file(path, 3) == std::string("a\0b", 3));
  CHECK_FALSE(read_regular_file_if_there(path + "2", 3));
  CHECK_FALSE(read_regular_file_if_there(path + "/x", 3));
  CHECK(error_of([&] { (void)read_regular_file(path + "2", 3); }) ==
        path + "2: No such file or directory (ENOENT)");
}

std::string refusal(const std::string& text, const JsonLimits& limits) {
  return error_of([&] { (void)read_bounded_json(text, limits); });
}

TEST_CASE("JSON is refused at its first value too many") {
  CHECK(refusal(std::string(std::size_t{32} << 20, '['), {}) == "nested more than 64 deep");
  CHECK(refusal("[1,2,3]", {.max_values = 3}) == "there are more than 3 values");
  CHECK(refusal("[1,2]", {.max_values = 3}) == "no error");
  CHECK(refusal("[[[]]]", {.max_depth = 2}) == "nested more than 2 deep");
  CHECK(refusal("[[]]", {.max_depth = 2}) == "no error");
  CHECK(refusal(R"({"a":1,"b":1})", {.max_keys = 1}) == "an object with more than 1 names");
  CHECK(refusal(R"({"a":1,"a":1})", {}) == "the name \"a\" is there twice");
  CHECK(refusal(R"({"a":1,"a":1})", {.repeated_names = true}) == "no error");
  CHECK(refusal("[1e999]", {}) == "a number that is too large");
  CHECK(refusal("[\"\xff\"]", {}) == "no valid JSON at byte 3: the text is not UTF-8");
  CHECK(refusal("[1] 2", {.max_bytes = 4}) == "expected at most 4 bytes, found 5");
}

TEST_CASE("what a message shows of a stranger's text is short and on one line") {
  const std::string name(1 << 20, 'n');
  CHECK(refusal("{\"" + name + "\":1,\"" + name + "\":1}", {}).size() < 150);
  CHECK(shown_text("a\n\x1b[0m\xc3\xa9\xe6\x9d\xb1") == "a\\n\\x1b[0m\xc3\xa9\xe6\x9d\xb1");
  CHECK(shown_text("\xc2\x9b \xe2\x80\xae \xff \xc3") == R"(\u009b \u202e \xff \xc3)");
  CHECK(shown_text("ab\xc3\xa9", 3) == "ab...");
}

}  // namespace
}  // namespace nvllm
