// A rank's half of the selftest: the inputs and expected results of collectives, and the methods
// that rank 0 calls.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "kernels/pointwise/rmsnorm.h"
#include "runtime/worker/selftest.h"

namespace nvllm::runtime {

std::uint64_t hash_bytes(const void* data, std::size_t bytes) {
  const auto* byte = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3;
  return hash;
}

float rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-8f;
    case DType::f16: return 0x1p-11f;
    default: return 0x1p-24f;
  }
}

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16: return to_float(from_float<Bf16>(value));
    case DType::f16: return to_float(from_float<F16>(value));
    default: return value;
  }
}

std::vector<float> values_for(const CollectiveCase& which, std::uint64_t purpose,
                              std::int64_t count) {
  const std::uint64_t stream = split_mix(split_mix(which.seed) + purpose);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t random = split_mix(stream + i);
    values[i] = which.whole_numbers
                    ? static_cast<float>(static_cast<int>(random % 17) - 8)
                    : round_to(which.dtype,
                               static_cast<float>(static_cast<std::int64_t>(random)) * 0x1p-63f);
  }
  return values;
}

std::vector<float> input_of(const CollectiveCase& which, int rank) {
  // For operations that scatter, each rank's input has a part for every rank; see SelftestRank.
  return values_for(which, static_cast<std::uint64_t>(rank), which.elements);
}

namespace {

// The sum over the ranks in rank order, of the elements from `begin` on.
Expectation sum_of_inputs(const CollectiveCase& which, int ranks) {
  const auto count = static_cast<std::size_t>(which.elements);
  Expectation sum{std::vector<float>(count), std::vector<float>(which.whole_numbers ? 0 : count)};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> input = input_of(which, rank);
    for (std::size_t i = 0; i < count; ++i) {
      sum.values[i] += input[i];
      if (!which.whole_numbers) sum.magnitude[i] += std::fabs(input[i]);
    }
  }
  return sum;
}

Expectation slice(const Expectation& whole, int part, int parts) {
  const auto length = static_cast<std::ptrdiff_t>(whole.values.size()) / parts;
  const auto cut = [&](const std::vector<float>& from) {
    if (from.empty()) return from;
    return std::vector<float>(from.begin() + part * length, from.begin() + (part + 1) * length);
  };
  return {cut(whole.values), cut(whole.magnitude)};
}

Expectation concatenation(const CollectiveCase& which, int ranks) {
  Expectation all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> input = input_of(which, rank);
    all.values.insert(all.values.end(), input.begin(), input.end());
  }
  return all;
}

}  // namespace

Expectation expected_of(const CollectiveCase& which, int rank, int ranks) {
  switch (which.operation) {
    case Operation::all_reduce:
    case Operation::all_reduce_rms_norm: return sum_of_inputs(which, ranks);
    case Operation::reduce_scatter: return slice(sum_of_inputs(which, ranks), rank, ranks);
    case Operation::all_gather: return concatenation(which, ranks);
    case Operation::gather: return rank == which.root ? concatenation(which, ranks) : Expectation{};
    case Operation::broadcast: return {input_of(which, which.root), {}};
  }
  return {};
}

std::string compare(const CollectiveCase& which, int ranks, const Expectation& expected,
                    const std::vector<float>& got) {
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    // Each of ranks - 1 additions, and the last rounding, may be off by one unit of the partial
    // sum.
    const float allowed =
        expected.magnitude.empty()
            ? 0
            : static_cast<float>(ranks) * rounding_unit(which.dtype) * expected.magnitude[i];
    const float want = expected.values[i];
    if (std::fabs(got[i] - want) <= allowed) continue;  // false for a NaN
    return str("element ", i, " is ", got[i], ", not ", want);
  }
  return {};
}

namespace {

// Values besides the ranks' inputs; see values_for().
enum Purpose : std::uint64_t { kWeights = 1000, kResiduals };

void store(DType dtype, void* to, const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::bf16: static_cast<Bf16*>(to)[i] = from_float<Bf16>(values[i]); break;
      case DType::f16: static_cast<F16*>(to)[i] = from_float<F16>(values[i]); break;
      default: static_cast<float*>(to)[i] = values[i];
    }
  }
}

std::vector<float> load(DType dtype, const void* from, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::bf16: values[i] = to_float(static_cast<const Bf16*>(from)[i]); break;
      case DType::f16: values[i] = to_float(static_cast<const F16*>(from)[i]); break;
      default: values[i] = static_cast<const float*>(from)[i];
    }
  }
  return values;
}

}  // namespace

