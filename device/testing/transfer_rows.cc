#include "device/testing/transfer_rows.h"

#ifdef NVLLM_CUDA
#include "device/cuda/stream.h"
#else
#include "base/error.h"
#endif

namespace nvllm {

#ifdef NVLLM_CUDA
void copy_two_dimensional(const Rows& rows, Stream& stream) {
  cuda::check(cudaMemcpy2DAsync(rows.to, rows.row_bytes, rows.from, rows.from_pitch, rows.row_bytes,
                                rows.rows, cudaMemcpyDefault, cuda::native(stream)),
              "copying rows");
}
#else
void copy_two_dimensional(const Rows&, Stream&) {
  fail("built without CUDA: no two-dimensional copies");
}
#endif

}  // namespace nvllm
