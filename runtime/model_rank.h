// ModelRank: one rank's part of a model. It loads on a thread of its own, so that the rank can start its
// communicator, give signs of life and answer how far it is, all at the same time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "device/backend.h"
#include "ipc/registry.h"
#include "model/decoder.h"
#include "runtime/model_messages.h"
#include "runtime/open_model.h"

namespace nvllm::runtime {

// Used by the rank's main thread.
class ModelRank {
 public:
  // Begins to load. Both must outlive it.
  ModelRank(const OpenModel& model, layers::Shard shard, Backend& backend);
  ModelRank(const ModelRank&) = delete;
  ModelRank& operator=(const ModelRank&) = delete;
  ~ModelRank();  // waits until it has been loaded

  // What rank 0 calls on all ranks. What loading threw is thrown by the first of them.
  void bind(ipc::Registry& methods);

  const OpenModel& model() const { return model_; }
  const model::Decoder& decoder() const { return decoder_; }
  // Until the parameters have their memory, though perhaps not their values.
  void await_bound();

 private:
  void load();  // the thread's

  // Returns when loading has ended, or after the limit.
  LoadState await_load(std::int64_t limit_ns);
  // The following two only after the load.
  LoadTimes load_times() const { return times_; }
  // Of parameter `index`, or of no name where there is none any more.
  ParameterChecksum checksum_of(std::uint64_t index);

  const OpenModel& model_;
  Backend& backend_;
  model::Decoder decoder_;
  Buffer weights_;
  LoadTimes times_;
  std::atomic<std::uint64_t> bytes_ = 0;  // of parameters filled so far

  std::mutex mutex_;
  std::condition_variable news_;
  bool bound_ = false;  // guarded by mutex_, as are the next two
  bool done_ = false;
  std::exception_ptr error_;  // why it failed
  std::thread thread_;
};

}  // namespace nvllm::runtime
