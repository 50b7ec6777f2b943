#include "ipc/collective/testing/test_calls.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::ipc {
namespace {

enum class Op { all_reduce, reduce_scatter, all_gather, gather, broadcast, barrier, rms_norm };
constexpr std::array kOps = {"all_reduce", "reduce_scatter", "all_gather",         "gather",
                             "broadcast",  "barrier",        "all_reduce_rms_norm"};

using Bytes = std::vector<std::byte>;

// A random sequence determined by a seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return split_mix(state_++); }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

// Any float: mostly moderate values, sometimes ones that are often handled wrongly.
float wild_value(std::uint64_t bits) {
  switch (bits & 63) {
    case 0: return -0.0f;
    case 1: return 0.0f;
    case 2: return -1e-41f;
    case 3: return 3e38f;
    case 4: return -6e-8f;  // the smallest F16
    default: break;
  }
  return static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-29f;
}

// Sums of eight such values are exact in every type, in any order.
float tame_value(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int64_t>(bits >> 33) % 8 - 4) * 0.5f;
}

template <typename Function>
auto with_type(DType type, Function function) {
  switch (type) {
    case DType::f32: return function(float{});
    case DType::bf16: return function(Bf16{});
    default: return function(F16{});
  }
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

Bytes random_tensor(DType type, std::int64_t elements, std::uint64_t key, bool exact) {
  Bytes data(static_cast<std::size_t>(elements) * size_of(type));
  if (!is_float(type)) {
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<std::byte>(split_mix(key + i) >> 56);
    return data;
  }
  with_type(type, [&]<typename T>(T) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
      const std::uint64_t bits = split_mix(key + i);
      const T value = from_float<T>(exact ? wild_value(bits) : tame_value(bits));
      std::memcpy(data.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return data;
}

// The definition: float32, rank order, one rounding, no -0. A sum over one rank is its input.
Bytes sum_of(DType type, const std::vector<Bytes>& parts) {
  if (parts.size() == 1) return parts[0];
  Bytes sums(parts[0].size());
  with_type(type, [&]<typename T>(T) {
    for (std::size_t at = 0; at < sums.size(); at += sizeof(T)) {
      float sum = 0.0f;
      for (const Bytes& part : parts) {
        T value;
        std::memcpy(&value, part.data() + at, sizeof(T));
        sum += to_float(value);
      }
      T rounded = from_float<T>(sum);
      if (to_float(rounded) == 0.0f) rounded = T{};
      std::memcpy(sums.data() + at, &rounded, sizeof(T));
    }
  });
  return sums;
}

void append(Bytes& to, const Bytes& part) {
  to.insert(to.end(), part.begin(), part.end());
}

// A tensor on the rig's device at a known offset from an aligned address.
struct Tensor {
  Buffer buffer;
  TensorView view;

  Tensor(Rig& rig, DType type, std::initializer_list<std::int64_t> shape, std::size_t offset)
      : view(nullptr, type, shape) {
    buffer = rig.backend->allocate(MemoryKind::device, view.bytes() + offset + 16, "test");
    view.data = static_cast<std::byte*>(buffer.data()) + offset;
  }
};

void upload(Rig& rig, const TensorView& to, const Bytes& from) {
  if (from.empty()) return;
  rig.backend->copy(to.data, from.data(), from.size(), *rig.stream);
  rig.stream->synchronize();
}

Bytes download(Rig& rig, const TensorView& from) {
  Bytes to(from.bytes());
  if (!to.empty()) {
    rig.backend->copy(to.data(), from.data, to.size(), *rig.stream);
    rig.stream->synchronize();
  }
  return to;
}

std::int64_t random_size(Random& random, std::int64_t limit) {
  switch (random.below(8)) {
    case 0: return random.below(std::min<std::int64_t>(limit, 5));  // including none
    case 1: return std::min<std::int64_t>(limit, 8 * (1 + random.below(64)));
    case 2: return limit - random.below(std::min<std::int64_t>(limit, 40));
    default: return random.below(limit) + 1;
  }
}

}  // namespace

std::uint64_t fresh_seed() {
  const char* wanted = std::getenv("NVLLM_TEST_SEED");
  const std::uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10)
                                               : std::random_device{}() % 1'000'000'000;
  std::cout << "NVLLM_TEST_SEED=" << seed << std::endl;
  return seed;
}

Rig::Rig(Member& member, const TestSetup& setup)
    : member(member),
      setup(setup),
      backend(create_backend(setup.device)),
      stream(backend->create_stream()),
      comm(create_communicator(member, *backend, {setup.implementation})) {}

// A call and its tensors. `key` seeds all of its random numbers, together with rank and round.
struct TestCalls::Call {
  Op op;
  DType type;
  std::int64_t rows, elements;  // elements of a rank's part, or columns
  int root;
  bool in_place;
  bool with_residual;
  std::uint64_t key;
  std::unique_ptr<Tensor> in, out, residual, weight;

  Call(Rig& rig, Random& random, const CallLimits& limits);
  Bytes input(const Rig& rig, int rank, std::uint64_t round) const;
  Bytes extra(const Rig& rig, std::uint64_t round, std::uint64_t which, std::int64_t count) const;
  kernels::RmsNorm norm() const;
  void load(Rig& rig, std::uint64_t round);
  void enqueue(Rig& rig, Stream& stream) const;
  std::string verify(Rig& rig, std::uint64_t round) const;
  std::string compare(Rig& rig, const TensorView& tensor, const Bytes& expected) const;
};

TestCalls::Call::Call(Rig& rig, Random& random, const CallLimits& limits) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16,
                              DType::i32, DType::i64,  DType::u8};
  const int ranks = rig.comm->size();
  op = limits.only_reduce ? Op::all_reduce : static_cast<Op>(random.below(kOps.size()));
  if (limits.only_fused != 0) op = Op::rms_norm;
  const bool sums = op == Op::all_reduce || op == Op::reduce_scatter || op == Op::rms_norm;
  type = kTypes[random.below(sums ? 3 : 6)];
  rows = 1;
  root = static_cast<int>(random.below(ranks));
  in_place = random.below(2) == 0;
  with_residual = random.below(2) == 0;
  key = random.next();
  const bool whole = op == Op::all_reduce || op == Op::broadcast || op == Op::rms_norm;
  elements = random_size(
      random, std::max<std::int64_t>(1, whole ? limits.elements : limits.elements / ranks));
  if (op == Op::rms_norm) {
    rows = random.below(7);
    elements = std::clamp<std::int64_t>(elements / std::max<std::int64_t>(1, rows), 1,
                                        kernels::kRmsNormMaxColumns);
    if (random.below(2) == 0) elements = (elements + 7) / 8 * 8;
  }
  if (limits.only_fused != 0) {
    elements = limits.only_fused;
    rows = 1 + random.below(std::max<std::int64_t>(1, limits.elements / elements));
  }
  // Aligned in half of the cases; always if the operation requires it: with rows of whole vectors.
  const bool whole_vectors =
      op == Op::rms_norm && static_cast<std::size_t>(elements) * size_of(type) % 16 == 0;
  const std::size_t offset = random.below(2) == 0 || whole_vectors
                                 ? 0
                                 : static_cast<std::size_t>(random.below(8)) * size_of(type);
  const std::int64_t large = ranks * elements;
  switch (op) {
    case Op::reduce_scatter:
      in = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{large}, offset);
      out = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{elements},
                                     offset);
      break;
    case Op::all_gather:
    case Op::gather:
      in = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{elements},
                                    offset);
      out = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{large}, offset);
      break;
    default:
      in = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{rows, elements},
                                    offset);
      out = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{rows, elements},
                                     offset);
      break;
  }
  if (op == Op::rms_norm) {
    residual =
        std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{rows, elements}, 0);
    weight = std::make_unique<Tensor>(rig, type, std::initializer_list<std::int64_t>{elements}, 0);
  }
  // In place: the small tensor is this rank's part of the large one.
  const std::size_t own = static_cast<std::size_t>(rig.comm->rank() * elements) * size_of(type);
  if (in_place && op == Op::reduce_scatter) out->view.data = in->view.as<std::byte>() + own;
  if (in_place && (op == Op::all_gather || (op == Op::gather && rig.comm->rank() == root))) {
    in->view.data = out->view.as<std::byte>() + own;
  }
}

