// Chooses the algorithm of an all-reduce in two levels: peer memory within a box, NCCL between
// boxes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nvllm::ipc {

enum class TwoLevelAlgorithm {
  // Reduce-scatter within the box, all-reduce of each rank's slice between boxes, all-gather within
  // the box. Each element crosses the network once for each box.
  slices,
  // All-reduce within the box, then every rank adds the whole between boxes: one kernel fewer, and
  // as many times the bytes between boxes as a box has ranks. Only with two boxes: each pair of
  // ranks has an NCCL communicator of its own, and those could add three numbers in different
  // orders.
  every_rank,
  // All-reduce within the box, all-reduce of the first ranks between boxes, broadcast within the
  // box: for tensors that cannot be sliced.
  first_ranks,
};

// Largest tensor for every_rank. It follows from arithmetic and was not measured between real
// boxes: two kernels instead of three save some 5 us, in which a network of 100 Gbit/s for each GPU
// carries this many bytes.
inline constexpr std::size_t kEveryRankLimit = std::size_t{64} << 10;

// Whether every rank of a box can have an equal slice that starts at a multiple of 16 bytes. It
// depends on the size alone, not on addresses, so all ranks choose the same algorithm.
inline bool can_be_sliced(std::int64_t elements, std::size_t element_bytes, int ranks_of_box) {
  constexpr std::size_t kVectorBytes = 16;
  return elements % ranks_of_box == 0 &&
         static_cast<std::size_t>(elements / ranks_of_box) * element_bytes % kVectorBytes == 0;
}

// The bits are the same with every algorithm if there are two boxes: each rounds its sum once, to
// the tensor's type, and a sum of two is the same in either order.
inline TwoLevelAlgorithm choose_two_level_algorithm(std::int64_t elements,
                                                    std::size_t element_bytes, int ranks_of_box,
                                                    int boxes) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * element_bytes;
  if (boxes == 2 && bytes <= kEveryRankLimit) return TwoLevelAlgorithm::every_rank;
  if (can_be_sliced(elements, element_bytes, ranks_of_box)) return TwoLevelAlgorithm::slices;
  return TwoLevelAlgorithm::first_ranks;
}

}  // namespace nvllm::ipc
