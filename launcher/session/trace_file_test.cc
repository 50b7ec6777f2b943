#include "launcher/session/trace_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

// The file's events, after it was written and removed.
Json written(const std::vector<ProcessTrace>& traces, std::int64_t start_ns) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = str(folder != nullptr ? folder : "/tmp", "/trace_file_test.json");
  write_trace(path, traces, start_ns);
  std::ifstream file(path);
  Json json = read_json(file);
  file.close();
  std::filesystem::remove(path);
  return json.at("traceEvents");
}

// The events of a kind and a name.
std::vector<Json> find(const Json& events, const std::string& phase, const std::string& name) {
  std::vector<Json> found;
  for (const Json& event : events) {
    if (event.at("ph") == phase && event.at("name") == name) found.push_back(event);
  }
  return found;
}

}  // namespace

TEST_CASE("processes and their tracks have names, in the order given") {
  const Json events =
      written({{.name = "launcher", .events = {{"host", "submit", 10, 20, 0}}, .dropped = 0},
               {.name = "rank 0",
                .events = {{"host", "schedule", 10, 20, 1}, {"device", "step", 12, 30, 1}},
                .dropped = 0}},
              0);
  const std::vector<Json> processes = find(events, "M", "process_name");
  REQUIRE(processes.size() == 2);
  CHECK(processes[0]["args"]["name"] == "launcher");
  CHECK(processes[1]["args"]["name"] == "rank 0");
  CHECK(processes[0]["pid"] != processes[1]["pid"]);

  std::map<std::pair<int, int>, std::string> tracks;
  for (const Json& track : find(events, "M", "thread_name")) {
    tracks[{track["pid"], track["tid"]}] = track["args"]["name"];
  }
  CHECK(tracks.size() == 3);
  const Json step = find(events, "X", "step").at(0);
  CHECK(step["pid"] == processes[1]["pid"]);
  CHECK(tracks.at({step["pid"], step["tid"]}) == "device");
}

TEST_CASE("times are microseconds after the start, steps are numbered") {
  const Json events = written({{.name = "rank 0",
                                .events = {{"host", "schedule", 5'000'001'500, 5'000'004'000, 7},
                                           {"host", "idle", 5'000'004'000, 5'000'004'001, 0}},
                                .dropped = 0}},
                              5'000'000'000);
  const Json schedule = find(events, "X", "schedule").at(0);
  CHECK(schedule["ts"] == 1.5);
  CHECK(schedule["dur"] == 2.5);
  CHECK(schedule["args"]["step"] == 7);
  CHECK_FALSE(find(events, "X", "idle").at(0).contains("args"));
}

TEST_CASE("whatever bytes names have, the file is JSON") {
  const Json events = written(
      {{.name = "rank \"0\"\n", .events = {{"a\\b", "\xff\x01", 0, 1, 0}}, .dropped = 0}}, 0);
  CHECK(find(events, "M", "process_name").at(0)["args"]["name"] == "rank \"0\"\n");
  CHECK(events.size() == 5);
}

TEST_CASE("a trace that was full says how much is missing") {
  const Json events = written({{.name = "rank 1", .events = {}, .dropped = 3}}, 0);
  CHECK(find(events, "M", "process_name").at(0)["args"]["name"] ==
        "rank 1 (3 later events were not kept)");
}

TEST_CASE("no events at all are a trace, too") {
  CHECK(written({}, 0).empty());
}

TEST_CASE("a file that cannot be written is an error that names it") {
  CHECK_THROWS_WITH_AS(
      write_trace("/nowhere/trace.json", {}, 0),
      "writing the trace to /nowhere/trace.json: No such file or directory (ENOENT)", Error);
  std::vector<TraceEvent> many(10'000, {"host", "event", 0, 1, 1});
  CHECK_THROWS_WITH_AS(
      write_trace("/dev/full", {{.name = "rank 0", .events = many, .dropped = 0}}, 0),
      "writing the trace to /dev/full: No space left on device (ENOSPC)", Error);
}

}  // namespace nvllm::launcher
