// Finds the model that --model names, a path or the name of a model on the Hugging Face hub, and
// downloads it into the hub's cache.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "launcher/hub/hub_name.h"
#include "launcher/hub/hub_settings.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

struct PulledModel {
  std::string path;  // what --model should load: the snapshot's folder, or a GGUF file in it
  std::string commit;
  std::size_t files = 0;
  std::uint64_t bytes = 0;       // of all files
  std::uint64_t downloaded = 0;  // of those that were not there
};

// A signal asked the program to end.
class PullStopped : public Error {
 public:
  PullStopped(int signal, const std::string& message) : Error(message), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// Downloads what the cache does not hold. weights: false: only the files that describe the model.
// To be called while the process has one thread; it leaves none behind. Progress goes to standard
// error. Throws an Error that names the model and the fix; what has arrived until then is kept and
// not downloaded again.
PulledModel pull_model(const HubName& name, const HubSettings& settings, bool weights);

// The path of the model: `given` itself if it is a path, whether it exists or not; for a name
// (hub_name.h) the place in the hub's cache, into which it is downloaded if it is not there. What
// the cache holds is taken as it is, without asking the hub. weights: false: only the files that
// describe the model are wanted. As pull_model(), to be called while the process has one thread.
// Throws an Error that names `given` and the fix.
std::string find_model(const std::string& given, bool weights, const Environment& environment);

}  // namespace nvllm::launcher
