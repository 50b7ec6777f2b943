#include "ipc/collective/choice.h"

#include <doctest/doctest.h>

#include <initializer_list>

namespace nvllm::ipc {

constexpr Collective kAll[] = {Collective::all_reduce,     Collective::all_reduce_rms_norm,
                               Collective::reduce_scatter, Collective::all_gather,
                               Collective::gather,         Collective::broadcast};

TEST_CASE("with growing size the methods come in the order one-shot, two-shot, NCCL") {
  for (Collective collective : kAll) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      Method last = Method::one_shot;
      for (std::size_t bytes = 1; bytes <= (std::size_t{1} << 32); bytes *= 2) {
        const Method method = choose(collective, ranks, bytes);
        CHECK(method >= last);
        last = method;
      }
      CHECK(last == Method::nccl);
    }
  }
}

TEST_CASE("small messages go over peer memory") {
  for (Collective collective : kAll) {
    for (int ranks = 2; ranks <= 8; ++ranks)
      CHECK(choose(collective, ranks, 8192) == Method::one_shot);
  }
}

TEST_CASE("without NCCL every size has a method") {
  for (Collective collective : kAll) {
    for (std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20, std::size_t{1} << 30}) {
      CHECK(choose_peer(collective, 2, bytes) != Method::nccl);
    }
  }
  CHECK(choose_peer(Collective::all_reduce, 2, std::size_t{1} << 30) == Method::two_shot);
}

}  // namespace nvllm::ipc
