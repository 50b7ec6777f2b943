#include "runtime/worker/selftest.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "device/backend.h"
#include "ipc/collective/testing/forwarding_communicator.h"
#include "ipc/rpc.h"
#include "testing/ranks.h"

namespace nvllm::runtime {
namespace {

// Wraps a communicator, but changes one element of every all_reduce of more than one element.
class Spoiling final : public ipc::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  void all_reduce(TensorView data, Stream& stream) override {
    ForwardingCommunicator::all_reduce(data, stream);
    if (data.elements() < 2) return;
    stream.host_call([data] { data.as<unsigned char>()[data.bytes() - 1] ^= 1; });
  }
};

// Runs a selftest on this rank; the result on rank 0.
SelftestResult run_selftest(ipc::Member& me, int spoiled_rank) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  auto communicator = ipc::create_communicator(me, *backend, {});
  if (me.rank() == spoiled_rank) communicator = std::make_unique<Spoiling>(std::move(communicator));
  ipc::Registry methods;
  SelftestRank rank(me, *backend, *communicator, *stream);
  rank.bind(methods);
  bind_rank_report(methods, *backend, *communicator, {});
  if (me.rank() > 0) {
    ipc::GroupServer(me, methods).serve();
    return {};
  }
  ipc::GroupCaller caller(me, methods);
  const SelftestResult result = Selftest(me, caller).run({});
  caller.stop();
  return result;
}

}  // namespace

TEST_CASE("a selftest of sound ranks has no failures and a row for everything it measured") {
  testing::run_ranks(2, [](ipc::Member& me) {
    const SelftestResult result = run_selftest(me, -1);
    if (me.rank() > 0) return;
    CHECK(result.failures.empty());
    CHECK(result.ranks.size() == 2);
    CHECK(result.rows.size() > 10);
    for (const SelftestRow& row : result.rows) {
      CAPTURE(row.name);
      CHECK(row.value > 0);
      CHECK(row.name.find("64 MiB") == std::string::npos);  // measured on GPUs only
    }
  });
}

TEST_CASE("one wrong bit in a collective's result on one rank is found, with the rank") {
  testing::run_ranks(2, [](ipc::Member& me) {
    const SelftestResult result = run_selftest(me, 1);
    if (me.rank() > 0) return;
    REQUIRE_FALSE(result.failures.empty());
    CHECK(result.failures[0].find("all_reduce 7 float32 on rank 1: element 6 is ") == 0);
    for (const std::string& failure : result.failures) CHECK(failure.find("all_reduce ") == 0);
  });
}

TEST_CASE("expected values are what a collective must give, by its definition") {
  CollectiveCase which{.elements = 4, .root = 1, .seed = 5};
  const auto a = input_of(which, 0), b = input_of(which, 1);
  CHECK(a != b);
  CHECK(input_of(which, 0) == a);
  using Values = std::vector<float>;
  which.operation = Operation::all_reduce;
  CHECK(expected_of(which, 0, 2).values ==
        Values{a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]});
  which.operation = Operation::reduce_scatter;
  CHECK(expected_of(which, 1, 2).values == Values{a[2] + b[2], a[3] + b[3]});
  which.operation = Operation::all_gather;
  CHECK(expected_of(which, 0, 2).values == Values{a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]});
  which.operation = Operation::gather;
  CHECK(expected_of(which, 0, 2).values.empty());
  CHECK(expected_of(which, 1, 2).values.size() == 8);
  which.operation = Operation::broadcast;
  CHECK(expected_of(which, 0, 2).values == b);
}

TEST_CASE("a comparison accepts rounding where there is any, and nothing else") {
  CollectiveCase which{.dtype = DType::bf16, .elements = 2};
  const Expectation exact{{1, 2}, {}};
  CHECK(compare(which, 2, exact, {1, 2}) == "");
  CHECK(compare(which, 2, exact, {1, 2.0001f}) == "element 1 is 2.0001, not 2");
  const Expectation rounded{{1, 2}, {1, 2}};
  CHECK(compare(which, 2, rounded, {1.0078f, 2}) == "");
  CHECK(compare(which, 2, rounded, {1.01f, 2}) == "element 0 is 1.01, not 1");
  CHECK(compare(which, 2, rounded, {1, std::numeric_limits<float>::quiet_NaN()}) ==
        "element 1 is nan, not 2");
}

}  // namespace nvllm::runtime
