#include "ipc/collective/peer/algorithm.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace nvllm::ipc {

TEST_CASE("small sums take one trip, large ones two") {
  for (Collective collective : {Collective::all_reduce, Collective::all_reduce_rms_norm}) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      CHECK(choose_algorithm(collective, ranks, 8192) == Algorithm::one_shot);
      Algorithm last = Algorithm::one_shot;
      for (std::size_t bytes = 1; bytes <= (std::size_t{1} << 32); bytes *= 2) {
        const Algorithm method = choose_algorithm(collective, ranks, bytes);
        CHECK(method >= last);
        last = method;
      }
      CHECK(last == Algorithm::two_shot);
    }
  }
}

TEST_CASE("the more ranks, the sooner two trips are worth it") {
  for (Collective collective : {Collective::all_reduce, Collective::all_reduce_rms_norm}) {
    for (std::size_t bytes = 1; bytes <= (std::size_t{1} << 32); bytes *= 2) {
      Algorithm last = Algorithm::one_shot;
      for (int ranks = 2; ranks <= 8; ++ranks) {
        const Algorithm method = choose_algorithm(collective, ranks, bytes);
        CHECK(method >= last);
        last = method;
      }
    }
  }
}

TEST_CASE("everything else has one way") {
  for (Collective collective : {Collective::reduce_scatter, Collective::all_gather,
                                Collective::gather, Collective::broadcast}) {
    for (std::size_t bytes : {std::size_t{1}, std::size_t{1} << 30}) {
      CHECK(choose_algorithm(collective, 4, bytes) == Algorithm::one_shot);
    }
  }
}

TEST_CASE("ranks that differ go by the least that any of them has") {
  const GpuCapabilities small{108, 0}, part{66, 1}, whole{132, 1};
  CHECK(common_capabilities(std::vector{whole, whole}) == whole);
  for (const auto& [ranks, common] : {
           std::pair{std::vector{whole, part}, part},
           std::pair{std::vector{part, whole}, part},
           std::pair{std::vector{whole, small}, small},
           std::pair{std::vector{whole, small, part}, GpuCapabilities{66, 0}},
           std::pair{std::vector{part, whole, small}, GpuCapabilities{66, 0}},
       }) {
    CHECK(common_capabilities(ranks) == common);
  }
}

}  // namespace nvllm::ipc
