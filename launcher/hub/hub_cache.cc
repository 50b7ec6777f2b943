#include "launcher/hub/hub_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/regular_file.h"
#include "launcher/hub/model_files.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = 100'000'000;  // as for safetensors headers

// The commit in the file of a branch or a tag; empty if it is not a small file.
std::string read_reference(const std::string& path) {
  constexpr std::uint64_t kMaxReference = 4096;
  try {
    return read_regular_file_if_there(path, kMaxReference).value_or("");
  } catch (const Error&) {  // a folder of branches "main/...", or something that would block
    return "";
  }
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    fail(path.string(), ": cannot be made: ", error.message(),
         "; make its folder writable, or set HF_HUB_CACHE to another one");
  }
}

// The files below a folder that can be opened, as relative paths. A link to a missing blob does not
// count.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->is_regular_file(ignored)) {
      files.push_back(at->path().lexically_relative(folder).string());
    }
  }
  return files;
}

bool has_all(const std::vector<std::string>& all, const std::vector<std::string>& wanted) {
  return std::ranges::all_of(
      wanted, [&](const std::string& name) { return std::ranges::find(all, name) != all.end(); });
}

// Whether all of "model-00001-of-00003.gguf" to "model-00003-of-00003.gguf" exist.
bool has_all_shards(const std::vector<std::string>& ggufs) {
  constexpr std::size_t kTail = sizeof("00003.gguf") - 1;
  const std::string& name = ggufs.front();
  if (name.size() < kTail + 4 || name.compare(name.size() - kTail - 4, 4, "-of-") != 0) return true;
  return std::strtoull(name.c_str() + name.size() - kTail, nullptr, 10) == ggufs.size();
}

}  // namespace

HubCache::HubCache(const std::string& cache, const std::string& repository) {
  std::string name = "models--" + repository;
  if (const std::size_t slash = name.find('/'); slash != std::string::npos) {
    name.replace(slash, 1, "--");
  }
  folder_ = cache + '/' + name;
  locks_ = cache + "/.locks/" + name;
}

std::optional<std::string> HubCache::find_snapshot(const std::string& revision) const {
  std::error_code error;
  std::string commit = read_reference(folder_ + "/refs/" + revision);
  commit.erase(std::min(commit.find_last_not_of(" \r\n") + 1, commit.size()));
  // The file may contain anything; a snapshot must be directly in its folder.
  for (const std::string& candidate : {commit, revision}) {
    if (is_safe_component(candidate) && fs::is_directory(snapshot(candidate), error)) {
      return snapshot(candidate);
    }
  }
  std::vector<std::string> all;
  for (fs::directory_iterator at(folder_ + "/snapshots", error), end; !error && at != end;
       at.increment(error)) {
    all.push_back(at->path().string());
  }
  if (revision == "main" && all.size() == 1) return all.front();
  return std::nullopt;
}

void HubCache::make_folders() const {
  for (const char* const part : {"/blobs", "/refs", "/snapshots"}) make_folder(folder_ + part);
  make_folder(locks_);
}

void HubCache::link(const std::string& commit, const std::string& file,
                    const std::string& etag) const {
  const fs::path path = fs::path(snapshot(commit)) / file;
  make_folder(path.parent_path());
  const fs::path target = fs::path(blob(etag)).lexically_relative(path.parent_path());
  std::error_code error;
  if (fs::read_symlink(path, error) == target) return;
  // Another process may be reading the file, or creating the same link.
  const std::string fresh = str(path.string(), ".", ::getpid(), ".new");
  ::unlink(fresh.c_str());
  if (::symlink(target.c_str(), fresh.c_str()) == 0) {
    if (::rename(fresh.c_str(), path.c_str()) != 0) fail_errno(path.string());
  } else if (::rename(blob(etag).c_str(), path.c_str()) != 0) {  // this file system has no links
    fail_errno(path.string());
  }
}

void HubCache::set_revision(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path path = fs::path(folder_ + "/refs") / revision;
  make_folder(path.parent_path());
  const std::string fresh = str(path.string(), ".", ::getpid(), ".new");
  std::ofstream(fresh) << commit;
  if (::rename(fresh.c_str(), path.c_str()) != 0) fail_errno(path.string());
}

std::optional<std::string> model_in_snapshot(const std::string& snapshot, const HubName& name,
                                             bool weights) {
  const std::vector<std::string> all = files_below(snapshot);
  ModelFiles files;
  try {
    files = choose_files(name, all, weights);
    if (!files.gguf.empty()) {
      if (!has_all_shards(files.names)) return std::nullopt;
      return snapshot + '/' + files.gguf;
    }
    const fs::path index = fs::path(snapshot) / kIndexName;
    if (files.index &&
        !has_all(all, files_of_index(read_regular_file(index.string(), kMaxIndexBytes))))
      return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  return snapshot;
}

}  // namespace nvllm::launcher
