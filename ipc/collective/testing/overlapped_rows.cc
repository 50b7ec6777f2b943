// Overlapped sums of any implementation against all_reduce_rms_norm.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/math.h"
#include "ipc/collective/testing/suite.h"

namespace nvllm::ipc::suite {
namespace {

constexpr int kSlots = OverlappedRows::kSlots;

// The contiguous rows of both slots, in two copies: one is summed in three calls, one in a single
// call.
class TwoWays {
 public:
  TwoWays(Rig& rig, std::uint64_t seed, std::array<std::int64_t, kSlots> rows, std::int64_t columns,
          DType dtype)
      : rig_(rig),
        seed_(split_mix(seed)),
        rows_(rows),
        all_(nullptr, dtype, {rows[0] + rows[1], columns}),
        memory_(rig.backend->allocate(MemoryKind::device, kTensors * padded() + row_bytes() + 16,
                                      "test")) {
    const TensorView same = tensor(kResidual);
    load(same, seed_);  // the same on all ranks
    rig_.backend->copy(tensor(kExpectedResidual).data, same.data, same.bytes(), *rig_.stream);
    load(weight(), seed_ + 1);
  }

  // One round of both slots, in either order, with late ranks; the residuals carry over to the next
  // round.
  void run(int round, Gathered gathered) {
    const std::uint64_t key = split_mix(seed_ + static_cast<std::uint64_t>(round));
    load(tensor(kPart), split_mix(key + static_cast<std::uint64_t>(rig_.comm->rank())));
    load(tensor(kExpectedPart), split_mix(key + static_cast<std::uint64_t>(rig_.comm->rank())));
    Communicator& comm = *rig_.comm;
    const auto late = [&](int step) {
      if (split_mix(key + static_cast<std::uint64_t>(100 * comm.rank() + step)) % 8 == 0) {
        usleep(300);
      }
    };
    for (int slot = 0; slot < kSlots; ++slot) {
      late(slot);
      comm.begin_reduce_scatter(place(slot), rows_of(kPart, slot), *rig_.stream);
      if (round % 2 == 0) continue;  // both in flight together, or one after the other
      finish(slot, gathered);
    }
    for (int slot = 0; slot < kSlots && round % 2 == 0; ++slot) {
      late(2 + slot);
      finish(slot, gathered);
    }
    comm.all_reduce_rms_norm(arguments(kExpected, kExpectedPart, kExpectedResidual, 0, all_rows()),
                             *rig_.stream);
    check(gathered);
  }

 private:
  enum Which { kPart, kResidual, kOut, kExpectedPart, kExpectedResidual, kExpected, kTensors };

