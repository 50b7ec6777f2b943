#include "model/loading/kv_scales.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + str(extent);
  return text + "]";
}

// The tensor with one of the names that programs give a scale. `which`: "k" or "v".
const StoredTensor& scale_of(const Checkpoint& checkpoint, const ModelConfig& config,
                             std::int64_t layer, const std::string& which) {
  const auto& scales = checkpoint.kv_scales();
  const std::string name = config.names.in_layer(layer, ("self_attn." + which + "_scale").c_str());
  const char* const projection = which == "k" ? config.names.k : config.names.v;
  for (const std::string& each :
       {name, config.names.in_layer(layer, projection) + "." + which + "_scale"}) {
    if (const auto found = scales.find(each); found != scales.end()) return found->second;
  }
  fail(checkpoint.describe(), ": expected a tensor ", name, ", as there is ",
       printable(scales.begin()->first), "; found none");
}

// A number for each KV head of the whole model.
std::vector<float> numbers_of(const StoredTensor& tensor, const Checkpoint& checkpoint,
                              std::int64_t kv_heads) {
  const std::string& path = checkpoint.files()[tensor.file].path();
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= extent;
  const bool plain = tensor.encoding == Encoding::f32 || tensor.encoding == Encoding::f16 ||
                     tensor.encoding == Encoding::bf16;
  if (!plain || (count != 1 && count != kv_heads)) {
    fail(path, ": tensor ", printable(tensor.stored_name),
         ": expected one number, or one for each ", "of ", kv_heads,
         " KV heads, in F32, F16 or BF16, found ", name_of(tensor.encoding), " ",
         shape_text(tensor.shape));
  }
  std::vector<std::byte> bytes(tensor.bytes);
  read_at(checkpoint.files()[tensor.file], tensor.offset, bytes);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  decode(tensor.encoding, bytes.data(), count, DType::f32, numbers.data());
  for (const float number : numbers) {
    if (std::isfinite(number) && number > 0 && std::isfinite(1 / number)) continue;
    fail(path, ": tensor ", printable(tensor.stored_name), ": is ", number,
         "; a scale must be a number above 0");
  }
  if (count == 1) numbers.resize(static_cast<std::size_t>(kv_heads), numbers.front());
  return numbers;
}

}  // namespace

std::vector<float> read_kv_scales(const Checkpoint& checkpoint, const ModelConfig& config,
                                  const std::function<layers::Range(std::int64_t)>& heads_of) {
  std::vector<float> all;
  if (checkpoint.kv_scales().empty()) return all;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.has_kv(layer)) continue;
    const layers::Range heads = heads_of(layer);
    for (const char* which : {"k", "v"}) {
      const std::vector<float> numbers = numbers_of(scale_of(checkpoint, config, layer, which),
                                                    checkpoint, config.kv_heads_of(layer));
      all.insert(all.end(), numbers.begin() + heads.begin, numbers.begin() + heads.end);
    }
  }
  return all;
}

}  // namespace nvllm::model
