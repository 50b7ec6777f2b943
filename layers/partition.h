// Partition: which part of a dimension each rank owns. The one place where that is decided.
#pragma once

#include <cstdint>

namespace nvllm::layers {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Of elements that come `factor` for each of the range, behind `offset` others.
inline Range scaled(Range range, std::int64_t factor, std::int64_t offset = 0) {
  return {offset + range.begin * factor, offset + range.end * factor};
}

// One rank of a group, as layers see it.
struct Shard {
  int rank = 0;
  int ranks = 1;
  // No result's bits depend on the number of ranks (--invariant tp). What ranks sum over is in
  // segments, as many with every number of ranks, and a rank owns whole ones (segment_sum.h).
  bool tp_invariant = false;
};

// tp_invariant: how many equal segments there are of so many units, which stay whole: the largest
// divisor up to kMaxSegments; at least 1.
inline constexpr std::int64_t kMaxSegments = 8;
std::int64_t segments_of(std::int64_t units);

// One of the stages of a pipeline: each has some of the layers, one stage after the other.
struct Stage {
  int index = 0;
  int stages = 1;

  bool first() const { return index == 0; }
  bool last() const { return index + 1 == stages; }
};

// The layers of a stage: as evenly as can be. The first stages have one more where it does not come
// out even, since the last one also has the LM head.
Range layers_of(std::int64_t layers, Stage stage);

// [0, total) in as many neighbouring parts as there are ranks; the first ones are the larger ones.
// Cuts fall on multiples of the largest power of two up to 64 that divides total (so that rows of
// slices start at aligned addresses); parts differ by at most one such granule. Also 0 < total <
// ranks is fine: the last ranks own nothing. max_granule: a power of two, in place of 64. With
// tp_invariant: whole segments, of multiples of up to 16.
Range part_of(std::int64_t total, Shard shard, std::int64_t max_granule = 64);
// How many segments that are.
std::int64_t segments_of_parts(std::int64_t total);
// Whether a part of `matrices` such dimensions together may be no multiple of 8, with some number
// of ranks (kernels::GemmWeight::uneven_parts); without tp_invariant that does not matter: false.
bool has_uneven_parts(std::int64_t total, Shard shard, std::int64_t matrices = 1);

// The same with cuts anywhere; with tp_invariant whole segments, of which there are
// segments_of(total).
Range even_part_of(std::int64_t total, Shard shard);

// part_of() a vocabulary. It need not be in equal segments: with tp_invariant there always are
// kMaxSegments, as even as part_of() makes them, of which some may be empty.
Range vocabulary_part_of(std::int64_t vocabulary, Shard shard);
Range vocabulary_segment(std::int64_t vocabulary, std::int64_t segment);

// Whole heads. With at least as many KV heads as ranks each rank owns some KV heads and all query
// heads of theirs; with more ranks than KV heads the query heads are split, and every rank holds
// the KV heads that its query heads need (so KV heads are replicated). A rank may own no head at
// all. With tp_invariant a segment is of whole KV heads where that gives four or more segments, and
// else of query heads.
struct HeadPart {
  Range q;                 // query heads
  Range kv;                // KV heads; [0, 0) without query heads
  std::int64_t group = 1;  // query heads per KV head in the whole model
  // The number of the first query head in its group (kernels/attention/attention.h).
  std::int64_t first_head = 0;
  std::int64_t segments = 1;  // tp_invariant: of all query heads
};
HeadPart heads_of(std::int64_t heads, std::int64_t kv_heads, Shard shard);

}  // namespace nvllm::layers
