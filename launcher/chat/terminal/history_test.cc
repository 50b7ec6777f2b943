#include "launcher/chat/terminal/history.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using Entries = std::vector<std::string>;

TEST_CASE("what one session enters another one finds, whatever is in it") {
  const model::TestFolder folder;
  const std::string path = folder.path("history");
  const Entries all = {"plain", "two\nlines", "back\\slash\\n", "\u00E4 \U0001F468"};
  {
    History history(path);
    for (const std::string& entry : all) history.add(entry);
    history.add(all.back());
    history.add(" \n ");
    CHECK(history.entries() == all);
  }
  CHECK(History(path).entries() == all);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("two sessions share a file, and neither loses what the other has entered") {
  const model::TestFolder folder;
  const std::string path = folder.path("history");
  History one(path), other(path);
  one.add("a");
  other.add("b");
  one.add("c");
  CHECK(History(path).entries() == Entries{"a", "b", "c"});
}

TEST_CASE("the file is bounded, and so is an entry of it") {
  const model::TestFolder folder;
  const std::string path = folder.path("history");
  {
    History history(path);
    for (std::size_t i = 0; i < History::kMaxEntries + 50; ++i) history.add(str("entry ", i));
    history.add(std::string(History::kMaxEntryBytes + 1, 'x'));
    CHECK(history.entries().back().size() == History::kMaxEntryBytes + 1);
  }
  const History again(path);
  CHECK(again.entries().size() == History::kMaxEntries);
  CHECK(again.entries().front() == "entry 50");
  std::ifstream file(path);
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  CHECK(lines == History::kMaxEntries + 1);  // plus the mark
}

TEST_CASE("of a file that is no history of ours no line is removed") {
  const model::TestFolder folder;
  std::string notes;
  for (std::size_t i = 0; i < History::kMaxEntries + 50; ++i) notes += str("note ", i, '\n');
  folder.write("notes.txt", notes);
  History history(folder.path("notes.txt"));
  CHECK(history.entries().size() == History::kMaxEntries);
  CHECK(history.entries().front() == "note 50");
  history.add("entered");
  CHECK(History(folder.path("notes.txt")).entries().back() == "entered");
  std::ifstream file(folder.path("notes.txt"));
  const std::string after{std::istreambuf_iterator<char>(file), {}};
  CHECK(after == notes + "entered\n");
}

TEST_CASE("a file of more than 32 MiB is refused before it is read") {
  const model::TestFolder folder;
  folder.write("history", "");
  std::filesystem::resize_file(folder.path("history"), 32 << 20);
  CHECK(History(folder.path("history")).entries().size() == 1);
  std::filesystem::resize_file(folder.path("history"), (32 << 20) + 1);
  CHECK_THROWS_AS(History(folder.path("history")), Error);
}

TEST_CASE("the newest entry with a text is found, and then the one before it") {
  History history;
  for (const char* const entry : {"load x", "ask", "load y"}) history.add(entry);
  CHECK(history.find_before(3, "load") == 2);
  CHECK(history.find_before(2, "load") == 0);
  CHECK_FALSE(history.find_before(0, "load"));
}

TEST_CASE("a place that cannot be written to is told once") {
  const model::TestFolder folder;
  folder.write("file", "");
  History history(folder.path("file/history"));
  CHECK(testing::has(testing::error_of([&] { history.add("a"); }), "the history "));
  history.add("b");
  CHECK(history.entries() == Entries{"a", "b"});
}

}  // namespace
}  // namespace nvllm::launcher
