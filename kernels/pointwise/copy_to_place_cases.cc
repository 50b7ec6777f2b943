// Copies to numbered places, on whichever backend is linked.
#include <algorithm>
#include <numeric>

#include "kernels/pointwise/copy_to_ring.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;
using Ints = std::vector<std::int32_t>;

TEST_CASE("words go to the place with the number, and nowhere else") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  constexpr std::int64_t kPlaces = 3, kRoom = 600;
  for (const std::int64_t count : {0, 1, 255, 257, 600}) {
    for (std::int32_t number = 0; number < kPlaces; ++number) {
      CAPTURE(count);
      CAPTURE(number);
      Ints values(static_cast<std::size_t>(count));
      std::iota(values.begin(), values.end(), 5);
      const Placed<std::int32_t> words(*backend, *stream, values);
      const Placed<std::int32_t> place(*backend, *stream, {number});
      Placed<std::int32_t> places(*backend, *stream, Ints(kPlaces * kRoom, -7));
      copy_to_ring({.words = words.view({count}),
                     .place = place.view({1}),
                     .places = places.view({kPlaces, kRoom})},
                    *stream);
      Ints expected(kPlaces * kRoom, -7);
      std::ranges::copy(values, expected.begin() + number * kRoom);
      CHECK(places.fetch() == expected);
    }
  }
}

TEST_CASE("a graph copies to the place that holds when it runs") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<std::int32_t> words(*backend, *stream, {1, 2, 3});
  const Placed<std::int32_t> place(*backend, *stream, {0});
  Placed<std::int32_t> places(*backend, *stream, Ints(9, -7));
  stream->synchronize();
  const auto graph = backend->capture(*stream, [&] {
    copy_to_ring(
        {.words = words.view({3}), .place = place.view({1}), .places = places.view({3, 3})},
        *stream);
  });
  const Buffer number = backend->allocate(MemoryKind::pinned, sizeof(std::int32_t), "test");
  *static_cast<std::int32_t*>(number.data()) = 2;
  graph->launch(*stream);
  backend->copy(place.data(), number.data(), sizeof(std::int32_t), *stream);
  graph->launch(*stream);
  CHECK(places.fetch() == Ints{1, 2, 3, -7, -7, -7, 1, 2, 3});
}

TEST_CASE("arguments that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Ints memory(64);
  const auto ints = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), DType::i32, shape);
  };
  const auto why = [&](const TensorView& words, const TensorView& place, const TensorView& places) {
    return refusal(*backend, [&](Stream& stream) {
      copy_to_ring({.words = words, .place = place, .places = places}, stream);
    });
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(says(why(ints({2, 2}), ints({1}), ints({3, 4})), "words is"));
  CHECK(says(why(ints({4}), ints({2}), ints({3, 4})), "place is"));
  CHECK(says(why(ints({4}), ints({1}), ints({4})), "places is"));
  CHECK(says(why(ints({5}), ints({1}), ints({3, 4})), "for 5 words or more"));
}

}  // namespace
}  // namespace nvllm::kernels