Bytes TestCalls::Call::input(const Rig& rig, int rank, std::uint64_t round) const {
  const std::uint64_t own = split_mix(split_mix(key + round) + static_cast<std::uint64_t>(rank));
  return random_tensor(type, in->view.elements(), own, rig.setup.exact);
}

Bytes TestCalls::Call::extra(const Rig&, std::uint64_t round, std::uint64_t which,
                             std::int64_t count) const {
  return random_tensor(type, count, split_mix(split_mix(key + round) + 100 + which), false);
}

kernels::RmsNorm TestCalls::Call::norm() const {
  kernels::RmsNorm norm;
  norm.out = in_place ? in->view : out->view;
  norm.x = in->view;
  if (with_residual) norm.residual = residual->view;
  norm.weight = weight->view;
  return norm;
}

void TestCalls::Call::load(Rig& rig, std::uint64_t round) {
  upload(rig, in->view, input(rig, rig.comm->rank(), round));
  if (op != Op::rms_norm) return;
  upload(rig, residual->view, extra(rig, round, 0, rows * elements));
  upload(rig, weight->view, extra(rig, round, 1, elements));
}

void TestCalls::Call::enqueue(Rig& rig, Stream& stream) const {
  Communicator& comm = *rig.comm;
  switch (op) {
    case Op::all_reduce: return comm.all_reduce(in->view, stream);
    case Op::reduce_scatter: return comm.reduce_scatter(out->view, in->view, stream);
    case Op::all_gather: return comm.all_gather(out->view, in->view, stream);
    case Op::gather:
      return comm.gather(comm.rank() == root ? out->view : TensorView(), in->view, root, stream);
    case Op::broadcast: return comm.broadcast(in->view, root, stream);
    case Op::barrier: return comm.barrier(stream);
    case Op::rms_norm: return comm.all_reduce_rms_norm(norm(), stream);
  }
}

