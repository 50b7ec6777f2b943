#pragma once

#include "kernels/sparse/block_mask.h"

namespace nvllm::kernels::cuda {

// kernels::select_tiles of checked arguments on a stream of the CUDA backend.
void select_tiles(const SelectTiles& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
