// Tests gathered pages: every token's keys and values, from host memory and device memory.
#include <cstring>

#include "kernels/sparse/gather_pages.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kBlocks = 6, kBlockSize = 32, kPage = 8, kHeadDim = 16, kKvHeads = 2;

// The value of all elements of a token's key or value in one head.
float value_of(std::int64_t block, std::int64_t token, std::int64_t head, bool key) {
  return static_cast<float>(((block * kBlockSize + token) * kKvHeads + head) * 2 + (key ? 1 : 0));
}

template <typename T>
struct Memory {
  // Blocks 0 to 2 are on the device, in places 2, 0 and 1; the others in the host's memory, a layer
  // that is nobody's before each.
  static constexpr std::int64_t kPart = 2 * kBlockSize * kKvHeads * kHeadDim;
  std::vector<T> keys = std::vector<T>(3 * kPart / 2), values = keys;
  Ids block_map{2, 0, 1, -1, -1, -1};
  Buffer host;
  std::vector<std::int64_t> addresses;

  explicit Memory(Backend& backend)
      : host(backend.allocate(MemoryKind::pinned, kBlocks * 2 * kPart * sizeof(T), "test")) {
    auto* const begin = static_cast<T*>(host.data());
    std::fill_n(begin, kBlocks * 2 * kPart, from_float<T>(testing::kNan));
    for (std::int64_t block = 0; block < kBlocks; ++block) {
      T* part = begin + (kBlocks - 1 - block) * 2 * kPart;
      addresses.push_back(reinterpret_cast<std::int64_t>(part));
      for (std::int64_t i = 0; i < kPart / 2; ++i) {
        const std::int64_t token = i / (kKvHeads * kHeadDim), head = i / kHeadDim % kKvHeads;
        const T key = from_float<T>(value_of(block, token, head, true));
        const T value = from_float<T>(value_of(block, token, head, false));
        if (block_map[block] >= 0) {
          keys[block_map[block] * kPart / 2 + i] = key;
          values[block_map[block] * kPart / 2 + i] = value;
        } else {
          part[kPart + i] = key;
          part[kPart + kPart / 2 + i] = value;
        }
      }
    }
  }
};

TEST_CASE_TEMPLATE("chosen pages come together, each KV head's own", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Memory<T> memory(*backend);
  constexpr std::int64_t kBudget = 4, kSequences = 3, kWidth = 3;
  const Ids table{3, 0, 5, 1, 4, 0, 0, 0, 0};
  const Ids lengths{91, 33, 0}, counts{4, 4, 3, 3, 0, 0};
  const Ids pages{0, 3, 5, 11, 1,  4,  10, 11, 0,  2,  4,  -7,
                  1, 3, 4, -7, -7, -7, -7, -7, -7, -7, -7, -7};
  const Placed<T> keys(*backend, *stream, memory.keys), values(*backend, *stream, memory.values);
  const auto place = [&](const Ids& ids) { return Placed<std::int32_t>(*backend, *stream, ids); };
  const Placed<std::int32_t> tables = place(table), length = place(lengths), count = place(counts),
                             page = place(pages), block_map = place(memory.block_map);
  const Placed<std::int64_t> addresses(*backend, *stream, memory.addresses);
  const std::vector<T> nothing(kSequences * kBudget * kPage * kKvHeads * kHeadDim,
                               from_float<T>(-77));
  Placed<T> to_keys(*backend, *stream, nothing), to_values(*backend, *stream, nothing);
  Placed<std::int32_t> to_length(*backend, *stream, Ids(kSequences, -7));
  GatherPages args;
  args.to.keys = to_keys.view({kSequences, kBudget * kPage, kKvHeads, kHeadDim});
  args.to.values = to_values.view({kSequences, kBudget * kPage, kKvHeads, kHeadDim});
  args.to_length = to_length.view({kSequences});
  args.pages = page.view({kSequences, kKvHeads, kBudget});
  args.page_counts = count.view({kSequences, kKvHeads});
  args.kv_length = length.view({kSequences});
  args.block_table = tables.view({kSequences, kWidth});
  args.page_tokens = kPage;
  args.resident.keys = keys.view({3, kBlockSize, kKvHeads, kHeadDim});
  args.resident.values = values.view({3, kBlockSize, kKvHeads, kHeadDim});
  args.block_map = block_map.view({kBlocks});
  args.addresses = addresses.view({kBlocks});
  args.offset = Memory<T>::kPart * sizeof(T);
  stream->synchronize();
  gather_pages(args, *stream);

  CHECK(to_length.fetch() == Ids{27, 17, 0});
  const std::vector<T> got_keys = to_keys.fetch(), got_values = to_values.fetch();
  int wrong = 0;
  for (std::int64_t s = 0; s < kSequences; ++s) {
    for (std::int64_t g = 0; g < kKvHeads; ++g) {
      std::int64_t written = 0;
      for (std::int64_t i = 0; i < counts[s * kKvHeads + g]; ++i) {
        const std::int64_t first = pages[(s * kKvHeads + g) * kBudget + i] * kPage;
        for (std::int64_t t = first; t < std::min<std::int64_t>(first + kPage, lengths[s]); ++t) {
          const std::int64_t block = table[s * kWidth + t / kBlockSize];
          const std::int64_t at = ((s * kBudget * kPage + written++) * kKvHeads + g) * kHeadDim;
          for (std::int64_t d = 0; d < kHeadDim; ++d) {
            wrong += to_float(got_keys[at + d]) !=
                     to_float(from_float<T>(value_of(block, t % kBlockSize, g, true)));
            wrong += to_float(got_values[at + d]) !=
                     to_float(from_float<T>(value_of(block, t % kBlockSize, g, false)));
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace nvllm::kernels
