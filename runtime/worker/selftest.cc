#include "runtime/worker/selftest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/math.h"
#include "kernels/pointwise/rmsnorm.h"
#include "runtime/box_clocks.h"

namespace nvllm::runtime {
namespace {

constexpr std::size_t kMaxFailures = 20;  // that are reported; one is usually followed by many

constexpr int kMessages = 1000;  // the result is their median

constexpr std::array kTypes = {DType::f32, DType::bf16, DType::f16};
constexpr std::array kOperations = {
    Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
    Operation::gather,     Operation::broadcast,      Operation::all_reduce_rms_norm,
};

// Whether the result must have the same bits on every rank.
bool same_everywhere(Operation operation) {
  return operation != Operation::reduce_scatter && operation != Operation::gather;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Sample make_sample(std::uint64_t seed) {
  Sample sample{
      .number = std::numeric_limits<std::int64_t>::min() + static_cast<std::int64_t>(seed % 1000),
      .fraction = static_cast<double>(seed) / 3,
      .text = "grüße \"quoted\"\n" + std::string(1, '\0') + "end",
      .words = {},
      .names = {"", "a", std::string(300, 'x')},
      .table = {{"one", 1}, {"minus two", -2}},
      .maybe = {}};
  for (std::uint64_t i = 0; i < seed % 100; ++i)
    sample.words.push_back(static_cast<std::uint32_t>(split_mix(seed + i)));
  if (seed % 2 == 0) sample.maybe = 0.5f;
  return sample;
}

}  // namespace

void Selftest::bind(ipc::Registry& requests) {
  requests.bind<&Selftest::run>("selftest", this);
}

SelftestResult Selftest::run(double seconds) {
  result_ = {};
  checks_ = collectives_ = 0;
  // The first call: it returns when all ranks are ready.
  const std::vector<RankReport> ready = caller_.call<RankReport>("report");
  on_gpu_ = ready.front().collectives != "shm";
  check_calls();
  check_large_messages();
  check_failures();
  check_collectives();
  measure_calls();
  measure_collectives();
  if (seconds > 0) keep_going(seconds);
  add_row("calls checked", static_cast<double>(checks_), "");
  add_row("collectives checked", static_cast<double>(collectives_), "");
  result_.ranks = caller_.call<RankReport>("report");  // again, with the memory allocated since
  BoxClocks clocks(me_, caller_);
  clocks.compare();
  for (std::size_t rank = 0; rank < result_.ranks.size(); ++rank) {
    StartTimes& start = result_.ranks[rank].start;
    clocks.to_ours(static_cast<int>(rank),
                   {&start.joined_ns, &start.backend_ns, &start.communicator_ns, &start.ready_ns});
  }
  return std::move(result_);
}

std::uint64_t Selftest::fresh_seed() {
  if (seed_ == 0) seed_ = static_cast<std::uint64_t>(now_ns());
  return split_mix(seed_++);
}

void Selftest::expect(bool good, const std::string& what) {
  ++checks_;
  if (good || result_.failures.size() >= kMaxFailures) return;
  log_error("selftest: ", what);
  result_.failures.push_back(what);
}

void Selftest::add_row(const std::string& name, double value, const std::string& unit) {
  result_.rows.push_back({name, value, unit});
}

void Selftest::check_calls() {
  for (int round = 0; round < 20; ++round) {
    const Sample sample = make_sample(fresh_seed());
    const std::vector<Sample> echoes = caller_.call<Sample>("echo", sample);
    for (std::size_t rank = 0; rank < echoes.size(); ++rank) {
      expect(echoes[rank] == sample, str("echo of a struct came back changed from rank ", rank));
    }
    const auto a = static_cast<std::int32_t>(round - 10);
    const auto b = static_cast<std::int64_t>(fresh_seed() >> 2);
    const std::vector<std::int64_t> sums = caller_.call<std::int64_t>("add", a, b, 40.0);
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      expect(sums[rank] == a + b + 40 + static_cast<std::int64_t>(rank),
             str("add returned ", sums[rank], " on rank ", rank));
    }
  }
}

// Empty, one slot, many slots, and more than all slots of a ring together; in both directions.
void Selftest::check_large_messages() {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4096},
                                 std::size_t{1} << 20, (std::size_t{4} << 20) + 13}) {
    std::vector<std::byte> bytes(size);
    const std::uint64_t seed = fresh_seed();
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(split_mix(seed + i));
    for (const std::uint64_t hash : caller_.call<std::uint64_t>("hash", bytes)) {
      expect(hash == hash_bytes(bytes.data(), size),
             str("an argument of ", size, " bytes arrived changed"));
    }
    for (const auto& made :
         caller_.call<std::vector<std::byte>>("make_bytes", std::uint64_t{size}, seed)) {
      expect(made == bytes, str("a reply of ", size, " bytes arrived changed"));
    }
  }
}

// A method that throws on one rank fails the call with that rank's error text, and has no other
// effect.
void Selftest::check_failures() {
  for (int rank = 0; rank < me_.size(); ++rank) {
    std::string message = "no error";
    int blamed = -1;
    try {
      caller_.call<int>("fail_on", rank);
    } catch (const ipc::RemoteError& error) {
      message = error.what();
      blamed = error.rank();
    }
    expect(blamed == rank && message.find("asked to fail") != std::string::npos,
           str("a failure on rank ", rank, " came back as '", message, "'"));
    const std::vector<int> ranks = caller_.call<int>("nothing");
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      expect(ranks[i] == static_cast<int>(i),
             str("after a failure on rank ", rank, ", rank ", i, " answered wrongly"));
    }
  }
}

