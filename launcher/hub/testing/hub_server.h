// HubServer: a local mock of a Hugging Face hub: the part of its REST API that downloads use, with
// a second address for the contents of large files, and faults on demand.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace nvllm::testing {

class HubServer {
 public:
  struct File {
    std::string bytes;
    bool lfs = false;             // content comes from another address, and its hash is reported
    std::string sha256 = {};      // reported hash; empty: the correct one
    std::uint64_t told_size = 0;  // reported instead of the correct size; 0: correct
  };
  struct Repository {
    std::string commit = "0123456789abcdef0123456789abcdef01234567";
    std::map<std::string, File> files;
    bool gated = false;  // requires the token "hf_good"
  };
  struct Request {
    std::string method, target, host, range;
    bool has_token = false;
  };

  explicit HubServer(std::map<std::string, Repository> repositories);
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;
  ~HubServer();

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const;
  // Body bytes of large files sent so far.
  std::uint64_t sent() const { return sent_; }

  // Faults; they may be changed at any time.
  std::atomic<std::int64_t> cut_after = -1;  // large bodies end here, with the connection
  std::atomic<bool> slow = false;            // large bodies arrive at about 1 MB/s
  std::atomic<bool> no_ranges = false;       // answers a range with the whole file
  std::atomic<int> busy = 0;                 // number of requests to answer with 503
  std::atomic<bool> drops_location = false;  // addresses of contents work only once

 private:
  void accept_all();
  void serve(int fd);
  bool is_first_use(const std::string& location);
  bool answer(int fd, const Request& request);
  bool answer_listing(int fd, const std::string& name, const std::string& revision);
  bool answer_file(int fd, const Request& request, const std::string& name,
                   const std::string& path);
  bool send_bytes(int fd, const Request& request, const File& file, const std::string& headers);

  std::map<std::string, Repository> repositories_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> ends_ = false;
  std::atomic<std::uint64_t> sent_ = 0;
  std::atomic<int> locations_ = 0;
  mutable std::mutex mutex_;  // guards the rest
  std::vector<Request> requests_;
  std::vector<int> open_;
  std::set<std::string> used_;  // addresses of contents
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

// A repository with the files of a folder; its safetensors are in LFS.
HubServer::Repository folder_repository(const std::string& folder);

// A repository with a model as in text_folder.h, whose weights are never read: config.json, a
// tokenizer, a chat template, safetensors of `weight_bytes`.
HubServer::Repository text_repository(const std::string& folder, std::size_t weight_bytes);

// Bytes that look random.
std::string noise(std::size_t size, unsigned seed = 1);

}  // namespace nvllm::testing
