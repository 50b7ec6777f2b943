// nvllm-launch pull
#include "launcher/cli/commands.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/program.h"
#include "launcher/hub/hub_settings.h"
#include "launcher/hub/pull.h"
#include "launcher/session/text_io.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

int run_pull(const Options& options, std::int64_t) {
  const HubSettings settings = hub_settings(process_environment);
  const auto name = parse_hub_name(options.model.path, settings.endpoint);
  if (!name) {
    refuse("pull ", options.model.path,
           ": is no name of a model; pass one such as Qwen/Qwen3-0.6B, or a link to its page");
  }
  write_results(pull_model(*name, settings, true).path + '\n');
  return kExitFine;
}

}  // namespace nvllm::launcher
