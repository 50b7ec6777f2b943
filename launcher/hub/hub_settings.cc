#include "launcher/hub/hub_settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kFirstAnswer = std::chrono::milliseconds(900);

std::string value_of(const Environment& environment, const char* name) {
  const auto value = environment(name);
  return value ? *value : "";
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The folder of the hub's own files, "~/.cache/huggingface"; empty if there is no home.
std::string hub_home(const Environment& environment) {
  if (std::string home = value_of(environment, "HF_HOME"); !home.empty()) return home;
  const std::string cache = cache_folder(environment);
  return cache.empty() ? "" : cache + "/huggingface";
}

// The variables in the order in which huggingface_hub reads them.
std::string hub_cache(const Environment& environment) {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string path = value_of(environment, name); !path.empty()) return path;
  }
  const std::string home = hub_home(environment);
  return home.empty() ? "" : home + "/hub";
}

std::string token_of(const Environment& environment) {
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string token = trimmed(value_of(environment, name));
    // It becomes a part of a header.
    if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c <= '~'; })) {
      fail(name,
           ": is no token, it has characters such as spaces; copy it from "
           "https://huggingface.co/settings/tokens again");
    }
    if (!token.empty()) return token;
  }
  std::string path = value_of(environment, "HF_TOKEN_PATH");
  if (path.empty()) path = hub_home(environment) + "/token";
  std::ifstream file(path);
  std::string token;
  file >> token;
  return token;
}

std::string offline_of(const Environment& environment) {
  for (const char* const name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    const std::string given = value_of(environment, name);
    std::string value = given;
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
    if (value == "1" || value == "ON" || value == "YES" || value == "TRUE") {
      return str(name, '=', given);
    }
  }
  return "";
}

std::string proxy_of(const Environment& environment) {
  for (const char* const name : {"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"}) {
    if (!value_of(environment, name).empty()) return name;
  }
  return "";
}

Nanoseconds first_answer_of(const Environment& environment) {
  const std::string given = value_of(environment, "HF_HUB_ETAG_TIMEOUT");
  if (given.empty()) return kFirstAnswer;
  char* end = nullptr;
  const double seconds = std::strtod(given.c_str(), &end);
  if (*end != '\0' || !(seconds > 0) || seconds > 3600) {
    fail("HF_HUB_ETAG_TIMEOUT=", given, ": not a number of seconds; set one such as 10");
  }
  return Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace

HubSettings hub_settings(const Environment& environment) {
  std::string endpoint = value_of(environment, "HF_ENDPOINT");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  if (!endpoint.starts_with("https://") && !endpoint.starts_with("http://")) {
    fail("HF_ENDPOINT=", endpoint, ": is no URL; set one such as https://huggingface.co");
  }
  return {.endpoint = endpoint,
          .token = token_of(environment),
          .cache = hub_cache(environment),
          .offline = offline_of(environment),
          .proxy = proxy_of(environment),
          .first_answer = first_answer_of(environment)};
}

}  // namespace nvllm::launcher
