// HubClient: the Hugging Face hub's REST API: the files of a model, and their contents.
// HubSettings: where the hub is and how to reach it, from huggingface_hub's environment variables.
//
//   GET  /api/models/ORG/NAME/revision/REVISION   the commit and the names of all files
//   HEAD /ORG/NAME/resolve/COMMIT/FILE            size and hash, in headers
//   GET  the same, with a range                   bytes; often redirected to another server
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "launcher/hub/hub_name.h"
#include "launcher/hub/net/http_session.h"
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

// The contents of a revision of a repository.
struct HubRevision {
  std::string commit;
  std::vector<std::string> files;  // safe relative paths
};

struct HubFile {
  std::string name;    // "model.safetensors"
  std::string etag;    // the blob's name in the cache; safe as a file name
  std::string sha256;  // empty: the hub does not provide it (a small file, not in LFS)
  std::uint64_t size = 0;
  Url url;
};

// Thread-safe; each thread uses a session of its own. All functions throw NetworkError,
// NetworkStopped, or an Error that names the model and the fix.
class HubClient {
 public:
  HubClient(const HubName& name, const HubSettings& settings, Network& network)
      : name_(name), settings_(settings), network_(network) {}

  HubRevision look_up(HttpSession& session);
  HubFile describe(HttpSession& session, const std::string& commit, const std::string& file);
  // Sends the bytes [begin, end) to the receiver, without retries. After an error it may have
  // received a part of them.
  void fetch(HttpSession& session, const HubFile& file, std::uint64_t begin, std::uint64_t end,
             BodyReceiver& receiver);
  std::string text(HttpSession& session, const HubFile& file);

  // Calls once(), and repeats it after a NetworkError while that is promising, but not if there was
  // never any connection.
  template <typename Once>
  auto with_attempts(Once once) const {
    Nanoseconds wait = std::chrono::milliseconds(250);
    for (int attempt = 1;; ++attempt, wait *= 2) {
      try {
        return once();
      } catch (const NetworkError&) {
        if (!network_.answered() || attempt == kAttempts) throw;
      }
      network_.sleep(wait);
    }
  }

 private:
  static constexpr int kAttempts = 5;

  struct Answer {
    HttpHead head;                                       // of the last response
    Url url;                                             // its URL
    std::string commit, etag, linked_etag, linked_size;  // from the first response that has them
  };
  Answer ask(HttpSession& session, std::string_view method, Url url, const std::string& headers,
             bool until_linked = false);
  Answer ask_for_range(HttpSession& session, const HubFile& file, const std::string& range);
  [[noreturn]] void fail_status(const HttpHead& head, const Url& url,
                                const std::string& file) const;

  const HubName name_;
  const HubSettings settings_;
  Network& network_;
  std::mutex mutex_;
  std::map<std::string, Url> locations_;  // targets of redirects, by the file's URL; guarded by
                                          // mutex_
};

}  // namespace nvllm::launcher
