#include "runtime/product_tuning.h"

#include <algorithm>

#include "kvcache/kv_cache.h"
#include "layers/batch.h"
#include "runtime/decode_graphs.h"

namespace nvllm::runtime {
namespace {

// With fewer rows products are bound by reading weights, and nothing is left to choose: kernels/gemm/sm80/matvec.h.
constexpr std::int64_t kLeastRows = 17;
constexpr std::int64_t kLeastPromptRows = 512;

// Keys and values go nowhere, and attention leaves its output as it is.
class NoCache final : public kvcache::ViewCache {
 public:
  explicit NoCache(const model::Decoder& decoder) {
    kernels::KvView none;
    none.keys = none.values = TensorView(
        nullptr, decoder.dtype(), {0, 1, decoder.heads().kv.size(), decoder.config().head_dim});
    views_.assign(static_cast<std::size_t>(decoder.config().layers), none);
  }
  void attend(std::int64_t, const kernels::Attention&, Stream&) override {}
};

}  // namespace

std::vector<TunedSize> tuned_sizes(std::int64_t max_num_seqs, std::int64_t rows_at_once) {
  std::vector<TunedSize> sizes;
  for (std::int64_t rows = rows_at_once, next = 0; rows >= kLeastPromptRows; rows = next) {
    sizes.push_back({rows, false});
    for (next = kLeastPromptRows; 2 * next < rows; next *= 2) continue;
    if (next == rows) break;
  }
  const std::int64_t most = std::min(max_num_seqs, rows_at_once);
  for (std::int64_t rows = most; rows >= kLeastRows; --rows) {
    const bool is_padded = padded_sequences(rows, max_num_seqs) == rows;
    if (is_padded) sizes.push_back({rows, true});
  }
  return sizes;
}

void tune_products(const TunedSize& size, const model::Decoder& decoder,
                   model::DecoderMemory& memory, const model::Device& device, Backend& backend) {
  const auto bytes = static_cast<std::size_t>(size.rows) * sizeof(std::int64_t);
  const Buffer zeros = backend.allocate(MemoryKind::device, bytes, "tuning");
  const Buffer nowhere = backend.allocate(MemoryKind::device, bytes, "tuning");
  backend.fill(zeros.data(), 0, bytes, device.stream);
  backend.fill(nowhere.data(), 0xff, bytes, device.stream);  // -1
  layers::Batch batch;
  batch.tokens = batch.positions = TensorView(zeros.data(), DType::i32, {size.rows});
  batch.slots = TensorView(nowhere.data(), DType::i64, {size.rows});
  if (!size.decodes) batch.logit_rows = TensorView(zeros.data(), DType::i32, {1});
  NoCache cache(decoder);
  decoder.tune(batch, cache, memory, device);
}

}  // namespace nvllm::runtime
