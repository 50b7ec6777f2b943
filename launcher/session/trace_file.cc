#include "launcher/session/trace_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBeginning = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";

// An older trace may be replaced; any other existing content (such as the run's input) may not.
void check_replaceable(const std::string& path) {
  if (!std::filesystem::is_regular_file(path) || std::filesystem::file_size(path) == 0) return;
  std::string beginning(kBeginning.size(), ' ');
  std::ifstream(path, std::ios::binary).read(beginning.data(), std::ssize(beginning));
  if (beginning == kBeginning) return;
  fail("--profile ", path, ": is there already, and is no trace; pass another file");
}

class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : path_(path) {
    check_replaceable(path);
    file_.reset(std::fopen(path.c_str(), "we"));
    if (file_ == nullptr) fail_errno("writing the trace to ", path_);
    put(kBeginning);
  }

  void add(const Json& event) {
    put(first_ ? "\n" : ",\n");
    first_ = false;
    put(json_text(event));
  }

  void finish() {
    put("\n]}\n");
    if (std::fclose(file_.release()) != 0) fail_errno("writing the trace to ", path_);
  }

 private:
  void put(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) {
      fail_errno("writing the trace to ", path_);
    }
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool first_ = true;
};

Json name_event(const char* what, std::size_t process, std::size_t thread, Json arguments) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", arguments}};
}

void add_process(TraceFile& file, const ProcessTrace& trace, std::size_t process,
                 std::int64_t start_ns) {
  const std::string name =
      trace.dropped == 0 ? trace.name
                         : str(trace.name, " (", trace.dropped, " later events were not kept)");
  file.add(name_event("process_name", process, 0, {{"name", name}}));
  file.add(name_event("process_sort_index", process, 0, {{"sort_index", process}}));
  std::map<std::string_view, std::size_t> threads;  // by track, in the order of their first events
  const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  for (const TraceEvent& event : trace.events) {
    const auto [thread, is_new] = threads.emplace(event.track, threads.size() + 1);
    if (is_new) {
      file.add(name_event("thread_name", process, thread->second, {{"name", event.track}}));
      file.add(name_event("thread_sort_index", process, thread->second,
                          {{"sort_index", thread->second}}));
    }
    Json json = {{"ph", "X"},
                 {"name", event.name},
                 {"pid", process},
                 {"tid", thread->second},
                 {"ts", microseconds(event.begin_ns - start_ns)},
                 {"dur", microseconds(event.end_ns - event.begin_ns)}};
    if (event.step != 0) json["args"] = {{"step", event.step}};
    file.add(json);
  }
}

}  // namespace

void write_trace(const std::string& path, const std::vector<ProcessTrace>& traces,
                 std::int64_t start_ns) {
  TraceFile file(path);
  for (std::size_t i = 0; i < traces.size(); ++i) add_process(file, traces[i], i + 1, start_ns);
  file.finish();
}

}  // namespace nvllm::launcher
