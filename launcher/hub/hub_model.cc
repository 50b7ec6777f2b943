#include "launcher/hub/hub_model.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "launcher/hub/hub_cache.h"
#include "launcher/hub/hub_settings.h"
#include "launcher/hub/model_files.h"
#include "launcher/hub/pull.h"

namespace nvllm::launcher {

std::string find_model(const std::string& given, bool weights, const Environment& environment) {
  std::error_code error;
  if (std::filesystem::exists(given, error)) {
    check_model_path(given, weights);
    return given;
  }
  const HubSettings settings = hub_settings(environment);
  const std::optional<HubName> name = parse_hub_name(given, settings.endpoint);
  if (!name) return given;
  if (!settings.cache.empty()) {
    const HubCache cache(settings.cache, name->repository);
    if (const auto snapshot = cache.find_snapshot(name->revision)) {
      if (const auto path = model_in_snapshot(*snapshot, *name, weights)) return *path;
    }
  }
  return with_context(str("--model ", given, ": no such folder or file, and not all of it in ",
                          settings.cache.empty() ? "Hugging Face's cache" : settings.cache),
                      [&] { return pull_model(*name, settings, weights).path; });
}

}  // namespace nvllm::launcher