SelftestRank::SelftestRank(ipc::Member& me, Backend& backend, ipc::Communicator& communicator,
                           Stream& stream)
    : me_(me), backend_(backend), communicator_(communicator), stream_(stream) {}

void SelftestRank::bind(ipc::Registry& methods) {
  methods.bind<&SelftestRank::nothing>("nothing", this);
  methods.bind<&SelftestRank::echo>("echo", this);
  methods.bind<&SelftestRank::add>("add", this);
  methods.bind<&SelftestRank::hash>("hash", this);
  methods.bind<&SelftestRank::make_bytes>("make_bytes", this);
  methods.bind<&SelftestRank::fail_on>("fail_on", this);
  methods.bind<&SelftestRank::note_arrival>("note_arrival", this);
  methods.bind<&SelftestRank::take_arrivals>("take_arrivals", this);
  methods.bind<&SelftestRank::run_collective>("run_collective", this);
  methods.bind<&SelftestRank::time_all_reduce>("time_all_reduce", this);
}

std::int64_t SelftestRank::add(std::int32_t a, std::int64_t b, double c) {
  return a + b + static_cast<std::int64_t>(c) + me_.rank();
}

std::uint64_t SelftestRank::hash(std::vector<std::byte> bytes) {
  return hash_bytes(bytes.data(), bytes.size());
}

std::vector<std::byte> SelftestRank::make_bytes(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(split_mix(seed + i));
  return bytes;
}

int SelftestRank::fail_on(int rank) {
  if (rank == me_.rank()) fail("asked to fail");
  return me_.rank();
}

void SelftestRank::note_arrival(std::int64_t sent_ns, std::vector<std::byte>) {
  arrivals_.push_back(seconds_since(sent_ns));
}

std::vector<double> SelftestRank::take_arrivals() {
  return std::exchange(arrivals_, {});
}

TensorView SelftestRank::device_tensor(int slot, DType dtype, std::int64_t count) {
  const auto index = static_cast<std::size_t>(slot);
  if (buffers_.size() <= index) buffers_.resize(index + 1);
  const std::size_t bytes =
      std::max<std::size_t>(256, static_cast<std::size_t>(count) * size_of(dtype));
  if (buffers_[index].bytes() < bytes) {
    buffers_[index] = Buffer();  // first, so that both are never allocated at the same time
    buffers_[index] = backend_.allocate(MemoryKind::device, bytes, "selftest");
  }
  return TensorView(buffers_[index].data(), dtype, {count});
}

void SelftestRank::to_device(TensorView to, const std::vector<float>& values) {
  if (staging_.bytes() < to.bytes())
    staging_ = backend_.allocate(MemoryKind::pinned, to.bytes(), "selftest");
  store(to.dtype, staging_.data(), values);
  backend_.copy(to.data, staging_.data(), to.bytes(), stream_);
  stream_.synchronize();  // the staging memory is reused immediately
}

std::vector<float> SelftestRank::from_device(TensorView from, std::uint64_t* bits) {
  if (staging_.bytes() < from.bytes()) {
    staging_ = backend_.allocate(MemoryKind::pinned, from.bytes(), "selftest");
  }
  backend_.copy(staging_.data(), from.data, from.bytes(), stream_);
  communicator_.wait(stream_);
  if (bits != nullptr) *bits = hash_bytes(staging_.data(), from.bytes());
  return load(from.dtype, staging_.data(), static_cast<std::size_t>(from.elements()));
}

CollectiveOutcome SelftestRank::run_collective(CollectiveCase which) {
  if (which.operation == Operation::all_reduce_rms_norm) return run_rms_norm(which);
  const int ranks = me_.size();
  const TensorView in = device_tensor(0, which.dtype, which.elements);
  to_device(in, input_of(which, me_.rank()));
  TensorView out = in;
  switch (which.operation) {
    case Operation::all_reduce: communicator_.all_reduce(in, stream_); break;
    case Operation::broadcast: communicator_.broadcast(in, which.root, stream_); break;
    case Operation::reduce_scatter:
      out = device_tensor(1, which.dtype, which.elements / ranks);
      communicator_.reduce_scatter(out, in, stream_);
      break;
    case Operation::all_gather:
      out = device_tensor(1, which.dtype, which.elements * ranks);
      communicator_.all_gather(out, in, stream_);
      break;
    case Operation::gather:
      out = me_.rank() == which.root ? device_tensor(1, which.dtype, which.elements * ranks)
                                     : TensorView();
      communicator_.gather(out, in, which.root, stream_);
      break;
    case Operation::all_reduce_rms_norm: break;  // handled above
  }
  CollectiveOutcome outcome;
  const Expectation expected = expected_of(which, me_.rank(), ranks);
  if (out.data == nullptr) {
    communicator_.wait(stream_);
  } else {
    outcome.complaint = compare(which, ranks, expected, from_device(out, &outcome.bits));
  }
  return outcome;
}

