#include "model/checkpoint/gguf_heads.h"

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf_family.h"

namespace nvllm::model {
namespace {

std::int64_t size(const GgufMetadata& metadata, const std::string& key) {
  const std::int64_t value = metadata.required_integer(key);
  constexpr std::int64_t kMax = 1 << 24;  // so that two can be multiplied
  if (value <= 0 || value > kMax) {
    fail(metadata.where(), ": metadata ", key, ": expected a number from 1 to ", kMax, ", found ",
         value);
  }
  return value;
}

void read_linear_heads(const GgufMetadata& metadata, const GgufFamily& family, GgufHeads& heads) {
  const std::string ssm = std::string(family.architecture) + ".ssm.";
  heads.key_heads = size(metadata, ssm + "group_count");
  heads.value_heads = size(metadata, ssm + "time_step_rank");
  heads.key_dim = size(metadata, ssm + "state_size");
  const std::int64_t inner = size(metadata, ssm + "inner_size");
  if (heads.value_heads % heads.key_heads != 0) {
    fail(metadata.where(), ": metadata ", ssm, "time_step_rank: expected a multiple of ",
         "ssm.group_count, which is ", heads.key_heads, ", found ", heads.value_heads);
  }
  if (inner % heads.value_heads != 0) {
    fail(metadata.where(), ": metadata ", ssm, "inner_size: expected a multiple of ",
         "ssm.time_step_rank, which is ", heads.value_heads, ", found ", inner);
  }
  heads.value_dim = inner / heads.value_heads;
  heads.tiled = family.kind != GgufFamily::Kind::qwen3_next;
}

void set_rotary_order(StoredTensor& tensor, std::int64_t heads, const std::string& file) {
  if (heads > tensor.shape[0] / 2 || tensor.shape[0] % (2 * heads) != 0) {
    fail(file, ": tensor ", tensor.stored_name, ": expected rows of ", heads,
         " heads, an even number each, found ", tensor.shape[0]);
  }
  // In a head of d rows the file's order is 0, d/2, 1, d/2 + 1, ...
  const StoredOrder order{.outer = 2, .inner = tensor.shape[0] / heads / 2};
  (tensor.shape.size() == 1 ? tensor.column_order : tensor.row_order) = order;
}

// Rows or columns after `first`, of_head per value head.
void set_tiled_order(StoredTensor& tensor, bool columns, std::int64_t first, std::int64_t of_head,
                     const GgufHeads& heads, const std::string& file) {
  const std::int64_t expected = first + heads.value_heads * of_head;
  const std::int64_t found = columns ? tensor.shape.back() : tensor.shape[0];
  if (found != expected) {
    fail(file, ": tensor ", tensor.stored_name, ": expected ", expected,
         columns && tensor.shape.size() > 1 ? " columns" : " rows", ", as its heads say, found ",
         found);
  }
  const std::int64_t group = heads.value_heads / heads.key_heads;
  if (group == 1 || heads.key_heads == 1) return;
  (columns ? tensor.column_order : tensor.row_order) =
      StoredOrder{.first = first, .outer = heads.key_heads, .inner = group, .size = of_head};
}

}  // namespace

GgufHeads gguf_heads(const GgufMetadata& metadata) {
  const GgufFamily& family = gguf_family(metadata);
  const std::string key = std::string(family.architecture) + ".attention.head_count";
  GgufHeads heads;
  heads.permuted = family.permuted;
  heads.heads = metadata.required_integer(key);
  // Layers of a Gemma 4 may differ in it, which only its configuration looks at.
  const bool by_layer = family.is_gemma4() && metadata.has_array(key + "_kv");
  heads.kv_heads = by_layer ? heads.heads : metadata.integer(key + "_kv").value_or(heads.heads);
  if (heads.heads <= 0 || heads.kv_heads <= 0) {
    fail(metadata.where(), ": metadata ", key, " and ", key,
         "_kv: expected numbers above 0, found ", heads.heads, " and ", heads.kv_heads);
  }
  if (family.has_linear_attention()) read_linear_heads(metadata, family, heads);
  return heads;
}

void set_stored_order(StoredTensor& tensor, std::string_view module, const GgufHeads& heads,
                      const std::string& file) {
  if (heads.permuted && module == "attn_q") set_rotary_order(tensor, heads.heads, file);
  if (heads.permuted && module == "attn_k") set_rotary_order(tensor, heads.kv_heads, file);
  if (heads.key_heads == 0) return;
  if (module == "ssm_a") {
    tensor.stored_as_minus_exp = true;
    if (tensor.shape.size() != 1 || tensor.encoding != Encoding::f32) {
      fail(file, ": tensor ", tensor.stored_name, ": expected F32 [", heads.value_heads,
           "], found ", name_of(tensor.encoding), " ", shape_text(tensor.shape));
    }
  }
  if (!heads.tiled) return;
  const std::int64_t qk = 2 * heads.key_heads * heads.key_dim, dv = heads.value_dim;
  if (module == "attn_qkv" || module == "ssm_conv1d") {
    set_tiled_order(tensor, /*columns=*/false, qk, dv, heads, file);
  } else if (module == "attn_gate") {
    set_tiled_order(tensor, /*columns=*/false, 0, dv, heads, file);
  } else if (module == "ssm_beta" || module == "ssm_alpha") {
    set_tiled_order(tensor, /*columns=*/false, 0, 1, heads, file);
  } else if (module == "ssm_out") {
    set_tiled_order(tensor, /*columns=*/true, 0, dv, heads, file);
  } else if (module == "ssm_a" || module == "ssm_dt") {
    set_tiled_order(tensor, /*columns=*/true, 0, 1, heads, file);
  }
}

}  // namespace nvllm::model
