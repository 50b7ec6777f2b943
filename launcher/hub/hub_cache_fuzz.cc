// With any bytes in the hub's cache and in a model's name, the resulting paths are in the cache,
// and an index names only files next to it. The input is a name, a line for the branch's file, and
// an index.
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "launcher/hub/hub_cache.h"
#include "launcher/hub/hub_name.h"
#include "launcher/hub/model_files.h"

namespace {

using namespace nvllm::launcher;

void require(bool condition) {
  if (!condition) std::abort();
}

// One cache with one snapshot, for the lifetime of the process.
class Cache {
 public:
  Cache() {
    require(::mkdtemp(path_.data()) != nullptr);
    HubCache(path_, "a/b").make_folders();
    std::filesystem::create_directories(snapshots() + "1111111111111111111111111111111111111111");
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string snapshots() const { return path_ + "/models--a--b/snapshots/"; }
  void write_reference(std::string_view text) const {
    std::ofstream(path_ + "/models--a--b/refs/main", std::ios::binary) << text;
  }

 private:
  std::string path_ = "/tmp/hub_cache_fuzz_XXXXXX";
};

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

void fuzz_name(const std::string& text) {
  const auto name = parse_hub_name(text, "https://huggingface.co");
  if (!name) return;
  require(is_safe_path(name->repository) && is_safe_path(name->revision));
  require(name->file.empty() || is_safe_path(name->file));
  require(HubCache("/cache", name->repository).folder().find('/', 7) == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Cache cache;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  try {
    fuzz_name(std::string(take_line(rest)));
  } catch (const nvllm::Error&) {
  }
  cache.write_reference(take_line(rest));
  const auto snapshot = HubCache(cache.path(), "a/b").find_snapshot("main");
  // There is only one snapshot, so it is found whatever the file contains.
  require(snapshot && *snapshot == cache.snapshots() + "1111111111111111111111111111111111111111");
  try {
    for (const std::string& name : files_of_index(rest)) require(is_safe_path(name));
  } catch (const nvllm::Error&) {
  }
  return 0;
}
