// Loading from a file in the page cache, in bytes of parameters per second, beside what limits it
// in the same run: "read" is the rate at which as many threads read the file into memory that they
// own, "copy" that of one copy after the other to the device (on CUDA from pinned memory; on the
// CPU memcpy by as many threads); "of_limit" is the share reached of the lesser of the two. Random
// weights are beside the rate of fill().
//
// NVLLM_LOADER_BENCH_BYTES is the size of the file (128 MiB), TMPDIR the folder for it (/tmp).
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/backend.h"
#include "device/topology.h"
#include "model/loading/loader.h"
#include "testing/bench_backend.h"

namespace nvllm::model {
namespace {

using layers::Parameter;
using layers::Range;

struct Case {
  DeviceKind kind;
  Encoding encoding = Encoding::bf16;
  std::int64_t columns = 4096;  // of the tensors in the file
  int parts = 1;                // into which columns are cut; one is loaded
  int threads = 0;              // 0: chosen by the loader
  std::size_t piece_bytes = 0;  // 0: likewise
  bool fresh = false;           // memory is allocated anew each time, and touched first by the load
};

std::string environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// A file without a name, in the page cache.
class File {
 public:
  File() : bytes_(std::stoull(environment("NVLLM_LOADER_BENCH_BYTES", "134217728"))) {
    path_ = environment("TMPDIR", "/tmp") + "/nvllm-loader-bench-XXXXXX";
    fd_.reset(mkostemp(path_.data(), O_CLOEXEC));
    if (!fd_) fail_errno("making ", path_);
    unlink(path_.c_str());
    // Without the second highest bit no number is infinite, in any encoding.
    std::vector<std::uint32_t> values(4 << 20);
    std::mt19937 random(1);
    for (std::uint32_t& value : values) value = random() & 0xbfbfbfbf;
    for (std::uint64_t at = 0; at < bytes_;) {
      const std::size_t part = std::min<std::uint64_t>(values.size() * 4, bytes_ - at);
      const ssize_t written = pwrite(fd_.get(), values.data(), part, at);
      if (written <= 0) fail_errno("writing ", path_);
      at += written;
    }
  }

  int fd() const { return fd_.get(); }
  std::uint64_t bytes() const { return bytes_; }

  // Its bytes as tensors "0", "1", ... of 2048 rows or more.
  Checkpoint checkpoint(Encoding encoding, std::int64_t columns) const {
    const std::uint64_t row_bytes = columns / block_elements(encoding) * block_bytes(encoding);
    const std::int64_t rows = std::min<std::uint64_t>(2048, bytes_ / row_bytes);
    std::vector<StoredTensor> tensors;
    for (std::uint64_t at = 0; at + rows * row_bytes <= bytes_; at += rows * row_bytes) {
      StoredTensor& tensor = tensors.emplace_back();
      tensor.name = tensor.stored_name = std::to_string(tensors.size() - 1);
      tensor.encoding = encoding;
      tensor.shape = {rows, columns};
      tensor.offset = at;
      tensor.bytes = rows * row_bytes;
    }
    std::vector<CheckpointFile> files;
    files.emplace_back(path_, UniqueFd(dup(fd_.get())), bytes_);
    return Checkpoint(std::move(files), std::move(tensors), "{}");
  }

 private:
  std::uint64_t bytes_;
  std::string path_;
  UniqueFd fd_;
};

const File& file() {
  static const File file;
  return file;
}

// The tensors, or the first part of their columns.
std::deque<Parameter> parameters_of(const Checkpoint& checkpoint, int parts) {
  std::deque<Parameter> parameters;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1] / parts;
    Parameter& parameter = parameters.emplace_back();
    parameter.name = name;
    parameter.shape = {rows, columns};
    parameter.slices.push_back({name, tensor.shape, Range{0, rows}, Range{0, columns}, 0});
  }
  return parameters;
}

