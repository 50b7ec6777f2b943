#include "model/loading/load_plan.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/math.h"
#include "base/thread.h"

namespace nvllm::model {
namespace {

using layers::Parameter;
using layers::Range;
using layers::Slice;

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool within(const Range& range, std::int64_t size) {
  return 0 <= range.begin && range.begin <= range.end && range.end <= size;
}

// Checks that the slices cover the parameter exactly; layers declare both.
void check_slices(const Parameter& parameter) {
  const bool matrix = parameter.shape.size() == 2;
  NVLLM_CHECK(matrix || parameter.shape.size() == 1, parameter.name);
  std::vector<Range> covered;
  for (const Slice& slice : parameter.slices) {
    NVLLM_CHECK_EQ(slice.shape.size(), parameter.shape.size());
    NVLLM_CHECK(within(slice.rows, slice.shape[0]), parameter.name, " of ", slice.tensor);
    if (slice.rows.size() == 0) continue;
    NVLLM_CHECK(within(slice.columns, matrix ? slice.shape[1] : 1), parameter.name, " of ",
                slice.tensor);
    NVLLM_CHECK(slice.columns.size() == (matrix ? parameter.shape[1] : 1), parameter.name, " of ",
                slice.tensor);
    covered.push_back({slice.to_row, slice.to_row + slice.rows.size()});
  }
  std::ranges::sort(covered, {}, &Range::begin);
  std::int64_t row = 0;
  for (const Range& range : covered) {
    NVLLM_CHECK(range.begin == row, parameter.name, " row ", row);
    row = range.end;
  }
  NVLLM_CHECK(row == parameter.shape[0] || element_count(parameter.shape) == 0, parameter.name,
              " row ", row);
}

// The rows of a slice as a packed weight of their own.
kernels::QuantizedShape with_rows(kernels::QuantizedShape shape, const Range& rows) {
  shape.outputs = rows.size();
  return shape;
}

// Cuts a slice of a quantized parameter: a piece has whole rows. Cuts lie where periods of rows
// begin, and words of eight outputs.
void cut_packed(const LoadPiece& whole, const StoredRows& stored, std::size_t piece_bytes,
                std::vector<LoadPiece>& pieces) {
  const kernels::QuantizedShape row = with_rows(*whole.packed, {0, 1});
  const std::size_t row_bytes = std::max<std::size_t>(row.value_bytes() + row.scale_bytes(), 1);
  const std::int64_t unit = std::lcm(stored.period, std::int64_t{8});
  std::int64_t rows = static_cast<std::int64_t>(piece_bytes / row_bytes);
  rows = std::max<std::int64_t>(rows >= unit ? rows - rows % unit : rows, 1);
  LoadPiece piece = whole;
  for (piece.rows.begin = whole.rows.begin; piece.rows.begin < whole.rows.end;
       piece.rows.begin = piece.rows.end) {
    const std::int64_t from = piece.rows.begin - (rows % unit == 0 ? piece.rows.begin % unit : 0);
    piece.rows.end = std::min(from + rows, whole.rows.end);
    piece.packed = with_rows(*whole.packed, piece.rows);
    pieces.push_back(piece);
    piece.to += piece.value_bytes();
    piece.scales_to += piece.scale_bytes();
  }
}

// Cuts a whole slice into pieces.
void cut(const LoadPiece& whole, std::size_t piece_bytes, std::vector<LoadPiece>& pieces) {
  const StoredTensor& tensor = *whole.tensor;
  const std::int64_t block = block_elements(tensor.encoding);
  const std::size_t element = size_of(whole.dtype);
  const auto max_count = [&](std::size_t stored, std::size_t converted) {  // that fit in a piece
    return static_cast<std::int64_t>(piece_bytes / std::max({stored, converted, std::size_t{1}}));
  };
  const StoredRows stored(whole);
  if (whole.packed) return cut_packed(whole, stored, piece_bytes, pieces);

  // A piece has several rows (whole periods where the file has them in another order), or a part of
  // one row that is too long. Cuts lie where periods and blocks of the whole tensor begin.
  std::int64_t rows = max_count(stored.part, whole.columns.size() * element);
  std::int64_t columns = whole.columns.end;
  const std::int64_t unit = rows >= stored.period ? stored.period : 1;
  rows -= rows % unit;
  if (rows == 0) {
    rows = 1;
    if (!tensor.column_order) {
      columns = block *
                std::max<std::int64_t>(max_count(block_bytes(tensor.encoding), block * element), 1);
    }
  }
  LoadPiece piece = whole;
  for (piece.rows.begin = whole.rows.begin; piece.rows.begin < whole.rows.end;
       piece.rows.begin = piece.rows.end) {
    piece.rows.end = std::min(piece.rows.begin - piece.rows.begin % unit + rows, whole.rows.end);
    for (piece.columns.begin = whole.columns.begin; piece.columns.begin < whole.columns.end;
         piece.columns.begin = piece.columns.end) {
      piece.columns.end = std::min(piece.columns.begin - piece.columns.begin % columns + columns,
                                   whole.columns.end);
      pieces.push_back(piece);
      piece.to += piece.bytes();
    }
  }
}

// Whether the file's elements are those of the type.
bool same_elements(Encoding encoding, DType dtype) {
  return (encoding == Encoding::f32 && dtype == DType::f32) ||
         (encoding == Encoding::f16 && dtype == DType::f16) ||
         (encoding == Encoding::bf16 && dtype == DType::bf16) ||
         (encoding == Encoding::f8_e4m3 && dtype == DType::u8) ||
         (encoding == Encoding::i32 && dtype == DType::i32);
}

// The file offset at which a piece begins, ignoring another order of rows.
std::uint64_t file_offset(const LoadPiece& piece) {
  const StoredRows stored(piece);
  return stored.begin + (piece.rows.begin - piece.rows.begin % stored.period) * stored.stride;
}

}  // namespace

StoredRows::StoredRows(const LoadPiece& piece) {
  const StoredTensor& tensor = *piece.tensor;
  const bool matrix = tensor.shape.size() == 2;
  const std::int64_t block = block_elements(tensor.encoding);
  const Range columns = tensor.column_order ? Range{0, tensor.shape.back()} : piece.columns;
  const std::int64_t first = columns.begin / block;
  const std::int64_t last = divide_up(columns.end, block);
  stride = matrix ? tensor.row_bytes() : tensor.bytes;
  begin = tensor.offset + first * block_bytes(tensor.encoding);
  part = (last - first) * block_bytes(tensor.encoding);
  skip = columns.begin - first * block;
  elements = (last - first) * block;
  period = matrix && tensor.row_order ? tensor.row_order->period() : 1;
  as_is = !tensor.column_order && same_elements(tensor.encoding, piece.dtype);
}

LoadPlan plan_load(std::span<Parameter* const> parameters, const Checkpoint& checkpoint,
                   std::size_t piece_bytes) {
  LoadPlan plan;
  for (const Parameter* parameter : parameters) {
    check_slices(*parameter);
    for (const Slice& slice : parameter->slices) {
      const StoredTensor& tensor = checkpoint.get(slice.tensor, slice.shape);
      const bool matrix = slice.shape.size() == 2;
      LoadPiece piece;
      piece.tensor = &tensor;
      piece.rows = matrix ? slice.rows : Range{0, 1};
      piece.columns = matrix ? slice.columns : slice.rows;
      piece.dtype = parameter->type;
      if (piece.rows.size() * piece.columns.size() == 0) continue;
      NVLLM_CHECK(parameter->view.data != nullptr, parameter->name, " has no memory");
      if (parameter->quantization) {
        piece.packed = with_rows(parameter->quantized_shape(), piece.rows);
        const kernels::QuantizedShape before = with_rows(*piece.packed, {0, slice.to_row});
        piece.to = parameter->view.as<std::byte>() + before.value_bytes();
        piece.scales_to = parameter->scales.as<std::byte>() + before.scale_bytes();
      } else {
        const std::int64_t first = slice.to_row * (matrix ? parameter->shape[1] : 1);
        piece.to = parameter->view.as<std::byte>() + first * size_of(piece.dtype);
      }
      plan.bytes += piece.bytes();
      cut(piece, piece_bytes, plan.pieces);
    }
  }
  std::ranges::sort(plan.pieces, {}, [](const LoadPiece& piece) {
    return std::pair(piece.tensor->file, file_offset(piece));
  });
  return plan;
}

// Executes a plan with many threads.

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
