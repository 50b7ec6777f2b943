// Resolves --model, which is a path or the name of a model on the Hugging Face hub; downloads the
// latter into the hub's cache.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "launcher/hub/hub_name.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

struct HubSettings;  // hub_client.h

struct PulledModel {
  std::string path;  // the path to load: the snapshot's folder, or a GGUF file in it
  std::string commit;
  std::size_t files = 0;
  std::uint64_t bytes = 0;       // of all files
  std::uint64_t downloaded = 0;  // of files that were missing
};

// A signal asked the program to end.
class PullStopped : public Error {
 public:
  PullStopped(int signal, const std::string& message) : Error(message), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// Downloads what is missing in the cache. weights: if false, only the files that describe the
// model. Call it while the process has one thread; no threads remain afterwards. Progress is
// written to standard error. Throws an Error that names the model and the fix; what has been
// downloaded by then is kept.
PulledModel pull_model(const HubName& name, const HubSettings& settings, bool weights);

// The path of the model: `given` itself if it is a path, whether it exists or not; for a name
// (hub_name.h) its place in the hub's cache, after downloading it if necessary. Existing cache
// content is used without asking the hub. weights: if false, only the files that describe the model
// are required. Like pull_model(), call it while the process has one thread. Throws an Error that
// names `given` and the fix.
std::string find_model(const std::string& given, bool weights, const Environment& environment);

}  // namespace nvllm::launcher
