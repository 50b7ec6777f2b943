// Embedding on the CPU: copies of rows.
#include "kernels/pointwise/cpu/embedding.h"

#include <cstring>

#include "kernels/common/cpu/rows.h"

namespace nvllm::kernels::cpu {
namespace {

struct Job {
  char* out;
  const std::int32_t* ids;
  const char* table;
  std::int64_t first_id, entries, row_bytes;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t entry = ids[row] - first_id;
      if (entry < 0 || entry >= entries) {
        std::memset(out + row * row_bytes, 0, row_bytes);
      } else {
        std::memcpy(out + row * row_bytes, table + entry * row_bytes, row_bytes);
      }
    }
  }
};

}  // namespace

void embedding(const Embedding& args, Stream& stream) {
  Job job;
  job.out = args.out.as<char>();
  job.ids = args.ids.as<std::int32_t>();
  job.table = args.table.as<char>();
  job.first_id = args.first_id;
  job.entries = args.table.shape[0];
  job.row_bytes = args.table.shape[1] * static_cast<std::int64_t>(size_of(args.table.dtype));
  submit_rows(stream, args.out.shape[0], 2 * job.row_bytes, job);
}

}  // namespace nvllm::kernels::cpu
