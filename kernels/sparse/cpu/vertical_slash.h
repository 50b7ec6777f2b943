#pragma once

#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kernels::cpu {

// kernels::choose_lines, band_lines and list_lines of checked arguments on a stream of the CPU backend.
void choose_lines(const ChooseLines& args, Stream& stream);
void band_lines(const TensorView& bands, const TensorView& offsets, Stream& stream);
void list_lines(const ListLines& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
