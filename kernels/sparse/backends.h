// The implementations of this folder's operations, by backend. NAME.cc checks the arguments and
// calls the one of the stream's device. All of them take checked arguments and enqueue on `stream`.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

struct BlockMask;
struct DequantizeKeys;
struct GatherPages;
struct PageAttention;
struct PageSelection;
struct SparseAttention;
struct UpdatePageBounds;
struct VerticalSlash;
struct VerticalSlashIndex;

namespace cpu {

void block_mask(const BlockMask& args, Stream& stream);
void dequantize_keys(const DequantizeKeys& args, Stream& stream);
void gather_pages(const GatherPages& args, Stream& stream);
void page_attention(const PageAttention& args, Stream& stream);
void page_selection(const PageSelection& args, Stream& stream);
void slash_bands(const TensorView& bands, const TensorView& offsets, Stream& stream);
void sparse_attention(const SparseAttention& args, Stream& stream);
void update_page_bounds(const UpdatePageBounds& args, Stream& stream);
void vertical_slash(const VerticalSlash& args, Stream& stream);
void vertical_slash_index(const VerticalSlashIndex& args, Stream& stream);

}  // namespace cpu

namespace cuda {

void block_mask(const BlockMask& args, Stream& stream);
void dequantize_keys(const DequantizeKeys& args, Stream& stream);
void gather_pages(const GatherPages& args, Stream& stream);
void page_attention(const PageAttention& args, Stream& stream);
void page_selection(const PageSelection& args, Stream& stream);
void slash_bands(const TensorView& bands, const TensorView& offsets, Stream& stream);
void sparse_attention(const SparseAttention& args, Stream& stream);
void update_page_bounds(const UpdatePageBounds& args, Stream& stream);
void vertical_slash(const VerticalSlash& args, Stream& stream);
void vertical_slash_index(const VerticalSlashIndex& args, Stream& stream);

}  // namespace cuda

}  // namespace nvllm::kernels
