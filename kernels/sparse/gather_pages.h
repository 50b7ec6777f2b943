// Gathers selected pages of sequences on the device, from host memory or device memory, for sparse
// decode when keys and values are in host memory.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// pages[s][g], page_counts[s][g] and page_tokens are as written by page_selection(): the pages of a
// sequence and KV head, ascending, equally many for all KV heads of a sequence. Their tokens are
// copied contiguously to block s of `to`, each KV head's from its own pages, and to_length[s]
// becomes their number: all pages are whole except the last one, which may end with the sequence.
struct GatherPages {
  KvView to;               // without a table; blocks of at least budget * page_tokens tokens
  TensorView to_length;    // [sequences], int32
  TensorView pages;        // [sequences, kv_heads, budget], int32
  TensorView page_counts;  // [sequences, kv_heads], int32
  TensorView kv_length;    // [sequences], int32
  TensorView block_table;  // [sequences, blocks], int32
  std::int64_t page_tokens = 16;

  // Block b is block block_map[b] of `resident` or, if that is negative, is at addresses[b] +
  // offset bytes, which the device can read: dense keys [block_size, kv_heads, head_dim], then the
  // values.
  KvView resident;
  TensorView block_map;  // [blocks], int32
  TensorView addresses;  // [blocks], int64
  std::int64_t offset = 0;
};

// Lengths, pages, block_map and addresses may change between replays of a captured graph.
void gather_pages(const GatherPages& args, Stream& stream);
void check_gather_pages(const GatherPages& args);

}  // namespace nvllm::kernels
