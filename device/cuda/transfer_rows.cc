#include "device/transfer_rows.h"

#include "device/cuda/stream.h"

namespace nvllm {

void copy_two_dimensional(const Rows& rows, Stream& stream) {
  cuda::check(cudaMemcpy2DAsync(rows.to, rows.row_bytes, rows.from, rows.from_pitch, rows.row_bytes,
                                rows.rows, cudaMemcpyDefault, cuda::native(stream)),
              "copying rows");
}

}  // namespace nvllm
