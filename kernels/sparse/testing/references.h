// The plain definitions of operations, run at once by the caller: what tests compare every backend
// with. They do not touch the workspaces.
#pragma once

#include "kernels/sparse/block_mask.h"
#include "kernels/sparse/page_selection.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kernels {

// scores: [tiles of rows, heads, token_tiles()], filled in if not nullptr.
void block_mask_reference(const BlockMask& args, double* scores = nullptr);
void vertical_slash_reference(const VerticalSlash& args);
void update_page_bounds_reference(const UpdatePageBounds& args);
void page_selection_reference(const PageSelection& args);
void sparse_attention_reference(const SparseAttention& args);
void page_attention_reference(const PageAttention& args);

}  // namespace nvllm::kernels
