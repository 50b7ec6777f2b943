#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "ipc/registry.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::runtime {
namespace {

Request request_of(std::size_t tokens) {
  Request request;
  request.prompt.resize(tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 0);
  return request;
}

// Packs and unpacks, part by part.
std::vector<RequestFrame> through(RequestPacker& packer, std::size_t* parts = nullptr) {
  RequestUnpacker unpacker;
  std::vector<RequestFrame> all;
  ipc::ArchiveWriter writer;
  while (const auto part = packer.next()) {
    CHECK(part->more == (packer.waiting_bytes() > 0));
    writer.clear();
    writer(std::uint64_t{1});
    ipc::write_call(writer, "add", *part);
    CHECK(writer.bytes().size() <= ipc::kRequestsShape.slot_bytes);
    unpacker.unpack(*part, [&](RequestFrame frame) { all.push_back(std::move(frame)); });
    if (parts != nullptr) ++*parts;
  }
  return all;
}

}  // namespace

TEST_CASE("a prompt longer than the ring comes through in parts that fit a slot") {
  RequestPacker packer;
  packer.add(7, request_of(500'000));
  std::size_t parts = 0;
  const std::vector<RequestFrame> all = through(packer, &parts);
  REQUIRE(all.size() == 1);
  CHECK(all[0].id == 7);
  CHECK(all[0].request.prompt == request_of(500'000).prompt);
  CHECK(parts == 500'000 * 4 / RequestPacker::kPartBytes + 1);
}

TEST_CASE("many short requests share a part, and come in order with the aborts between them") {
  RequestPacker packer;
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    packer.add(id, request_of(id % 40));
    if (id % 10 == 0) packer.abort(id - 5);
  }
  std::size_t parts = 0;
  const std::vector<RequestFrame> all = through(packer, &parts);
  REQUIRE(all.size() == 1100);
  std::size_t at = 0;
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    CHECK(all[at].id == id);
    CHECK(all[at].request.prompt.size() == id % 40);
    CHECK_FALSE(all[at++].abort);
    if (id % 10 != 0) continue;
    CHECK(all[at].id == id - 5);
    CHECK(all[at++].abort);
  }
  CHECK(parts < 30);
}

TEST_CASE("sampling parameters come through") {
  Request request = request_of(3);
  request.sampling.temperature = 0.25;
  request.sampling.seed = 99;
  request.sampling.max_tokens.reset();
  request.sampling.bad_words = {{1, 2}, {3}};
  request.sampling.logit_bias = {{5, -1.5f}};
  RequestPacker packer;
  packer.add(1, request);
  const std::vector<RequestFrame> all = through(packer);
  REQUIRE(all.size() == 1);
  const SamplingParams& sampling = all[0].request.sampling;
  CHECK(sampling.temperature == 0.25);
  CHECK(sampling.seed == 99);
  CHECK_FALSE(sampling.max_tokens.has_value());
  CHECK(sampling.bad_words == request.sampling.bad_words);
  CHECK(sampling.logit_bias == request.sampling.logit_bias);
}

TEST_CASE("nothing is given where nothing waits") {
  RequestPacker packer;
  CHECK_FALSE(packer.next().has_value());
  packer.abort(1);
  CHECK(packer.next().has_value());
  CHECK_FALSE(packer.next().has_value());
}

}  // namespace nvllm::runtime
