// Page selection of Quest: selects the pages of a sequence that a decode row attends to, by bounds
// of their keys.
//
// A page is page_tokens consecutive tokens of a sequence, within one block. Its bounds are, per KV
// head, the element-wise minimum and maximum of its keys so far. They belong to the block, so pages
// of shared blocks are shared, too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "device/e4m3.h"
#include "kernels/attention/kv_view.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels {

// Calls function(T()) with the type T of a cache's keys: floats, or E4m3 for DType::u8.
template <typename Function>
void with_key_type(DType keys, Function&& function) {
  if (keys == DType::u8) return function(E4m3());
  with_element_type(keys, function);
}

// Updates the bounds after the keys of rows query_start[s] to query_start[s + 1], the last of the
// kv_length[s] tokens of sequence s, have been stored. The bounds of the affected pages are
// recomputed from the page's first token to its newest, so nothing remains of a page's previous
// owner.
struct UpdatePageBounds {
  KvView kv;
  TensorView query_start;  // [sequences + 1], int32, ascending
  TensorView kv_length;    // [sequences], int32
  // [blocks], int32: the block of kv for each block of the table; none: the same.
  TensorView block_map;
  // By block of the table: [pages, kv_heads, 2, head_dim], of the keys' type: minimum, maximum.
  TensorView bounds;
  std::int64_t page_tokens = 16;
  // Per sequence: an upper bound for all replays of a captured graph.
  std::int64_t max_query_rows = 0;

  // The maximum number of pages that contain a sequence's rows.
  std::int64_t max_pages() const { return (max_query_rows + page_tokens - 2) / page_tokens + 1; }

  // Host only: a token's page as an index into `bounds`, and the location of its keys.
  struct Page {
    std::int64_t number, block, inside;
  };
  Page locate(std::int64_t sequence, std::int64_t token) const {
    const std::int64_t inside = token % kv.block_size();
    const std::int64_t block = kv.block_of(sequence, token);
    return {(block * kv.block_size() + inside) / page_tokens,
            block_map.data == nullptr ? block : block_map.as<std::int32_t>()[block], inside};
  }
};

// page_tokens divides the block size, unless the only block is a whole sequence.
void update_page_bounds(const UpdatePageBounds& args, Stream& stream);
void check_update_page_bounds(const UpdatePageBounds& args);

// For row s, the newest token of sequence s, which attends to kv_length[s] tokens:
//   score[page] = max_h sum_d max(q[h][d] min[d], q[h][d] max[d]),   h: heads of a KV head's group,
// which is an upper bound of q[h] · k for all keys of the page; for bounds of E4m3 without the
// scale of the KV head's keys, which all of its pages share. For each KV head it selects page 0,
// the newest page, and the highest-scoring others (ties by ascending page): `budget` pages in all,
// or all there are.
struct PageSelection {
  TensorView q;       // [sequences, heads, head_dim]; any row stride
  TensorView bounds;  // as of UpdatePageBounds, of q's type or E4m3
  // [sequences, blocks], int32: blocks of the bounds; none: sequence s has block s.
  TensorView block_table;
  TensorView kv_length;  // [sequences], int32; 0: nothing is selected
  std::int64_t block_size = 0;
  std::int64_t page_tokens = 16;
  std::int64_t budget = 0;  // pages; at least 2
  std::int64_t group = 1;
  std::int64_t first_head = 0;
  std::int64_t max_kv_length = 0;  // a bound for all replays of a captured graph

  TensorView pages;        // [sequences, kv_heads, budget], int32, ascending; the rest is undefined
  TensorView page_counts;  // [sequences, kv_heads], int32
  TensorView workspace;    // [page_selection_workspace(...)], uint8: scores

  std::int64_t max_pages() const { return (max_kv_length + page_tokens - 1) / page_tokens; }

  // Host only: the index in `bounds` of a page of a sequence.
  std::int64_t bounds_of(std::int64_t sequence, std::int64_t page) const {
    const std::int64_t first = page * page_tokens;
    const auto* table = block_table.as<std::int32_t>() + sequence * block_table.shape[1];
    const std::int64_t block = block_table.data == nullptr ? sequence : table[first / block_size];
    return (block * block_size + first % block_size) / page_tokens;
  }
};

std::size_t page_selection_workspace(std::int64_t sequences, std::int64_t kv_heads,
                                     std::int64_t max_kv_length, std::int64_t page_tokens);

void page_selection(const PageSelection& args, Stream& stream);
void check_page_selection(const PageSelection& args);

}  // namespace nvllm::kernels
