#include "runtime/model/model_loading.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "model/loading/loader.h"
#include "runtime/box_clocks.h"

namespace nvllm::runtime {
namespace {

layers::Shard shard_in(const OpenModel& model, layers::Shard shard) {
  shard.tp_invariant = model.tp_invariant;
  return shard;
}

// The seed of a dummy model's random values, which are the same in every run.
constexpr std::uint64_t kDummySeed = 0;

}  // namespace

ModelRank::ModelRank(const OpenModel& model, layers::Shard shard, layers::Stage stage,
                     Backend& backend)
    : model_(model),
      backend_(backend),
      decoder_(model.config, shard_in(model, shard), model.dtype, stage) {
  choose_quantization(decoder_, model_);
  times_.started_ns = now_ns();
  thread_ = start_thread("that loads the model", [this] {
    std::exception_ptr error;
    try {
      load();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    done_ = true;
    changed_.notify_all();
  });
}

ModelRank::~ModelRank() {
  if (thread_.joinable()) thread_.join();
}

void ModelRank::bind(ipc::Registry& methods) {
  methods.bind<&ModelRank::await_load>("await_load", this);
  methods.bind<&ModelRank::load_times>("load_times", this);
  methods.bind<&ModelRank::checksum_of>("checksum_of", this);
  methods.bind<&ModelRank::weight_fault_of>("weight_fault", this);
}

void ModelRank::load() {
  const auto& parameters = decoder_.parameters();
  weights_ = model::bind_parameters(parameters, decoder_.dtype(), backend_);
  {
    const std::lock_guard lock(mutex_);
    bound_ = true;
    changed_.notify_all();
  }
  const auto note = [this](const model::LoadProgress& progress) { bytes_ = progress.bytes; };
  const model::LoadReport report =
      model_.dummy
          ? model::load_dummy(parameters, backend_, model_.config.initializer_range, kDummySeed,
                              note)
          : model::load_parameters(parameters, *model_.checkpoint, backend_, {.progress = note});
  bytes_ = report.bytes_loaded;
  times_.loaded_ns = now_ns();
  times_.bytes_read = report.bytes_read;
  times_.bytes_loaded = report.bytes_loaded;
}

void ModelRank::await_bound() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return bound_ || done_; });
  if (error_) std::rethrow_exception(error_);
}

LoadState ModelRank::await_load(std::int64_t limit_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, Nanoseconds(limit_ns), [this] { return done_; });
  // When a group fails later, its ranks exit without destructors, so the thread must be joined now.
  if (done_ && thread_.joinable()) {
    lock.unlock();
    thread_.join();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
  const model::ParameterBytes bytes = model::bytes_of(decoder_.parameters(), decoder_.dtype());
  return {.bytes = bytes_, .total = bytes.used, .done = done_};
}

ParameterChecksum ModelRank::checksum_of(std::uint64_t index) {
  if (index >= decoder_.parameters().size()) return {};
  const layers::Parameter& parameter = *decoder_.parameters()[index];
  return {.name = parameter.name, .checksum = model::checksum(parameter, backend_)};
}

WeightFault ModelRank::weight_fault_of(std::uint64_t index) {
  if (index >= decoder_.parameters().size()) return {};
  return {.there = true,
          .text = weight_fault(*decoder_.parameters()[index], backend_).value_or("")};
}

namespace {

// Maximum duration of one call that waits for the ranks; less if the step timeout is short.
constexpr Nanoseconds kRound = std::chrono::milliseconds(50);
constexpr Nanoseconds kBetweenPushes = 2 * kRound;
// A round that took longer was suspended (Ctrl-Z); that is not a rank's fault.
constexpr Nanoseconds kLongestRound = 4 * kRound;

LoadState sum_of(const std::vector<LoadState>& states) {
  LoadState sum{.done = true};
  for (const LoadState& state : states) {
    sum.bytes += state.bytes;
    sum.total += state.total;
    sum.done = sum.done && state.done;
  }
  return sum;
}

}  // namespace

void LoadWatch::check(const std::vector<LoadState>& states, Nanoseconds since) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const LoadState& state = states[rank];
    Rank& last = ranks_[rank];
    if (state.done || state.bytes != last.bytes) {
      last = {.bytes = state.bytes};
      continue;
    }
    last.without_progress += std::min(since, kLongestRound);
    if (last.without_progress <= limit_) continue;
    fail("rank ", rank, " has loaded nothing for ",
         format_duration(std::chrono::duration<double>(last.without_progress).count()), ", ",
         state.bytes, " of ", state.total,
         " bytes: does the disk still answer? A longer --step-timeout waits longer");
  }
}

void ModelLoading::bind(ipc::Registry& requests) {
  requests.bind<&ModelLoading::load>("load", this);
}

std::vector<RankLoad> ModelLoading::load(bool checksums) {
  await_all();
  std::vector<RankLoad> ranks = report();
  if (checksums) add_checksums(ranks);
  return ranks;
}

std::vector<RankLoad> ModelLoading::report() {
  const std::vector<RankReport> reports = caller_.call<RankReport>("report");
  const std::vector<LoadTimes> times = caller_.call<LoadTimes>("load_times");
  BoxClocks clocks(me_, caller_);
  clocks.compare();
  std::vector<RankLoad> ranks;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    RankLoad& load = ranks.emplace_back(RankLoad{reports[rank], times[rank], {}});
    StartTimes& start = load.report.start;
    clocks.to_ours(static_cast<int>(rank),
                   {&start.joined_ns, &start.backend_ns, &start.communicator_ns, &start.ready_ns,
                    &load.times.started_ns, &load.times.loaded_ns});
  }
  return ranks;
}

void ModelLoading::await_all() {
  const Nanoseconds limit = me_.group().step_timeout();
  const Nanoseconds round = std::min(kRound, limit / 4);
  LoadWatch watch(me_.size(), limit);
  std::int64_t last_push_ns = 0;
  std::int64_t last_check_ns = now_ns();
  while (true) {
    const std::vector<LoadState> states =
        caller_.call<LoadState>("await_load", std::int64_t{round.count()});
    const LoadState all = sum_of(states);
    if (all.done) return;
    const std::int64_t now = now_ns();
    watch.check(states, Nanoseconds(now - last_check_ns));
    last_check_ns = now;
    if (Nanoseconds(now - last_push_ns) < kBetweenPushes) continue;
    server_.push("load_state", all);
    last_push_ns = now;
  }
}

// One call per parameter: a single call for a large model would exceed the step timeout.
void ModelLoading::add_checksums(std::vector<RankLoad>& ranks) {
  for (std::uint64_t index = 0;; ++index) {
    const auto sums = caller_.call<ParameterChecksum>("checksum_of", index);
    bool more = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (sums[rank].name.empty()) continue;
      ranks[rank].checksums.push_back(sums[rank]);
      more = true;
    }
    if (!more) return;
  }
}

}  // namespace nvllm::runtime
