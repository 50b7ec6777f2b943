#pragma once

#include "kernels/sparse/block_mask.h"

namespace nvllm::kernels::cpu {

// kernels::select_tiles of checked arguments on a stream of the CPU backend.
void select_tiles(const SelectTiles& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
