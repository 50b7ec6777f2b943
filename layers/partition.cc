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

// The multiple at which a dimension may be cut.
std::int64_t granule_of(std::int64_t total, std::int64_t shard_alignment) {
  return std::min(shard_alignment, total & -total);
}
constexpr std::int64_t kSegmentGranule = 16;

// A rank's range of `units`, cut at segment boundaries.
Range segments_part_of(std::int64_t units, std::int64_t segments, Shard shard) {
  shard.tp_invariant = false;
  return scaled(even_part_of(segments, shard), units / segments);
}

}  // namespace

std::int64_t segments_of(std::int64_t units) {
  std::int64_t segments = kMaxSegments;
  while (units % segments != 0) --segments;
  return segments;
}

std::int64_t segments_of_parts(std::int64_t total) {
  return total == 0 ? 1 : segments_of(total / granule_of(total, kSegmentGranule));
}

bool has_uneven_parts(std::int64_t total, Shard shard, std::int64_t matrices) {
  return shard.tp_invariant && matrices * (total / segments_of_parts(total)) % 8 != 0;
}

Range even_part_of(std::int64_t total, Shard shard) {
  check(total, shard);
  if (shard.tp_invariant) return segments_part_of(total, segments_of(total), shard);
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

Range shard_range(std::int64_t total, Shard shard, std::int64_t shard_alignment) {
  check(total, shard);
  if (total == 0) return {};
  const std::int64_t granule =
      granule_of(total, shard.tp_invariant ? kSegmentGranule : shard_alignment);
  return scaled(even_part_of(total / granule, shard), granule);
}

Range vocabulary_segment(std::int64_t vocabulary, std::int64_t segment) {
  const Shard as_ranks{.rank = static_cast<int>(segment), .ranks = kMaxSegments};
  return shard_range(vocabulary, as_ranks, kSegmentGranule);
}

Range vocabulary_part_of(std::int64_t vocabulary, Shard shard) {
  if (!shard.tp_invariant) return shard_range(vocabulary, shard);
  const Range segments = even_part_of(kMaxSegments, shard);
  if (segments.size() == 0) return {vocabulary, vocabulary};
  return {vocabulary_segment(vocabulary, segments.begin).begin,
          vocabulary_segment(vocabulary, segments.end - 1).end};
}

HeadShard heads_of(std::int64_t heads, std::int64_t kv_heads, Shard shard) {
  NVLLM_CHECK_LT(0, kv_heads);
  NVLLM_CHECK(heads % kv_heads == 0, heads, " query heads, ", kv_heads, " KV heads");
  HeadShard part;
  part.group = heads / kv_heads;
  if (shard.tp_invariant) {
    constexpr std::int64_t kEnough = 4;
    part.segments = segments_of(kv_heads) >= kEnough ? segments_of(kv_heads) : segments_of(heads);
    part.q = segments_part_of(heads, part.segments, shard);
  } else if (kv_heads >= shard.ranks) {
    part.kv = even_part_of(kv_heads, shard);
    part.q = scaled(part.kv, part.group);
    return part;
  } else {
    part.q = even_part_of(heads, shard);
  }
  if (part.q.size() == 0) return part;
  part.kv = {part.q.begin / part.group, (part.q.end - 1) / part.group + 1};
  part.first_head = part.q.begin % part.group;
  return part;
}

}  // namespace nvllm::layers
