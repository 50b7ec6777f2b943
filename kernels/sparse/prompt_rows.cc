#include "kernels/sparse/prompt_rows.h"

#include "base/error.h"

namespace nvllm::kernels {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes that are loaded at a time

void check_steps(const TensorView& tensor, const char* name, const Arguments& check) {
  const auto elements = kAlignment / static_cast<std::int64_t>(size_of(tensor.dtype));
  bool fits = tensor.aligned(kAlignment);
  for (int axis = 0; axis < tensor.rank - 1; ++axis) {
    fits &= tensor.shape[axis] <= 1 || tensor.stride[axis] % elements == 0;
  }
  if (!fits) {
    fail(check.operation(), ": ", name, " is ", tensor.describe(), " at ", tensor.data,
         "; every head must begin at a multiple of ", kAlignment, " bytes");
  }
}

void check_heads(const PromptRows& rows, const Arguments& check) {
  if (rows.group < 1 || rows.first_head < 0 || rows.first_head >= rows.group) {
    fail(check.operation(), ": first_head is ", rows.first_head, " of a group of ", rows.group,
         "; it must be in its group");
  }
  if (rows.heads() > 0 && rows.kv_head(rows.heads() - 1) >= rows.kv.kv_heads()) {
    fail(check.operation(), ": q is ", rows.q.describe(), ", keys are ", rows.kv.keys.describe(),
         "; that is too few KV heads for groups of ", rows.group);
  }
}

}  // namespace

void check_prompt_rows(const PromptRows& rows, const Arguments& check) {
  check.require_floats(rows.q, "q", 3, "[rows, heads, head_dim]");
  check_kv_view(rows.kv, check.operation());
  const std::int64_t head_dim = rows.head_dim();
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    fail(check.operation(), ": q is ", rows.q.describe(),
         "; head_dim must be a multiple of 8 up to ", kMaxHeadDim);
  }
  if (rows.kv.keys.dtype != rows.q.dtype || rows.kv.head_dim() != head_dim) {
    fail(check.operation(), ": keys are ", rows.kv.keys.describe(), ", which do not fit q, ",
         rows.q.describe());
  }
  check_heads(rows, check);
  if (rows.first_position < 0) {
    fail(check.operation(), ": first_position is ", rows.first_position, "; it must be at least 0");
  }
  if (rows.q.elements() == 0) return;
  TensorView row = rows.q;  // rows may lie apart, a row itself not
  row.shape[0] = 1;
  check.require_dense(row, "a row of q");
  check_steps(rows.q, "q", check);
  check_steps(rows.kv.keys, "keys", check);
  const TensorView& table = rows.kv.block_table;
  const std::int64_t blocks = table.data == nullptr ? 1 : table.shape[1];
  if (table.data != nullptr && table.shape[0] != 1) {
    fail(check.operation(), ": block_table is ", table.describe(), "; it must be of one sequence");
  }
  if (blocks * rows.kv.block_size() < rows.tokens()) {
    fail(check.operation(), ": the rows end at token ", rows.tokens(), ", but the cache holds ",
         blocks, " blocks of ", rows.kv.block_size());
  }
}

}  // namespace nvllm::kernels