  std::int64_t all_rows() const { return all_.shape[0]; }
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(all_.shape[1]) * size_of(all_.dtype);
  }
  std::size_t padded() const { return divide_up(all_.bytes(), std::size_t{256}) * 256; }
  TensorView tensor(Which which) const {
    TensorView tensor = all_;
    tensor.data = static_cast<std::byte*>(memory_.data()) + which * padded();
    return tensor;
  }
  TensorView weight() const {
    return TensorView(static_cast<std::byte*>(memory_.data()) + kTensors * padded(), all_.dtype,
                      {all_.shape[1]});
  }
  OverlappedRows place(int slot) const { return {slot, slot == 0 ? 0 : rows_[0]}; }
  TensorView rows_of(Which which, int slot) const {
    return tensor(which).rows(place(slot).first_row, rows_.at(static_cast<std::size_t>(slot)));
  }
  kernels::RmsNorm arguments(Which out, Which x, Which residual, std::int64_t begin,
                             std::int64_t count) const {
    return {.out = tensor(out).rows(begin, count),
            .x = tensor(x).rows(begin, count),
            .residual = tensor(residual).rows(begin, count),
            .weight = weight()};
  }
  void load(const TensorView& tensor, std::uint64_t key) {
    std::vector<std::byte> values(tensor.bytes());
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const std::uint64_t bits = split_mix(key + static_cast<std::uint64_t>(i));
      // Values whose sums are exact if NCCL chooses the order.
      const float value = rig_.setup.exact
                              ? static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-29f
                              : static_cast<float>(static_cast<int>(bits % 8) - 4) * 0.5f;
      const float signed_zero = bits % 64 == 0 ? -0.0f : value;
      auto* const at = values.data() + static_cast<std::size_t>(i) * size_of(tensor.dtype);
      if (tensor.dtype == DType::f32) {
        std::memcpy(at, &signed_zero, sizeof(float));
      } else {
        const auto narrow = tensor.dtype == DType::bf16 ? from_float<Bf16>(signed_zero).bits
                                                        : from_float<F16>(signed_zero).bits;
        std::memcpy(at, &narrow, sizeof(narrow));
      }
    }
    rig_.backend->copy(tensor.data, values.data(), values.size(), *rig_.stream);
    rig_.stream->synchronize();
  }
  void finish(int slot, Gathered gathered) {
    const std::int64_t begin = place(slot).first_row;
    const std::int64_t count = rows_.at(static_cast<std::size_t>(slot));
    rig_.comm->begin_all_gather(place(slot), arguments(kOut, kPart, kResidual, begin, count),
                                gathered, *rig_.stream);
    got_.at(static_cast<std::size_t>(slot)) =
        rig_.comm->finish_all_gather(place(slot), *rig_.stream);
  }
  void check(Gathered gathered) {
    const TensorView expected = tensor(gathered == Gathered::norm ? kExpected : kExpectedResidual);
    CHECK(got_[1].data == got_[0].as<std::byte>() + got_[0].bytes());
    std::vector<std::byte> want(expected.bytes()), got(expected.bytes());
    rig_.backend->copy(want.data(), expected.data, want.size(), *rig_.stream);
    rig_.backend->copy(got.data(), got_[0].data, got.size(), *rig_.stream);
    rig_.comm->wait(*rig_.stream);
    REQUIRE(std::memcmp(want.data(), got.data(), want.size()) == 0);
  }

  Rig& rig_;
  const std::uint64_t seed_;
  const std::array<std::int64_t, kSlots> rows_;
  const TensorView all_;  // the shape of all tensors
  const Buffer memory_;
  std::array<TensorView, kSlots> got_;
};

}  // namespace

void overlapped_rows(Rig& rig, std::uint64_t seed, std::int64_t max_elements, int rounds) {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  int shape = 0;
  for (const std::int64_t columns : {8, 264, 1288, 4096, 8192, 12288}) {
    const std::int64_t slot_rows = std::clamp<std::int64_t>(max_elements / columns, 2, 700);
    // Full slots; fewer rows than ranks; a smaller second slot.
    for (const std::array<std::int64_t, kSlots>& rows :
         {std::array{slot_rows, slot_rows}, std::array{std::int64_t{1}, std::int64_t{2}},
          std::array{slot_rows, slot_rows / 2 + 1}}) {
      const DType dtype = dtypes[shape++ % 3];
      CAPTURE(columns);
      CAPTURE(rows[0]);
      CAPTURE(name_of(dtype));
      rig.comm->open_overlap(slot_rows, columns, dtype);
      TwoWays ways(rig, seed + static_cast<std::uint64_t>(shape), rows, columns, dtype);
      for (int round = 0; round < rounds; ++round) {
        ways.run(round, round + 1 == rounds ? Gathered::sum : Gathered::norm);
      }
    }
  }
  // Enough calls that their numbers repeat.
  if (!rig.comm->open_overlap(3, 264, DType::bf16)) return;
  TwoWays ways(rig, seed, {3, 2}, 264, DType::bf16);
  const int many = std::max(1, static_cast<int>(600 * scale()));
  for (int round = 0; round < many; ++round) ways.run(round, Gathered::norm);
  ways.run(many, Gathered::sum);
}

}  // namespace nvllm::ipc::suite