std::string TestCalls::Call::compare(Rig& rig, const TensorView& tensor,
                                     const Bytes& expected) const {
  const Bytes got = download(rig, tensor);
  if (got == expected) return "";
  const auto wrong = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  return str(kOps[static_cast<std::size_t>(op)], " ", tensor.describe(), " root ", root,
             in_place ? " in place" : "", tensor.aligned(16) ? "" : " unaligned", ": byte ",
             wrong.first - got.begin(), " of ", got.size(), " is ", static_cast<int>(*wrong.first),
             ", expected ", static_cast<int>(*wrong.second));
}

std::string TestCalls::Call::verify(Rig& rig, std::uint64_t round) const {
  if (op == Op::barrier) return "";
  const int ranks = rig.comm->size();
  const int rank = rig.comm->rank();
  std::vector<Bytes> inputs;
  for (int each = 0; each < ranks; ++each) inputs.push_back(input(rig, each, round));
  switch (op) {
    case Op::all_reduce: return compare(rig, in->view, sum_of(type, inputs));
    case Op::reduce_scatter: {
      const Bytes sum = sum_of(type, inputs);
      const auto part = static_cast<std::ptrdiff_t>(out->view.bytes());
      return compare(rig, out->view,
                     Bytes(sum.begin() + rank * part, sum.begin() + (rank + 1) * part));
    }
    case Op::all_gather:
    case Op::gather: {
      if (op == Op::gather && rank != root) return compare(rig, in->view, inputs[rank]);
      Bytes all;
      for (const Bytes& each : inputs) append(all, each);
      return compare(rig, out->view, all);
    }
    case Op::broadcast: return compare(rig, in->view, inputs[root]);
    case Op::barrier: return "";
    case Op::rms_norm: break;
  }
  // The exact sum, then the plain kernel on the same device: the bits of the two operations in
  // sequence.
  const Bytes out_bits = download(rig, norm().out);
  const Bytes residual_bits = download(rig, residual->view);
  const Tensor x(rig, type, {rows, elements}, 0);
  const Tensor r(rig, type, {rows, elements}, 0);
  upload(rig, x.view, sum_of(type, inputs));
  upload(rig, r.view, extra(rig, round, 0, rows * elements));
  kernels::RmsNorm plain = norm();
  plain.out = plain.x = x.view;
  if (with_residual) plain.residual = r.view;
  kernels::rms_norm(plain, *rig.stream);
  rig.stream->synchronize();
  std::string wrong = compare(rig, x.view, out_bits);
  if (wrong.empty()) wrong = compare(rig, r.view, residual_bits);
  return wrong;
}

TestCalls::TestCalls(Rig& rig, int count, std::uint64_t seed, const CallLimits& limits)
    : rig_(rig), seed_(seed) {
  Random random(split_mix(seed));
  for (int i = 0; i < count; ++i) calls_.push_back(std::make_unique<Call>(rig, random, limits));
}

TestCalls::~TestCalls() = default;

void TestCalls::load(std::uint64_t round) {
  round_ = round;
  for (const auto& call : calls_) call->load(rig_, round);
}

void TestCalls::enqueue(bool delays) {
  Random random(split_mix(seed_ + round_) + static_cast<std::uint64_t>(rig_.comm->rank()));
  for (const auto& call : calls_) {
    if (delays && random.below(4) == 0) {
      const auto pause = static_cast<useconds_t>(random.below(300));
      if (random.below(2) == 0) {
        usleep(pause);
      } else {
        rig_.stream->host_call([pause] { usleep(pause); });
      }
    }
    call->enqueue(rig_, *rig_.stream);
  }
}

void TestCalls::enqueue_on(Stream& stream, std::size_t call) {
  calls_[call]->enqueue(rig_, stream);
}

std::string TestCalls::verify() {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const std::string wrong = calls_[i]->verify(rig_, round_);
    if (!wrong.empty()) return str("seed ", seed_, ", round ", round_, ", call ", i, ": ", wrong);
  }
  return "";
}

}  // namespace nvllm::ipc
