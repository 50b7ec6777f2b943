#include "model/parallel_load.h"

#include <fcntl.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/thread.h"
#include "model/piece_reader.h"
#include "model/staging.h"

namespace nvllm::model {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);

// Joins its threads, whatever happens.
class Threads {
 public:
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  template <typename Function>
  void start(Function function) {
    threads_.push_back(start_thread("to load with", std::move(function)));
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

ParallelLoad::ParallelLoad(const LoadPlan& plan, const Checkpoint& checkpoint, Backend& backend,
                           std::size_t staging_bytes)
    : plan_(plan), checkpoint_(checkpoint), backend_(backend), staging_bytes_(staging_bytes) {}

void ParallelLoad::run(int threads, const std::function<void(std::uint64_t)>& progress) {
  // Files that the system does not hold yet: it then reads further ahead.
  for (const CheckpointFile& file : checkpoint_.files()) {
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  {
    Threads started;
    try {
      for (int i = 0; i < threads; ++i) {
        {
          const std::lock_guard lock(mutex_);
          ++running_;
        }
        started.start([this] { work(); });
      }
      watch(progress);
    } catch (...) {
      stop(std::current_exception());
    }
  }
  if (error_) std::rethrow_exception(error_);
}

// Until all threads have ended.
void ParallelLoad::watch(const std::function<void(std::uint64_t)>& progress) {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kTick, [&] { return running_ == 0; })) {
    lock.unlock();
    if (progress && !stopping_) progress(bytes_loaded_);
    lock.lock();
  }
}

void ParallelLoad::work() noexcept {
  try {
    load_pieces();
  } catch (...) {
    stop(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  --running_;
  ended_.notify_one();
}

void ParallelLoad::load_pieces() {
  PieceReader reader(checkpoint_);
  std::optional<Staging> staging;
  if (staging_bytes_ > 0) staging.emplace(backend_, staging_bytes_);
  while (!stopping_) {
    const std::size_t i = next_.fetch_add(1);
    if (i >= plan_.pieces.size()) break;
    const LoadPiece& piece = plan_.pieces[i];
    std::byte* const out = staging ? staging->next() : piece.to;
    reader.read(piece, out);
    if (staging) staging->send(piece.to, piece.bytes());
    bytes_loaded_ += piece.bytes();
  }
  if (staging) staging->finish();
  bytes_read_ += reader.bytes_read();
}

void ParallelLoad::stop(std::exception_ptr error) {
  stopping_ = true;
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

}  // namespace nvllm::model
