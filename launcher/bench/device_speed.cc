#include "launcher/bench/device_speed.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "device/backend.h"
#include "device/topology.h"
#include "kernels/gemm/gemm.h"
#include "launcher/supervise/child.h"

namespace nvllm::launcher {
namespace {

// Runs of a measurement: fewer where they take long, which then vary little.
constexpr int kTries = 15, kMinTries = 3;
constexpr double kEnoughSeconds = 0.5;

struct Measured {
  double bytes_per_second = 0;
  double flops_per_second = 0;
};

// The shortest time of a few runs, in seconds.
double best_seconds(const std::function<void()>& work) {
  work();
  double best = 1e9;
  const std::int64_t start = now_ns();
  for (int i = 0; i < kTries && (i < kMinTries || seconds_since(start) < kEnoughSeconds); ++i) {
    const std::int64_t begin = now_ns();
    work();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

double cpu_read_speed() {
  constexpr std::size_t kWordsPerCore = (std::size_t{64} << 20) / sizeof(std::uint64_t);
  const std::size_t cores = std::max<std::size_t>(allowed_cores().size(), 1);
  std::vector<std::vector<std::uint64_t>> memory(cores);
  std::vector<std::uint64_t> sums(cores);
  const auto on_all_cores = [&](const std::function<void(std::size_t)>& work) {
    std::vector<std::jthread> threads;  // joined on return, also after an Error
    for (std::size_t core = 0; core < cores; ++core) {
      threads.push_back(
          start_thread<std::jthread>("to read memory with", [&work, core] { work(core); }));
    }
  };
  on_all_cores([&](std::size_t core) { memory[core].assign(kWordsPerCore, core); });
  const double seconds = best_seconds([&] {
    on_all_cores([&](std::size_t core) {
      std::uint64_t sum = 0;
      for (const std::uint64_t word : memory[core]) sum ^= word;
      sums[core] += sum;
    });
  });
  return static_cast<double>(cores * kWordsPerCore * sizeof(std::uint64_t)) / seconds;
}

double gpu_copy_speed(Backend& backend, Stream& stream) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  constexpr int kCopies = 4;
  const Buffer from = backend.allocate(MemoryKind::device, kBytes, "measurement");
  const Buffer to = backend.allocate(MemoryKind::device, kBytes, "measurement");
  const double seconds = best_seconds([&] {
    for (int i = 0; i < kCopies; ++i) backend.copy(to.data(), from.data(), kBytes, stream);
    stream.synchronize();
  });
  return 2.0 * kCopies * kBytes / seconds;
}

double gemm_speed(Backend& backend, Stream& stream) {
  const std::int64_t size = backend.kind() == DeviceKind::cuda ? 8192 : 1024;
  const auto bytes = static_cast<std::size_t>(size * size) * size_of(DType::bf16);
  std::array<Buffer, 3> buffers;
  for (Buffer& buffer : buffers) {
    buffer = backend.allocate(MemoryKind::device, bytes, "measurement");
    backend.fill(buffer.data(), 0x3c, bytes, stream);  // 0.0115
  }
  const auto tensor = [&](int i) {
    return TensorView(buffers[static_cast<std::size_t>(i)].data(), DType::bf16, {size, size});
  };
  const auto gemm = kernels::create_gemm(backend);
  const kernels::GemmCall call =
      gemm->call({.values = tensor(2)}, {.out = tensor(0), .x = tensor(1)});
  gemm->tune({&call, 1}, stream);
  const double seconds = best_seconds([&] {
    gemm->run(call, stream);
    stream.synchronize();
  });
  return 2.0 * static_cast<double>(size * size * size) / seconds;
}

Measured measure(DeviceKind kind) {
  Measured measured;
  if (kind == DeviceKind::cpu) measured.bytes_per_second = cpu_read_speed();
  const auto backend = create_backend(kind);
  const auto stream = backend->create_stream();
  if (kind == DeviceKind::cuda) measured.bytes_per_second = gpu_copy_speed(*backend, *stream);
  measured.flops_per_second = gemm_speed(*backend, *stream);
  return measured;
}

LinkSpeed measure_link(DeviceKind kind) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const auto backend = create_backend(kind);
  const auto stream = backend->create_stream();
  const Buffer host = backend->allocate(MemoryKind::pinned, kBytes, "measurement");
  const Buffer device = backend->allocate(MemoryKind::device, kBytes, "measurement");
  const auto speed_of = [&](void* to, const void* from) {
    return kBytes / best_seconds([&] {
             backend->copy(to, from, kBytes, *stream);
             stream->synchronize();
           });
  };
  return {.to_device = speed_of(device.data(), host.data()),
          .to_host = speed_of(host.data(), device.data()),
          .source = {}};
}

// Whether there is data or end of file within the limit.
bool readable_within(int fd, Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  for (std::int64_t left = limit.count(); left > 0; left = end - now_ns()) {
    pollfd wanted{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(left / 1'000'000) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail_errno("poll for a measurement");
  }
  return false;
}

// Ends the child, and describes how it ended: "was killed by SIGKILL", "took more than 30 s".
std::string how_it_ended(Child& child, Nanoseconds limit, bool in_time) {
  child.end();
  if (!in_time)
    return "took more than " + format_duration(std::chrono::duration<double>(limit).count());
  return child.status() ? "ended: " + child.status()->describe() : "is gone";
}

// Runs a measurement in a child process and returns its numbers; `fix`: the options to pass if it
// fails.
template <std::size_t n>
std::array<double, n> numbers_of_child(const std::function<std::array<double, n>()>& measure_all,
                                       Nanoseconds limit, const char* fix) {
  struct Answer {
    std::array<double, n> numbers;
    std::array<char, 256> problem;  // "": it succeeded
  };
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) fail_errno("pipe for a measurement");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  Child child = Child::start([&] {
    Answer answer{};
    try {
      answer.numbers = measure_all();
    } catch (const std::exception& error) {
      std::string(error.what()).copy(answer.problem.data(), answer.problem.size() - 1);
    }
    return ::write(write_end.get(), &answer, sizeof answer) == sizeof answer ? 0 : 1;
  });
  write_end.reset();
  Answer answer{};
  const bool in_time = readable_within(read_end.get(), limit);
  const bool whole = in_time && ::read(read_end.get(), &answer, sizeof answer) == sizeof answer;
  const std::string end = how_it_ended(child, limit, in_time);
  if (!whole) fail("measuring the device for the floor: its process ", end, "; pass ", fix);
  if (answer.problem.front() != '\0') {
    fail("measuring the device for the floor: ", answer.problem.data(), "; or pass ", fix);
  }
  return answer.numbers;
}

Measured measure_in_child(DeviceKind kind, Nanoseconds limit) {
  const auto [bytes, flops] = numbers_of_child<2>(
      [kind] {
        const Measured measured = measure(kind);
        return std::array{measured.bytes_per_second, measured.flops_per_second};
      },
      limit, "--bandwidth and --tflops");
  return {.bytes_per_second = bytes, .flops_per_second = flops};
}

LinkSpeed measure_link_in_child(DeviceKind kind, Nanoseconds limit) {
  const auto [to_device, to_host] = numbers_of_child<2>(
      [kind] {
        const LinkSpeed link = measure_link(kind);
        return std::array{link.to_device, link.to_host};
      },
      limit, "--link");
  return {.to_device = to_device, .to_host = to_host, .source = "measured"};
}

// Size of the last-level cache, which holds everything that a step reads if that is small enough.
double cache_bytes(bool cpu) {
  constexpr double kLargestGpuCache = 50.0 * (1 << 20);  // the L2 of H100 and H200
  if (!cpu) return kLargestGpuCache;
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    const long bytes = ::sysconf(level);
    if (bytes > 0) return static_cast<double>(bytes);
  }
  return 0;
}

// The kind of a device with this name.
DeviceKind kind_of_device(const std::string& device) {
  return device.starts_with("CPU") ? DeviceKind::cpu : DeviceKind::cuda;
}

}  // namespace

