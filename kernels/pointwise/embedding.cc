#include "kernels/pointwise/embedding.h"

#include <cstring>

#include "kernels/common/arguments.h"
#include "kernels/pointwise/cpu/embedding.h"
#ifdef NVLLM_CUDA
#include "kernels/pointwise/sm80/embedding.h"
#endif

namespace nvllm::kernels {

void check_embedding(const Embedding& args) {
  constexpr Arguments check("embedding");
  const TensorView& table = args.table;
  check.require_floats(table, "table", 2, "[entries, columns]");
  check.require_dense(table, "table");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  const std::int64_t rows = args.out.shape[0];
  check.require(args.out, "out", table.dtype, {rows, table.shape[1]});
  check.require_dense(args.out, "out");
  check.require(args.ids, "ids", DType::i32, {rows});
  check.require_dense(args.ids, "ids");
}

void embedding(const Embedding& args, Stream& stream) {
  check_embedding(args);
  if (args.out.elements() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::embedding(args, stream);
#endif
  cpu::embedding(args, stream);
}

void embedding_reference(const Embedding& args) {
  check_embedding(args);
  const std::size_t row_bytes = args.table.shape[1] * size_of(args.table.dtype);
  if (row_bytes == 0) return;
  for (std::int64_t row = 0; row < args.out.shape[0]; ++row) {
    const std::int64_t entry = args.ids.as<std::int32_t>()[row] - args.first_id;
    char* out = args.out.as<char>() + row * row_bytes;
    if (entry < 0 || entry >= args.table.shape[0]) {
      std::memset(out, 0, row_bytes);
    } else {
      std::memcpy(out, args.table.as<char>() + entry * row_bytes, row_bytes);
    }
  }
}

}  // namespace nvllm::kernels
