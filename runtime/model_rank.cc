#include "runtime/model_rank.h"

#include "base/clock.h"
#include "base/thread.h"
#include "model/loading/loader.h"

namespace nvllm::runtime {
namespace {

// Of the random values of a dummy: the same in every run.
constexpr std::uint64_t kDummySeed = 0;

}  // namespace

ModelRank::ModelRank(const OpenModel& model, layers::Shard shard, Backend& backend)
    : model_(model), backend_(backend), decoder_(model.config, shard, model.dtype) {
  times_.begun_ns = now_ns();
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
    news_.notify_all();
  });
}

ModelRank::~ModelRank() {
  if (thread_.joinable()) thread_.join();
}

void ModelRank::bind(ipc::Registry& methods) {
  methods.bind<&ModelRank::await_load>("await_load", this);
  methods.bind<&ModelRank::load_times>("load_times", this);
  methods.bind<&ModelRank::checksum_of>("checksum_of", this);
}

void ModelRank::load() {
  const auto& parameters = decoder_.parameters();
  weights_ = model::bind_parameters(parameters, decoder_.dtype(), backend_);
  {
    const std::lock_guard lock(mutex_);
    bound_ = true;
    news_.notify_all();
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
  news_.wait(lock, [this] { return bound_ || done_; });
  if (error_) std::rethrow_exception(error_);
}

LoadState ModelRank::await_load(std::int64_t limit_ns) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, Nanoseconds(limit_ns), [this] { return done_; });
  // A rank of a group that breaks later leaves without destructors: no thread is left behind until then.
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

}  // namespace nvllm::runtime
