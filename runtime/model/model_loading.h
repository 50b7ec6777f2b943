// Loading a model: ModelRank loads one rank's part, ModelLoading waits for all ranks on rank 0 and
// reports their progress to the launcher. The messages that they exchange come first. Weights are
// checked for NaN and infinity on request (weight_check.cc).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/backend.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "layers/parameter.h"
#include "model/decoder.h"
#include "runtime/model/open_model.h"
#include "runtime/rank_report.h"

namespace nvllm::runtime {

// Finding NaN and infinity in weights: a checkpoint that was damaged, or quantized badly, makes
// every logit NaN without a hint at the cause. Weights are checked after that has happened, not
// while they load: loading runs at the speed of the files.

// Describes the first element of the parameter that is NaN or infinite, by name and index of the
// checkpoint's tensor: "model.norm.weight holds NaN at [7]". Waits for the device.
std::optional<std::string> weight_fault(const layers::Parameter& parameter, Backend& backend);

// Rank 0's side: the first fault on any rank; empty: all weights are finite. All ranks have bound
// their ModelRank. Each parameter is one call: a single call for all would exceed the step timeout.
std::string find_weight_fault(ipc::GroupCaller& caller);

// A rank's reply about one of its parameters.
struct WeightFault {
  bool there = false;  // the rank has such a parameter
  std::string text;    // empty: no fault

  template <class Archive>
  void serialize(Archive& archive) {
    archive(there, text);
  }
};

// One rank's progress, in bytes of its parameters.
struct LoadState {
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;
  bool done = false;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(bytes, total, done);
  }
};

// Times of one rank's load, from its start until its parameters can be used, in now_ns().
struct LoadTimes {
  std::int64_t started_ns = 0;
  std::int64_t loaded_ns = 0;
  std::uint64_t bytes_read = 0;    // from files
  std::uint64_t bytes_loaded = 0;  // of parameters

  double seconds() const { return static_cast<double>(loaded_ns - started_ns) * 1e-9; }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(started_ns, loaded_ns, bytes_read, bytes_loaded);
  }
};

struct ParameterChecksum {
  std::string name;
  std::uint64_t checksum = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, checksum);
  }
};

struct RankLoad {
  RankReport report;
  LoadTimes times;
  std::vector<ParameterChecksum> checksums;  // empty unless requested

  template <class Archive>
  void serialize(Archive& archive) {
    archive(report, times, checksums);
  }
};

// ModelRank: one rank's part of a model. It loads in a thread of its own, so that meanwhile the
// rank can start its communicator, keep its heartbeat and report progress. Used by the rank's main
// thread.
class ModelRank {
 public:
  // Starts loading. Both model and backend must outlive it.
  ModelRank(const OpenModel& model, layers::Shard shard, layers::Stage stage, Backend& backend);
  ModelRank(const ModelRank&) = delete;
  ModelRank& operator=(const ModelRank&) = delete;
  ~ModelRank();  // waits until loading ends

  // Binds the methods that rank 0 calls on all ranks. The first call throws the error of loading,
  // if any.
  void bind(ipc::Registry& methods);

  const OpenModel& model() const { return model_; }
  const model::Decoder& decoder() const { return decoder_; }
  // Waits until the parameters are allocated; their values may still be loading.
  void await_bound();

 private:
  void load();  // runs in thread_

  // Returns when loading has ended, or after the limit.
  LoadState await_load(std::int64_t limit_ns);
  // Call the next two only after the load.
  LoadTimes load_times() const { return times_; }
  // The checksum of parameter `index`; its name is empty past the last parameter.
  ParameterChecksum checksum_of(std::uint64_t index);
  // Whether parameter `index` contains NaN or infinity (weight_fault()).
  WeightFault weight_fault_of(std::uint64_t index);

  const OpenModel& model_;
  Backend& backend_;
  model::Decoder decoder_;
  Buffer weights_;
  LoadTimes times_;
  std::atomic<std::uint64_t> bytes_ = 0;  // of parameters filled so far

  std::mutex mutex_;
  std::condition_variable changed_;
  bool bound_ = false;  // guarded by mutex_, as are the next two
  bool done_ = false;
  std::exception_ptr error_;  // set if loading failed
  std::thread thread_;
};

// LoadWatch: detects a rank whose load has made no progress for longer than a limit.
class LoadWatch {
 public:
  LoadWatch(int ranks, Nanoseconds limit)
      : ranks_(static_cast<std::size_t>(ranks)), limit_(limit) {}

  // Checks the states of all ranks; `since`: time since the last check. An Error names the rank
  // that hangs.
  void check(const std::vector<LoadState>& states, Nanoseconds since);

 private:
  struct Rank {
    std::uint64_t bytes = 0;
    Nanoseconds without_progress{0};
  };
  std::vector<Rank> ranks_;
  Nanoseconds limit_;
};

// ModelLoading: rank 0's side. The ranks start loading by themselves; this class waits for them,
// reports their progress to the launcher, and fails if a rank makes no progress. Used by rank 0's
// main thread. Every rank has bound a ModelRank and its report (rank_report.h).
class ModelLoading {
 public:
  // All arguments must outlive this object.
  ModelLoading(ipc::Member& me, ipc::GroupCaller& caller, ipc::RequestServer& server)
      : me_(me), caller_(caller), server_(server) {}

  // "load": takes a bool (whether checksums are wanted), returns a RankLoad of every rank, and
  // pushes "load_state", the sum of all ranks' LoadStates, ten times a second.
  void bind(ipc::Registry& requests);

  // Waits for all ranks, and pushes as "load" does.
  void await_all();
  // The report of each rank, once all have loaded.
  std::vector<RankLoad> report();

 private:
  std::vector<RankLoad> load(bool checksums);
  void add_checksums(std::vector<RankLoad>& ranks);

  ipc::Member& me_;
  ipc::GroupCaller& caller_;
  ipc::RequestServer& server_;
};

}  // namespace nvllm::runtime
