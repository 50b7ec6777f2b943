#include "launcher/hub/pull.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/hub/download.h"
#include "launcher/hub/hub_cache.h"
#include "launcher/hub/hub_client.h"
#include "launcher/hub/model_files.h"
#include "launcher/session/text_io.h"
#include "launcher/session/text_table.h"
#include "launcher/session/user_cache.h"
#include "launcher/supervise/signal_watch.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;

constexpr Nanoseconds kLockEvery = std::chrono::milliseconds(100);

// A descriptor that becomes and stays readable when a signal arrives or stop() is called.
class StopSwitch {
 public:
  StopSwitch() : event_(::eventfd(0, EFD_CLOEXEC)), both_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!event_ || !both_) fail_errno("eventfd, epoll");
    for (const int fd : {event_.get(), signals_.fd()}) {
      epoll_event wanted{.events = EPOLLIN, .data = {.fd = fd}};
      if (::epoll_ctl(both_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) fail_errno("epoll");
    }
  }
  int fd() const { return both_.get(); }
  void stop() const { ::eventfd_write(event_.get(), 1); }
  // The signal that has arrived, if any.
  std::optional<int> signal() { return signals_.next_signal(); }

 private:
  SignalWatch signals_;
  UniqueFd event_, both_;
};

// Locks of blobs, compatible with huggingface_hub. They end with the process at the latest.
class BlobLocks {
 public:
  void take(const std::string& path, const std::string& model, const Network& network) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!fd) fail_errno(path);
    while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == ENOTSUP || errno == ENOSYS) break;  // this file system has no locks
      if (errno != EWOULDBLOCK && errno != EINTR) fail_errno(path);
      if (!told_)
        std::fprintf(stderr, "%s: another process downloads it; waiting\n", model.c_str());
      told_ = true;
      network.sleep(kLockEvery);
    }
    locks_.push_back(std::move(fd));
  }

 private:
  std::vector<UniqueFd> locks_;
  bool told_ = false;
};

class Pull {
 public:
  Pull(const HubName& name, const HubSettings& settings, bool weights)
      : name_(name),
        settings_(settings),
        weights_(weights),
        cache_(settings.cache, name.repository),
        network_({.stop_fd = stop_.fd(), .first_answer = settings.first_answer}),
        client_(name, settings, network_) {}

  PulledModel run() {
    try {
      const std::int64_t started = now_ns();
      const ModelFiles wanted = find_files();
      cache_.make_folders();
      fetch_missing();
      PulledModel model = publish(wanted);
      if (model.downloaded > 0) {
        std::fprintf(stderr, "%s: %s, %s, in %s\n", name_.text().c_str(),
                     counted(model.files, "file").c_str(), format_bytes(model.bytes).c_str(),
                     format_duration(seconds_since(started)).c_str());
      }
      return model;
    } catch (const NetworkError& error) {
      if (network_.answered()) {
        fail(error.what(), "; what has arrived is kept: pull the model again to go on from there");
      }
      fail("model ", name_.text(), ": ", settings_.endpoint, " is not reached (", error.what(),
           "); check the network, set HF_ENDPOINT to a mirror, or pass a folder or a .gguf file",
           settings_.proxy.empty() ? ""
                                   : str(". ", settings_.proxy, " is set, but no proxy is used"));
    } catch (const NetworkStopped&) {
      const int signal = stop_.signal().value_or(SIGINT);
      throw PullStopped(
          signal, str("model ", name_.text(), ": stopped by SIG", ::sigabbrev_np(signal),
                      "; what has arrived is kept, and the ", "same command goes on from there"));
    }
  }

 private:
  // Asks the hub for the model's files.
  ModelFiles find_files() {
    HttpSession session(network_);
    const HubRevision revision = client_.with_attempts([&] { return client_.look_up(session); });
    commit_ = revision.commit;
    ModelFiles wanted = choose_files(name_, revision.files, weights_);
    if (wanted.index) add_shards(session, wanted);
    files_.resize(wanted.names.size());
    run_in_threads(
        files_.size(), [&] { stop_.stop(); },
        [&](HttpSession& own, std::size_t i) {
          files_[i] = client_.with_attempts(
              [&] { return client_.describe(own, commit_, wanted.names[i]); });
        },
        network_);
    return wanted;
  }

