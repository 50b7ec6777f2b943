// HubSettings: settings of the Hugging Face hub from the environment. The variables are those of
// huggingface_hub.
#pragma once

#include <string>

#include "base/clock.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

struct HubSettings {
  std::string endpoint;      // HF_ENDPOINT, without a slash at the end
  std::string token;         // HF_TOKEN, or the one that `hf auth login` has stored; empty: none
  std::string cache;         // the folder of models--...; empty: there is no home
  std::string offline;       // "HF_HUB_OFFLINE=1": downloads are forbidden; empty: they are not
  std::string proxy;         // the variable that specifies a proxy, "HTTPS_PROXY"; empty: none
  Nanoseconds first_answer;  // time limit of the first connection, from HF_HUB_ETAG_TIMEOUT
};

// Throws an Error that names the variable, its value and the fix.
HubSettings hub_settings(const Environment& environment);

}  // namespace nvllm::launcher
