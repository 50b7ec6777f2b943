// HubSettings: what the environment says about the Hugging Face hub. The variables are those of
// huggingface_hub.
#pragma once

#include <string>

#include "base/clock.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

struct HubSettings {
  std::string endpoint;      // HF_ENDPOINT, without a slash at the end
  std::string token;         // HF_TOKEN, or what `hf auth login` has stored; empty: none
  std::string cache;         // the folder of models--...; empty: there is no home
  std::string offline;       // "HF_HUB_OFFLINE=1": downloads are forbidden; empty: they are not
  std::string proxy;         // the variable that names one, "HTTPS_PROXY"; empty: none does
  Nanoseconds first_answer;  // how long the first connection may take, by HF_HUB_ETAG_TIMEOUT
};

// Throws an Error that names the variable, its value and the fix.
HubSettings hub_settings(const Environment& environment);

}  // namespace nvllm::launcher
