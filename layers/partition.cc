#include "layers/partition.h"

#include <algorithm>

#include "base/check.h"

namespace nvllm::layers {
namespace {

void check(std::int64_t total, Shard shard) {
  NVLLM_CHECK_LE(0, total);
  NVLLM_CHECK_LE(0, shard.rank);
  NVLLM_CHECK_LT(shard.rank, shard.ranks);
}

}  // namespace

Range even_part_of(std::int64_t total, Shard shard) {
  check(total, shard);
  const std::int64_t smallest = total / shard.ranks;
  const std::int64_t larger_parts = total % shard.ranks;
  const std::int64_t begin =
      shard.rank * smallest + std::min<std::int64_t>(shard.rank, larger_parts);
  return {begin, begin + smallest + (shard.rank < larger_parts ? 1 : 0)};
}

Range layers_of(std::int64_t layers, Stage stage) {
  NVLLM_CHECK_LE(stage.stages, layers);
  return even_part_of(layers, {.rank = stage.index, .ranks = stage.stages});
}

Range part_of(std::int64_t total, Shard shard, std::int64_t max_granule) {
  check(total, shard);
  if (total == 0) return {};
  const std::int64_t granule = std::min(max_granule, total & -total);
  return scaled(even_part_of(total / granule, shard), granule);
}

HeadPart heads_of(std::int64_t heads, std::int64_t kv_heads, Shard shard) {
  NVLLM_CHECK_LT(0, kv_heads);
  NVLLM_CHECK(heads % kv_heads == 0, heads, " query heads, ", kv_heads, " KV heads");
  HeadPart part;
  part.group = heads / kv_heads;
  if (kv_heads >= shard.ranks) {
    part.kv = even_part_of(kv_heads, shard);
    part.q = scaled(part.kv, part.group);
    return part;
  }
  part.q = even_part_of(heads, shard);
  if (part.q.size() == 0) return part;
  part.kv = {part.q.begin / part.group, (part.q.end - 1) / part.group + 1};
  part.first_head = part.q.begin % part.group;
  return part;
}

}  // namespace nvllm::layers