CollectiveOutcome SelftestRank::run_rms_norm(const CollectiveCase& which) {
  const std::int64_t rows = which.elements / which.columns;
  const auto shaped = [&](int slot, std::int64_t r) {
    const TensorView flat = device_tensor(slot, which.dtype, r * which.columns);
    return TensorView(flat.data, which.dtype, {r, which.columns});
  };
  const std::vector<float> residual = values_for(which, kResiduals, which.elements);
  const std::vector<float> weight = values_for(which, kWeights, which.columns);
  kernels::RmsNorm args{.out = shaped(3, rows),
                        .x = shaped(0, rows),
                        .residual = shaped(1, rows),
                        .weight = device_tensor(2, which.dtype, which.columns)};
  to_device(args.x, input_of(which, me_.rank()));
  to_device(args.residual, residual);
  to_device(args.weight, weight);
  communicator_.all_reduce_rms_norm(args, stream_);
  CollectiveOutcome outcome;
  const std::vector<float> got_residual = from_device(args.residual, &outcome.bits);
  std::uint64_t out_bits = 0;
  const std::vector<float> got = from_device(args.out, &out_bits);
  outcome.bits = split_mix(outcome.bits) + out_bits;

  // Integers: the new residual is exact. The norm's own sum may be computed in any order.
  const std::vector<float> sum = expected_of(which, me_.rank(), me_.size()).values;
  const auto columns = static_cast<std::size_t>(which.columns);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    double squares = 0;
    for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
      const float want = sum[i] + residual[i];
      if (got_residual[i] != want) {
        outcome.complaint = str("residual ", i, " is ", got_residual[i], ", not ", want);
        return outcome;
      }
      squares += static_cast<double>(want) * want;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(columns) + args.epsilon);
    for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
      const double want = (sum[i] + residual[i]) * scale * weight[i - row * columns];
      const double allowed = std::fabs(want) * (2 * rounding_unit(which.dtype) + 1e-5);
      if (std::fabs(got[i] - want) <= allowed) continue;
      outcome.complaint = str("output ", i, " is ", got[i], ", not ", want);
      return outcome;
    }
  }
  return outcome;
}

double SelftestRank::time_all_reduce(TimingCase which) {
  const std::int64_t columns = which.columns > 0 ? which.columns : which.elements;
  const std::int64_t rows = which.elements / columns;
  TensorView x = device_tensor(0, which.dtype, which.elements);
  // Zeros stay zeros, however often they are summed.
  for (int slot : {0, 1, 2, 3}) {
    const TensorView tensor = device_tensor(slot, which.dtype, which.elements);
    backend_.fill(tensor.data, 0, tensor.bytes(), stream_);
  }
  const auto shaped = [&](int slot) {
    return TensorView(device_tensor(slot, which.dtype, which.elements).data, which.dtype,
                      {rows, columns});
  };
  const kernels::RmsNorm fused{.out = shaped(3),
                               .x = shaped(0),
                               .residual = shaped(1),
                               .weight = TensorView(shaped(2).data, which.dtype, {columns})};
  const auto once = [&] {
    if (which.columns > 0) {
      communicator_.all_reduce_rms_norm(fused, stream_);
    } else {
      communicator_.all_reduce(x, stream_);
    }
  };

  // On a GPU in graphs, as the engine runs them.
  constexpr int kPerGraph = 10;
  std::unique_ptr<Graph> graph;
  once();
  communicator_.wait(stream_);
  if (backend_.kind() == DeviceKind::cuda) {
    graph = backend_.capture(stream_, [&] {
      for (int i = 0; i < kPerGraph; ++i) once();
    });
    graph->launch(stream_);
  }
  communicator_.barrier(stream_);
  communicator_.wait(stream_);

  const int launches = graph ? std::max(1, which.repetitions / kPerGraph) : which.repetitions;
  const std::int64_t start = now_ns();
  for (int i = 0; i < launches; ++i) {
    if (graph) {
      graph->launch(stream_);
    } else {
      once();
    }
  }
  communicator_.wait(stream_);
  return seconds_since(start) / (graph ? launches * kPerGraph : launches);
}

}  // namespace nvllm::runtime