void Selftest::check_collective(const CollectiveCase& which) {
  const std::string name =
      str(name_of(which.operation), ' ', which.elements, ' ', name_of(which.dtype));
  const auto outcomes = caller_.call<CollectiveOutcome>("run_collective", which);
  ++collectives_;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const CollectiveOutcome& outcome = outcomes[rank];
    expect(outcome.complaint.empty(), str(name, " on rank ", rank, ": ", outcome.complaint));
    expect(!same_everywhere(which.operation) || outcome.bits == outcomes[0].bits,
           str(name, ": ranks 0 and ", rank, " have different bits"));
  }
}

void Selftest::check_collectives() {
  const std::int64_t ranks = me_.size();
  const auto scattered = [](Operation operation) { return operation == Operation::reduce_scatter; };
  for (const Operation operation : kOperations) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t elements :
           {std::int64_t{1}, std::int64_t{7}, std::int64_t{1000}, std::int64_t{65'537}}) {
        CollectiveCase which{.operation = operation, .dtype = dtype, .seed = fresh_seed()};
        which.elements = scattered(operation) ? elements * ranks : elements;
        which.columns = elements == 1000                          ? 125
                        : elements <= kernels::kRmsNormMaxColumns ? elements
                                                                  : 1;
        which.root = static_cast<int>(which.seed % static_cast<std::uint64_t>(ranks));
        check_collective(which);
        if (operation == Operation::all_reduce_rms_norm) continue;
        which.whole_numbers = false;
        which.seed = fresh_seed();
        check_collective(which);
      }
    }
    // Several times the size of the staging memory.
    CollectiveCase large{
        .operation = operation, .elements = 1'000'000 / ranks * ranks + ranks, .columns = 1};
    large.seed = fresh_seed();
    if (operation == Operation::all_reduce_rms_norm)
      large.elements = 512 * 1024, large.columns = 1024;
    check_collective(large);
  }
}

void Selftest::measure_calls() {
  // The latency from rank 0 to the others. Paced, so that messages do not queue up. Ranks on other
  // boxes have other clocks.
  const int here = me_.group().ranks_of(me_.group().box());
  if (here > 1) {
    const std::vector<std::byte> padding(4096 - 64);
    caller_.call<std::vector<double>>("take_arrivals");
    for (int i = 0; i < kMessages; ++i) {
      caller_.notify("note_arrival", now_ns(), padding);
      for (const std::int64_t start = now_ns(); now_ns() - start < 20'000;) cpu_relax();
    }
    std::vector<double> seconds;
    const auto arrivals = caller_.call<std::vector<double>>("take_arrivals");
    for (std::size_t rank = 1; rank < static_cast<std::size_t>(here); ++rank) {
      seconds.insert(seconds.end(), arrivals[rank].begin(), arrivals[rank].end());
    }
    add_row("control message of 4 KiB, p50", median(seconds) * 1e6, "us");
  }
  std::vector<double> seconds;
  for (int i = 0; i < kMessages; ++i) {
    const std::int64_t start = now_ns();
    caller_.call<int>("nothing");
    seconds.push_back(seconds_since(start));
  }
  add_row("call of all ranks and back, p50", median(seconds) * 1e6, "us");
}

void Selftest::measure_collectives() {
  const auto time = [&](const TimingCase& which) {
    const std::vector<double> seconds = caller_.call<double>("time_all_reduce", which);
    return *std::max_element(seconds.begin(), seconds.end());
  };
  struct Size {
    const char* name;
    std::int64_t bytes;
    int repetitions;
  };
  std::vector<Size> sizes = {
      {"8 KiB", 8 << 10, 500}, {"128 KiB", 128 << 10, 200}, {"1 MiB", 1 << 20, 50}};
  if (on_gpu_) sizes.push_back({"64 MiB", 64 << 20, 20});
  for (const Size& size : sizes) {
    const double seconds =
        time({.elements = size.bytes / 2, .dtype = DType::bf16, .repetitions = size.repetitions});
    add_row(str("all_reduce ", size.name, " bfloat16"), seconds * 1e6, "us");
    add_row(str("all_reduce ", size.name, " bfloat16, rate"),
            static_cast<double>(size.bytes) / seconds * 1e-9, "GB/s");
  }
  for (const std::int64_t rows : {1, 16}) {
    constexpr std::int64_t kColumns = 4096;
    const double seconds = time({.elements = rows * kColumns,
                                 .dtype = DType::bf16,
                                 .repetitions = 200,
                                 .columns = kColumns});
    add_row(str("all_reduce + residual + RMSNorm ", rows, " x ", kColumns, " bfloat16"),
            seconds * 1e6, "us");
  }
}

void Selftest::keep_going(double seconds) {
  const std::int64_t start = now_ns();
  double next_line = 1;
  while (seconds_since(start) < seconds && result_.failures.size() < kMaxFailures &&
         !me_.group().stop_requested()) {
    const std::uint64_t random = fresh_seed();
    CollectiveCase which{
        .operation = kOperations[random % kOperations.size()],
        .dtype = kTypes[random / 7 % kTypes.size()],
        .elements = static_cast<std::int64_t>(1 + random / 31 % 20'000) * me_.size(),
        .root = static_cast<int>(random / 5 % static_cast<std::uint64_t>(me_.size())),
        .seed = fresh_seed()};
    which.columns = which.elements / me_.size();
    check_collective(which);
    const Sample sample = make_sample(random);
    for (const Sample& echo : caller_.call<Sample>("echo", sample)) {
      expect(echo == sample, "echo of a struct came back changed");
    }
    if (seconds_since(start) < next_line) continue;
    log_info("selftest: ", static_cast<int>(next_line), " of ", seconds, " s, ", checks_,
             " checks, ", collectives_, " collectives, ", result_.failures.size(), " failures");
    next_line += 1;
  }
}

}  // namespace nvllm::runtime
