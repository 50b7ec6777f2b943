// The arithmetic of the vertical-slash index, shared by all backends: from offsets to bands, and
// from bands to the ranges of a block.
//
// In a block of W = kSlashRows rows that ends before token e, offset o covers the distances (o, o +
// W] from e. Bands are merged intervals of distances: [a, b) stands for the tokens [e - b, e - a),
// for any e.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kernels {

inline constexpr std::int32_t kSlashWidth = kSlashRows;

struct Band {
  std::int32_t a, b;
};

struct TokenRange {
  std::int32_t begin, end;
};

// Merges ascending offsets; adjacent bands become one. Returns the number of bands.
NVLLM_HOST_DEVICE std::int32_t merge_offsets(const std::int32_t* offsets, std::int64_t count,
                                             Band* bands) {
  std::int32_t combined = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t a = offsets[i], b = a + kSlashWidth;
    if (combined > 0 && a <= bands[combined - 1].b) {
      bands[combined - 1].b = b;
    } else {
      bands[combined++] = {a, b};
    }
  }
  return combined;
}

// How many of the ascending values are below `bound`; value(i) yields them.
template <typename Value>
NVLLM_HOST_DEVICE std::int32_t count_below(std::int32_t count, std::int32_t bound,
                                           const Value& value) {
  std::int32_t low = 0, high = count;
  while (low < high) {
    const std::int32_t middle = (low + high) / 2;
    if (value(middle) < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The ranges of one head for a block of rows.
struct BlockRanges {
  const Band* bands;
  std::int32_t e;      // the block's rows are [e - W, e)
  std::int32_t end;    // the end of the visible tokens: min(e, tokens)
  std::int32_t reach;  // the number of leading bands that begin below e
  bool base;           // an offset within W of e covers tokens [0, W), not only [0, e - o)
  bool joined;         // and this first range touches the second one

  NVLLM_HOST_DEVICE BlockRanges(const Band* bands, std::int32_t band_count,
                                const std::int32_t* offsets, std::int32_t offset_count,
                                std::int32_t e, std::int32_t end)
      : bands(bands), e(e), end(end) {
    reach = count_below(band_count, e, [&](std::int32_t i) { return bands[i].a; });
    const auto offset = [&](std::int32_t i) { return offsets[i]; };
    const std::int32_t below = count_below(offset_count, e, offset);
    base = below > 0 && offsets[below - 1] > e - kSlashWidth;
    joined = base && reach > 1 && e - bands[reach - 2].b <= kSlashWidth;
  }

  NVLLM_HOST_DEVICE std::int32_t ranges() const { return joined ? reach - 1 : reach; }

  // Range i of ranges(), in ascending order.
  NVLLM_HOST_DEVICE TokenRange range(std::int32_t i) const {
    const Band& first = bands[reach - 1 - i];
    const Band& last = joined ? bands[reach - 2 - i] : first;
    if (joined && i > 0) return clipped(e - last.b, e - last.a);
    std::int32_t to = e - last.a;
    if (base && i == 0 && to < kSlashWidth) to = kSlashWidth;
    return clipped(e - first.b, to);
  }

  // Whether a token is visible to the block, but in none of its ranges.
  NVLLM_HOST_DEVICE bool outside(std::int32_t token) const {
    if (token >= end || (base && token < kSlashWidth)) return false;
    const std::int32_t distance = e - token;
    const std::int32_t before =
        count_below(reach, distance, [&](std::int32_t i) { return bands[i].a; });
    return before == 0 || distance > bands[before - 1].b;
  }

 private:
  NVLLM_HOST_DEVICE TokenRange clipped(std::int32_t begin, std::int32_t to) const {
    return {begin < 0 ? 0 : begin, to < end ? to : end};
  }
};

}  // namespace nvllm::kernels