std::optional<DeviceSpeed> known_speed(const std::string& device) {
  if (device.find("H200") != std::string::npos) {
    return DeviceSpeed{.bytes_per_second = 4.41e12,
                       .flops_per_second = 650e12,
                       .attention_flops_per_second = 565e12,
                       .source = "known of the H200"};
  }
  return std::nullopt;
}

DeviceSpeed device_speed(const SpeedOptions& options) {
  const DeviceKind kind = kind_of_device(options.device);
  const bool on_cpu = kind == DeviceKind::cpu;
  DeviceSpeed speed;
  if (const auto known = known_speed(options.device)) {
    speed = *known;
  } else if (!options.bandwidth_tb_s || !options.tflops) {
    const Measured measured = measure_in_child(kind, options.limit);
    const double share = on_cpu ? 1.0 / options.ranks : 1.0;
    speed = {.bytes_per_second = measured.bytes_per_second * share,
             .flops_per_second = measured.flops_per_second * share,
             .attention_flops_per_second = measured.flops_per_second * share,
             .source = "measured"};
  }
  // Ranks on the CPU share it.
  speed.cache_bytes = cache_bytes(on_cpu) / (on_cpu ? options.ranks : 1);
  if (options.bandwidth_tb_s) speed.bytes_per_second = *options.bandwidth_tb_s * 1e12;
  if (options.tflops) {
    speed.flops_per_second = speed.attention_flops_per_second = *options.tflops * 1e12;
  }
  if (options.bandwidth_tb_s || options.tflops) {
    speed.source = options.bandwidth_tb_s && options.tflops ? "given" : "given, " + speed.source;
  }
  return speed;
}

LinkSpeed link_speed(const SpeedOptions& options) {
  if (options.link_gb_s) {
    return {*options.link_gb_s * 1e9, *options.link_gb_s * 1e9, "given"};
  }
  const DeviceKind kind = kind_of_device(options.device);
  LinkSpeed link = measure_link_in_child(kind, options.limit);
  const double share = kind == DeviceKind::cpu ? 1.0 / options.ranks : 1.0;
  link.to_device *= share;
  link.to_host *= share;
  return link;
}

}  // namespace nvllm::launcher
