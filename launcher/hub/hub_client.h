// HubClient: the Hugging Face hub's REST API: the files of a model, and their contents.
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

#include "launcher/hub/hub_name.h"
#include "launcher/hub/hub_settings.h"
#include "launcher/hub/net/http_session.h"

namespace nvllm::launcher {

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
