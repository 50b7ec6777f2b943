// Decides which part of a dimension each rank owns; nothing else does.
#pragma once

#include <cstdint>

namespace nvllm::layers {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// The range scaled to elements, `factor` per unit, after `offset` others.
inline Range scaled(Range range, std::int64_t factor, std::int64_t offset = 0) {
  return {offset + range.begin * factor, offset + range.end * factor};
}

// A rank of a tensor-parallel group, as layers see it.
struct Shard {
  int rank = 0;
  int ranks = 1;
  // No result's bits depend on the number of ranks (--invariant tp). Dimensions that ranks sum over
  // are cut into the same segments for every number of ranks, and a rank owns whole ones
  // (segment_sum.h).
  bool tp_invariant = false;
};

// With tp_invariant: the number of equal segments into which `units` indivisible units are cut: the
// largest divisor up to kMaxSegments; at least 1.
inline constexpr std::int64_t kMaxSegments = 8;
std::int64_t segments_of(std::int64_t units);

// A stage of a pipeline. Stages have contiguous ranges of layers.
struct Stage {
  int index = 0;
  int stages = 1;

  bool first() const { return index == 0; }
  bool last() const { return index + 1 == stages; }
};

// The layers of a stage, split as evenly as possible. If they do not divide, the first stages have
// one more, since the last stage also has the LM head.
Range layers_of(std::int64_t layers, Stage stage);

// Splits [0, total) into one contiguous part per rank, larger ones first. Cuts fall on multiples of
// the largest power of two up to 64 that divides total (so that rows of slices start at aligned
// addresses); parts differ by at most one such granule. With 0 < total < ranks the last ranks own
// nothing. shard_alignment: a power of two that replaces 64. With tp_invariant parts are whole
// segments, with cuts at multiples of up to 16.
Range shard_range(std::int64_t total, Shard shard, std::int64_t shard_alignment = 64);
// The number of segments of shard_range() with tp_invariant.
std::int64_t segments_of_parts(std::int64_t total);
// Whether, for some number of ranks, a part of `matrices` such dimensions together may not be a
// multiple of 8 (kernels::GemmWeight::unaligned_shards). Always false without tp_invariant, where
// it does not matter.
bool has_uneven_parts(std::int64_t total, Shard shard, std::int64_t matrices = 1);

// Like shard_range(), but cuts may fall anywhere; with tp_invariant parts are whole segments,
// segments_of(total) in all.
Range even_part_of(std::int64_t total, Shard shard);

// shard_range() for a vocabulary, whose segments need not be equal: with tp_invariant there are
// always kMaxSegments, as even as shard_range() makes them; some may be empty.
Range vocabulary_part_of(std::int64_t vocabulary, Shard shard);
Range vocabulary_segment(std::int64_t vocabulary, std::int64_t segment);

// Whole heads. With at least as many KV heads as ranks each rank owns some KV heads and all of
// their query heads. With more ranks than KV heads the query heads are split, and every rank holds
// the KV heads that its query heads need (KV heads are replicated). A rank may own no head at all.
// With tp_invariant a segment consists of whole KV heads if that yields at least four segments,
// otherwise of query heads.
struct HeadShard {
  Range q;                 // query heads
  Range kv;                // KV heads; [0, 0) without query heads
  std::int64_t group = 1;  // query heads per KV head in the whole model
  // The index of the first query head within its group (kernels/attention/attention.h).
  std::int64_t first_head = 0;
  std::int64_t segments = 1;  // tp_invariant: segments of all query heads
};
HeadShard heads_of(std::int64_t heads, std::int64_t kv_heads, Shard shard);

}  // namespace nvllm::layers