double best_of(int runs, const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const std::int64_t start = now_ns();
    run();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

// Has the threads take [0, bytes) in pieces: part(thread, begin, bytes).
void in_pieces(int threads, std::uint64_t bytes,
               const std::function<void(int, std::uint64_t, std::size_t)>& part) {
  constexpr std::uint64_t kPiece = 4 << 20;
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      for (std::uint64_t at; (at = next.fetch_add(kPiece)) < bytes;) {
        part(i, at, std::min(kPiece, bytes - at));
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

double read_rate(int threads) {
  std::vector<std::vector<std::byte>> own(threads, std::vector<std::byte>(4 << 20));
  const double seconds = best_of(3, [&] {
    in_pieces(threads, file().bytes(), [&](int thread, std::uint64_t at, std::size_t bytes) {
      if (pread(file().fd(), own[thread].data(), bytes, at) < 0) fail_errno("reading");
    });
  });
  return static_cast<double>(file().bytes()) / seconds;
}

// From memory of the host to that of the device.
double copy_rate(Backend& backend, int threads) {
  const std::size_t bytes = 128 << 20;
  const Buffer from = backend.allocate(MemoryKind::pinned, bytes, "benchmark");
  const Buffer to = backend.allocate(MemoryKind::device, bytes, "benchmark");
  std::memset(from.data(), 1, bytes);
  const auto stream = backend.create_stream();
  const double seconds = best_of(4, [&] {
    if (backend.kind() == DeviceKind::cuda) {
      backend.copy(to.data(), from.data(), bytes, *stream);
      stream->synchronize();
      return;
    }
    in_pieces(threads, bytes, [&](int, std::uint64_t at, std::size_t part) {
      std::memcpy(static_cast<std::byte*>(to.data()) + at,
                  static_cast<const std::byte*>(from.data()) + at, part);
    });
  });
  return static_cast<double>(bytes) / seconds;
}

std::vector<Parameter*> pointers(std::deque<Parameter>& parameters) {
  std::vector<Parameter*> all;
  for (Parameter& parameter : parameters) all.push_back(&parameter);
  return all;
}

void load(benchmark::State& state, const Case& c) {
  const auto backend = testing::backend_or_skip(state, c.kind);
  if (backend == nullptr) return;
  const Checkpoint checkpoint = file().checkpoint(c.encoding, c.columns);
  std::deque<Parameter> parameters = parameters_of(checkpoint, c.parts);
  const std::vector<Parameter*> all = pointers(parameters);

  const auto cores = static_cast<int>(allowed_cores().size());
  const int threads = c.threads > 0 ? c.threads : c.kind == DeviceKind::cpu ? cores : 8;
  const double read = read_rate(threads), copy = copy_rate(*backend, threads);

  Buffer memory = bind_parameters(all, DType::bf16, *backend);
  const auto stream = backend->create_stream();
  backend->fill(memory.data(), 0, memory.bytes(), *stream);
  stream->synchronize();
  LoadReport report;
  double seconds = 0;
  for (auto _ : state) {
    if (c.fresh) {
      state.PauseTiming();
      memory = Buffer();
      state.ResumeTiming();
      memory = bind_parameters(all, DType::bf16, *backend);
    }
    report = load_parameters(all, checkpoint, *backend,
                             {.threads = c.threads, .piece_bytes = c.piece_bytes});
    seconds += report.seconds;
  }
  const double loaded = static_cast<double>(report.bytes_loaded);
  const double rate = loaded * static_cast<double>(state.iterations()) / seconds;
  // The file is read at `read`, the device is written at `copy`.
  const double limit = std::min(read * loaded / static_cast<double>(report.bytes_read), copy);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(report.bytes_loaded));
  state.counters["GB_per_s"] = rate * 1e-9;
  state.counters["read_GB_per_s"] = read * 1e-9;
  state.counters["copy_GB_per_s"] = copy * 1e-9;
  state.counters["bytes_read_per_byte"] = static_cast<double>(report.bytes_read) / loaded;
  state.counters["of_limit"] = rate / limit;
}

void dummy(benchmark::State& state, DeviceKind kind) {
  const auto backend = testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const Checkpoint checkpoint = file().checkpoint(Encoding::bf16, 4096);
  std::deque<Parameter> parameters = parameters_of(checkpoint, 1);
  const std::vector<Parameter*> all = pointers(parameters);
  const Buffer memory = bind_parameters(all, DType::bf16, *backend);
  const auto stream = backend->create_stream();
  const double fill = static_cast<double>(memory.bytes()) / best_of(3, [&] {
                        backend->fill(memory.data(), 1, memory.bytes(), *stream);
                        stream->synchronize();
                      });
  LoadReport report;
  double seconds = 0;
  for (auto _ : state) {
    report = load_dummy(all, *backend, 0.02f, 1);
    seconds += report.seconds;
  }
  const double rate =
      static_cast<double>(report.bytes_loaded) * static_cast<double>(state.iterations()) / seconds;
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(report.bytes_loaded));
  state.counters["GB_per_s"] = rate * 1e-9;
  state.counters["limit_GB_per_s"] = fill * 1e-9;
  state.counters["of_limit"] = rate / fill;
}

std::string name_of_case(const Case& c) {
  std::string name =
      str("load/", name_of(c.kind), "/", name_of(c.encoding), "/columns:", c.columns);
  if (c.parts > 1) name += str("/part_of:", c.parts);
  name += c.threads > 0 ? str("/threads:", c.threads) : "/threads:chosen";
  if (c.piece_bytes > 0) name += str("/piece:", c.piece_bytes >> 10, "KiB");
  return c.fresh ? name + "/fresh" : name;
}

std::vector<Case> cases(DeviceKind kind) {
  std::vector<Case> all;
  for (const int threads : {1, 2, 4, 8}) all.push_back({.kind = kind, .threads = threads});
  for (const std::size_t kib : {512, 1024, 2048, 4096, 8192, 16384}) {
    all.push_back({.kind = kind, .piece_bytes = kib << 10});
  }
  all.push_back({.kind = kind, .fresh = true});
  // Parts of rows of 2, 4, 12 KiB; the 2 KiB between the first are read along.
  for (const std::int64_t columns : {2048, 4096, 12288}) {
    all.push_back({.kind = kind, .columns = columns, .parts = 2});
  }
  for (const Encoding encoding : {Encoding::f32, Encoding::f16, Encoding::q8_0, Encoding::q4_k}) {
    all.push_back({.kind = kind, .encoding = encoding});
  }
  if (kind == DeviceKind::cuda) {
    for (const int threads : {6, 10, 12, 16}) {
      all.push_back({.kind = kind, .threads = threads});
      all.push_back({.kind = kind, .threads = threads, .piece_bytes = 1 << 20});
    }
  }
  return all;
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const Case& c : cases(kind)) {
      benchmark::RegisterBenchmark(name_of_case(c).c_str(),
                                   [=](benchmark::State& state) { load(state, c); })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(str("dummy/", name_of(kind)).c_str(),
                                 [=](benchmark::State& state) { dummy(state, kind); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::model