  void add_shards(HttpSession& session, ModelFiles& wanted) {
    const HubFile index =
        client_.with_attempts([&] { return client_.describe(session, commit_, kIndexName); });
    for (std::string& name : files_of_index(client_.text(session, index))) {
      wanted.names.push_back(std::move(name));
    }
  }

  void fetch_missing() {
    // Files with the same content share a blob. The order is the same everywhere, so that two
    // processes cannot deadlock.
    std::map<std::string, const HubFile*> missing;
    for (const HubFile& file : files_) {
      if (!fs::exists(cache_.blob(file.etag))) missing[file.etag] = &file;
    }
    BlobLocks locks;
    for (const auto& [etag, file] : missing) locks.take(cache_.lock(etag), name_.text(), network_);
    std::erase_if(missing, [&](const auto& one) { return fs::exists(cache_.blob(one.first)); });
    if (missing.empty()) return;
    check_space(missing);

    std::vector<std::unique_ptr<BlobWriter>> blobs;
    std::uint64_t there = 0, total = 0;
    for (const auto& [etag, file] : missing) {
      blobs.push_back(std::make_unique<BlobWriter>(*file, cache_.blob(etag),
                                                   [&] { network_.fail_if_stopped(); }));
      there += blobs.back()->size_at_start();
      total += file->size;
    }
    downloaded_ = total - there;
    if (there > 0) {
      std::fprintf(stderr, "%s: %s of %s are there already\n", name_.text().c_str(),
                   format_bytes(there).c_str(), format_bytes(total).c_str());
    }
    DownloadDisplay display(name_.text(), there, total);
    download(
        client_, network_, blobs, [&] { stop_.stop(); },
        [&](std::uint64_t bytes) { display.add(bytes); });
  }

  void check_space(const std::map<std::string, const HubFile*>& missing) const {
    std::uint64_t needed = 0;
    for (const auto& [etag, file] : missing) {
      std::error_code error;
      const std::uint64_t there = fs::file_size(cache_.blob(etag) + ".incomplete", error);
      needed += file->size - (error ? 0 : std::min(there, file->size));
    }
    struct statvfs disk {};
    if (::statvfs(cache_.folder().c_str(), &disk) != 0) return;
    const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    if (needed <= free) return;
    fail("model ", name_.text(), ": needs ", format_bytes(needed), ", and the disk of ",
         cache_.folder(), " has ", format_bytes(free),
         " free; make room, or set HF_HUB_CACHE to a folder on another disk");
  }

  // The snapshot is created once all of its files exist.
  PulledModel publish(const ModelFiles& wanted) const {
    PulledModel model;
    for (const HubFile& file : files_) {
      cache_.link(commit_, file.name, file.etag);
      model.bytes += file.size;
    }
    cache_.set_revision(name_.revision, commit_);
    model.path = cache_.snapshot(commit_);
    if (!wanted.gguf.empty()) model.path += '/' + wanted.gguf;
    model.commit = commit_;
    model.files = files_.size();
    model.downloaded = downloaded_;
    return model;
  }

  const HubName name_;
  const HubSettings settings_;
  const bool weights_;
  const HubCache cache_;
  StopSwitch stop_;
  Network network_;
  HubClient client_;
  std::string commit_;
  std::vector<HubFile> files_;
  std::uint64_t downloaded_ = 0;
};

}  // namespace

PulledModel pull_model(const HubName& name, const HubSettings& settings, bool weights) {
  if (!settings.offline.empty()) {
    fail("model ", name.text(), ": ", settings.offline,
         " forbids to download it; unset that, or pass a folder or a .gguf file");
  }
  if (settings.cache.empty()) {
    fail("model ", name.text(), ": there is no place for it: neither HF_HOME nor HOME is set; ",
         "set HF_HUB_CACHE to a folder");
  }
  return Pull(name, settings, weights).run();
}

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
