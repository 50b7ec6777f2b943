// Executes a plan with many threads.
#include <fcntl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/thread.h"
#include "model/loading/load_plan.h"

namespace nvllm::model {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(100);

// Copies one thread's data through two pinned buffers: one is filled while the other is copied.
//
//   read(piece, staging.next());
//   staging.send(piece);
class Staging {
 public:
  Staging(Backend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), stream_(backend.create_stream()) {}
  ~Staging() {  // waits for its copies
    try {
      stream_->synchronize();
    } catch (const std::exception& error) {
      // finish() reports such an error; here the load has failed for another reason already.
      log_debug("while loading ends: ", error.what());
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Waits for a free buffer. A buffer is allocated when it is first needed: pinning one takes as
  // long as reading into it, so the second one waits until the first is being copied.
  std::byte* next() {
    Half& half = halves_[current_];
    if (!half.buffer) {
      half.buffer = backend_.allocate(MemoryKind::pinned, bytes_, "staging of weights");
      half.copied = backend_.create_event();
    }
    half.copied->synchronize();
    return static_cast<std::byte*>(half.buffer.data());
  }

  // Copies what was written to the buffer, a piece's values and then its scales, asynchronously.
  void send(const LoadPiece& piece) {
    NVLLM_CHECK_LE(piece.bytes(), bytes_);
    Half& half = halves_[current_];
    const auto* const from = static_cast<const std::byte*>(half.buffer.data());
    backend_.copy(piece.to, from, piece.value_bytes(), *stream_);
    if (piece.packed) {
      backend_.copy(piece.scales_to, from + piece.value_bytes(), piece.scale_bytes(), *stream_);
    }
    half.copied->record(*stream_);
    current_ = 1 - current_;
  }

  // Returns when everything has arrived.
  void finish() { stream_->synchronize(); }

 private:
  struct Half {
    Buffer buffer;
    std::unique_ptr<Event> copied;
  };

  Backend& backend_;
  const std::size_t bytes_;
  std::array<Half, 2> halves_;
  std::size_t current_ = 0;
  std::unique_ptr<Stream> stream_;  // last: on the CPU it ends its work before the buffers go
};

class ParallelLoad {
 public:
  ParallelLoad(const LoadPlan& plan, const Checkpoint& checkpoint, Backend& backend,
               std::size_t staging_bytes)
      : plan_(plan), checkpoint_(checkpoint), backend_(backend), staging_bytes_(staging_bytes) {}

  std::uint64_t run(int threads, const std::function<void(std::uint64_t)>& progress) {
    {
      std::vector<std::jthread> started;  // joined at the end of this block, whatever happens
      try {
        for (int i = 0; i < threads; ++i) {
          {
            const std::lock_guard lock(mutex_);
            ++running_;
          }
          started.push_back(start_thread<std::jthread>("to load with", [this] { run_thread(); }));
        }
        watch(progress);
      } catch (...) {
        stop(std::current_exception());
      }
    }
    if (error_) std::rethrow_exception(error_);
    return bytes_read_;
  }

 private:
  // Reports progress until all threads have ended.
  void watch(const std::function<void(std::uint64_t)>& progress) {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kProgressInterval, [&] { return running_ == 0; })) {
      lock.unlock();
      if (progress && !stopping_) progress(bytes_loaded_);
      lock.lock();
    }
  }

  void run_thread() noexcept {
    try {
      load_pieces();
    } catch (...) {
      stop(std::current_exception());
    }
    const std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_one();
  }

  void load_pieces() {
    PieceReader reader(checkpoint_);
    std::optional<Staging> staging;
    if (staging_bytes_ > 0) staging.emplace(backend_, staging_bytes_);
    while (!stopping_) {
      const std::size_t i = next_.fetch_add(1);
      if (i >= plan_.pieces.size()) break;
      const LoadPiece& piece = plan_.pieces[i];
      std::byte* const out = staging ? staging->next() : piece.to;
      reader.read(piece, out, staging ? out + piece.value_bytes() : piece.scales_to);
      if (staging) staging->send(piece);
      bytes_loaded_ += piece.bytes();
    }
    if (staging) staging->finish();
    bytes_read_ += reader.bytes_read();
  }

  void stop(std::exception_ptr error) {
    stopping_ = true;
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  const LoadPlan& plan_;
  const Checkpoint& checkpoint_;
  Backend& backend_;
  const std::size_t staging_bytes_;

  std::atomic<std::size_t> next_{0};  // index of the next piece
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> bytes_loaded_{0};
  std::atomic<std::uint64_t> bytes_read_{0};

  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;           // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_; the first
};

}  // namespace

std::uint64_t execute_load(const LoadPlan& plan, const Checkpoint& checkpoint, Backend& backend,
                           std::size_t staging_bytes, int threads,
                           const std::function<void(std::uint64_t)>& progress) {
  // Lets the system read further ahead in files that it does not hold yet.
  for (const CheckpointFile& file : checkpoint.files()) {
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  return ParallelLoad(plan, checkpoint, backend, staging_bytes).run(threads, progress);
}

}  // namespace nvllm::model
