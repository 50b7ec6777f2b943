#include "model/decoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "kernels/gemm/gemm.h"
#include "layers/testing/test_batch.h"
#include "model/checkpoint/checkpoint.h"
#include "model/loading/loader.h"

namespace nvllm::model {
namespace {

struct Model {
  std::string name;
  Checkpoint checkpoint;
  ModelConfig config;
};

std::vector<Model> golden_models() {
  std::vector<Model> models;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/golden-models")) {
    const std::string folder = entry.path();
    Checkpoint checkpoint = open_checkpoint(folder);
    ModelConfig config = parse_config(checkpoint.config_json(), "", folder);
    models.push_back({entry.path().filename(), std::move(checkpoint), config});
  }
  REQUIRE(models.size() == 29);
  return models;
}

Model golden_model(const std::string& name) {
  for (Model& model : golden_models()) {
    if (model.name == name) return std::move(model);
  }
  FAIL("no golden model " << name);
  std::abort();
}

// How many ranks read each element of each tensor.
std::map<std::string, std::vector<int>> readers(const ModelConfig& config, int ranks) {
  std::map<std::string, std::vector<int>> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    const Decoder decoder(config, {rank, ranks}, DType::bf16);
    for (const layers::Parameter* parameter : decoder.parameters()) {
      for (const layers::Slice& slice : parameter->slices) {
        const std::int64_t columns = slice.shape.size() == 2 ? slice.shape[1] : 1;
        auto& count = counts[slice.tensor];
        count.resize(slice.shape[0] * columns);
        for (std::int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
          for (std::int64_t column = slice.columns.begin; column < slice.columns.end; ++column) {
            ++count[row * columns + column];
          }
        }
      }
    }
  }
  return counts;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Without what a multimodal model sees with, layers that predict further tokens, and what would
// make keys and values in layers that read those of others.
std::vector<StoredTensor> read_tensors(const Model& model) {
  std::vector<StoredTensor> tensors;
  const ModelConfig& config = model.config;
  const auto is_read = [&](const std::string& name) {
    for (const char* other :
         {"mtp.", "model.visual.", "model.vision_tower.", "model.embed_vision."})
      if (name.starts_with(other)) return false;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      if (layer < config.layers - config.kv_shared_layers) continue;
      for (const char* part : {"self_attn.k_", "self_attn.v_"})
        if (name.starts_with(config.names.in_layer(layer, part))) return false;
    }
    return true;
  };
  for (const auto& [name, tensor] : model.checkpoint.tensors()) {
    if (is_read(name)) tensors.push_back(tensor);
  }
  return tensors;
}

// Whether values are what this projection of keys makes, too: it is read twice.
bool makes_values(const Model& model, const std::string& tensor) {
  const auto at = tensor.find("k_proj");
  if (at == std::string::npos) return false;
  std::string values = tensor;
  values[at] = 'v';
  return model.checkpoint.find(values) == nullptr;
}

// Numbers of linear attention, of any type in files.
bool is_always_float32(const std::string& name) {
  return contains(name, "A_log") || contains(name, "dt_bias") || contains(name, "linear_attn.norm");
}

TEST_CASE(
    "the slices of all ranks cover every tensor of a checkpoint, once but where they must not") {
  for (const Model& model : golden_models()) {
    CAPTURE(model.name);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      CAPTURE(ranks);
      const auto counts = readers(model.config, ranks);
      REQUIRE(counts.size() == read_tensors(model).size());
      for (const auto& item : counts) {
        const std::string& tensor = item.first;
        CAPTURE(tensor);
        REQUIRE(model.checkpoint.find(tensor) != nullptr);
        const auto range = std::minmax_element(item.second.begin(), item.second.end());
        const int min = *range.first, max = *range.second;
        const bool kv = contains(tensor, "k_proj") || contains(tensor, "v_proj");
        const bool router = contains(tensor, ".gate.weight") || contains(tensor, ".router.") ||
                            contains(tensor, "shared_expert_gate");
        const bool whole = router || contains(tensor, "norm") || contains(tensor, "layer_scalar") ||
                           contains(tensor, "per_layer_model_projection");
        const int times = makes_values(model, tensor) ? 2 : 1;
        const std::int64_t kv_heads =
            times == 2 ? model.config.global_kv_heads : model.config.kv_heads;
        if (whole) {  // on every rank
          CHECK(min == ranks);
        } else if (kv && ranks > kv_heads) {  // with every query head of theirs
          CHECK(min >= times);
        } else {
          CHECK(min == times);
          CHECK(max == times);
        }
      }
    }
  }
}

TEST_CASE("a tied head has no memory of its own") {
  for (const Model& model : golden_models()) {
    CAPTURE(model.name);
    const Decoder decoder(model.config, {0, 1}, DType::bf16);
    std::uint64_t stored = 0;
    for (const StoredTensor& tensor : read_tensors(model)) {
      const bool quantized = tensor.quantized != nullptr;
      if (makes_values(model, tensor.name)) stored += tensor.bytes;
      if (is_always_float32(tensor.name)) {
        stored += sizeof(float) * static_cast<std::uint64_t>(tensor.shape[0]);
        continue;
      }
      stored += quantized ? sizeof(Bf16) * tensor.shape[0] * tensor.shape[1] : tensor.bytes;
    }
    CHECK(bytes_of(decoder.parameters(), DType::bf16).used == stored);
  }
}

TEST_CASE("what a decoder needs for activations is known before it is taken") {
  for (const char* name : {"qwen3-uneven", "qwen3moe-dense-layer", "gemma3-text", "qwen3next",
                           "gemma4-dense", "gemma4-ple", "gemma4-moe"}) {
    for (const int ranks : {1, 3}) {
      const auto backend = create_backend(DeviceKind::cpu);
      const Decoder decoder(golden_model(name).config, {0, ranks}, DType::bf16);
      const DecoderLimits limits{.rows = 33, .logit_rows = 5, .positions = 77, .state_slots = 6};
      const DecoderMemory memory(decoder, limits, *backend);
      std::size_t taken = 0, rope = 0, states = 0;
      for (const Ledger::Entry& entry : backend->ledger().entries()) {
        if (entry.purpose == "activations") taken += entry.bytes;
        if (entry.purpose == "rope table") rope += entry.bytes;
        if (entry.purpose == "linear attention states") states += entry.bytes;
      }
      CHECK(states == DecoderMemory::state_bytes(decoder, 6));
      CHECK(taken == DecoderMemory::bytes(decoder, limits));
      CHECK(rope == decoder.rope_bytes(limits.positions));
    }
  }
}

TEST_CASE("more rows than there is memory for are refused") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto gemm = kernels::create_gemm(*backend);
  const Decoder decoder(golden_model("qwen3-uneven").config, {0, 1}, DType::bf16);
  DecoderMemory memory(decoder, {.rows = 4, .logit_rows = 2, .positions = 16}, *backend);
  kvcache::ViewCache kv;
  layers::Batch batch;
  batch.tokens = TensorView(nullptr, DType::i32, {5});
  std::int32_t row = 0;
  batch.logit_rows = TensorView(&row, DType::i32, {1});
  CHECK_THROWS_WITH_AS(decoder.forward(batch, kv, memory, {*stream, *gemm}),
                       doctest::Contains("5 rows"), Error);
  batch.tokens = TensorView(nullptr, DType::i32, {4});
  batch.logit_rows = TensorView(&row, DType::i32, {3});
  CHECK_THROWS_WITH_AS(decoder.forward(batch, kv, memory, {*stream, *gemm}),
                       doctest::Contains("logits of 3"), Error);
}

// Notes what GEMMs may prefetch; computes nothing.
class PrefetchNotes final : public kernels::Gemm {
 public:
  std::vector<std::pair<void*, kernels::KvPrefetch>> notes;  // by the weight

 private:
  kernels::GemmPlan make_plan(const kernels::GemmShape&) override {
    kernels::GemmPlan plan;
    plan.kernel = kernels::GemmKernel::cpu;
    return plan;
  }
  void enqueue(const kernels::GemmCall& call, Stream&) override {
    const kernels::KvPrefetch& prefetch = call.operands.kv_prefetch;
    if (prefetch.kv.keys.data != nullptr) notes.emplace_back(call.weight.values.data, prefetch);
  }
  kernels::GroupedFusion fused_in(const kernels::GroupedGemm&) override { return {}; }
  void enqueue_grouped(const kernels::GroupedGemm&, Stream&) override {}
  void measure(std::span<const kernels::GemmCall>, Stream&) override {}
};

TEST_CASE(
    "the GEMMs ahead of attention may prefetch what it reads, each its share, where many decode") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const Decoder decoder(golden_model("qwen3-uneven").config, {0, 1}, DType::f32);
  const Buffer weights = bind_parameters(decoder.parameters(), DType::f32, *backend);
  backend->fill(weights.data(), 0, weights.bytes(), *stream);
  std::map<std::string, void*> named;
  for (const layers::Parameter* parameter : decoder.parameters())
    named[parameter->name] = parameter->view.data;

  const ModelConfig& config = decoder.config();
  for (const std::int64_t sequences : {16, 17, 40}) {
    for (const std::int64_t rows_each : {1, 2}) {
      CAPTURE(sequences);
      CAPTURE(rows_each);
      layers::TestCache cache(*backend, {.layers = config.layers,
                                         .sequences = sequences,
                                         .tokens = 32,
                                         .kv_heads = config.kv_heads,
                                         .head_dim = config.head_dim});
      layers::TestBatch batch(*backend, cache, sequences * rows_each);
      std::vector<layers::TestBatch::Part> parts;
      for (std::int64_t s = 0; s < sequences; ++s)
        parts.push_back({s, 20, std::vector<std::int32_t>(static_cast<std::size_t>(rows_each), 1)});
      batch.load(parts, layers::TestBatch::Logits::last, *stream);
      const std::int64_t rows = sequences * rows_each;
      DecoderMemory memory(decoder, {.rows = rows, .logit_rows = rows, .positions = 32}, *backend);
      PrefetchNotes gemm;
      decoder.forward(batch.batch(), cache.cache(), memory, {*stream, gemm});
      stream->synchronize();
      if (sequences < 17 || rows_each > 1) {
        CHECK(gemm.notes.empty());
        continue;
      }
      // Layer by layer q, k and v, of this one, then gate and up, of the next one.
      REQUIRE(std::ssize(gemm.notes) == 2 * config.layers - 1);
      for (std::int64_t i = 0; i < std::ssize(gemm.notes); ++i) {
        CAPTURE(i);
        const auto& [weight, prefetch] = gemm.notes[static_cast<std::size_t>(i)];
        const std::string layer = str("layers.", i / 2);
        CHECK(weight ==
              named.at(layer + (i % 2 == 0 ? ".attention.qkv.weight" : ".mlp.gate_up.weight")));
        const kernels::KvView& view = cache.views()[static_cast<std::size_t>((i + 1) / 2)];
        CHECK(prefetch.kv.keys.data == view.keys.data);
        CHECK(prefetch.kv.values.data == view.values.data);
        CHECK(prefetch.kv.block_table.data == batch.batch().block_table.data);
        CHECK(prefetch.kv_length.data == batch.batch().kv_length.data);
        CHECK(prefetch.share == 1 - i % 2);
      }
    }
  }
}

TEST_CASE("nothing is prefetched for a layer whose window may begin behind it") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  constexpr std::int64_t kSequences = 17, kTokens = 32;
  ModelConfig config = golden_model("qwen3-uneven").config;
  constexpr std::int64_t kWindows[] = {kTokens - 1, 0, kTokens};
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    config.windows.push_back(kWindows[layer % 3]);
  const Decoder decoder(config, {0, 1}, DType::f32);
  const Buffer weights = bind_parameters(decoder.parameters(), DType::f32, *backend);
  backend->fill(weights.data(), 0, weights.bytes(), *stream);
  layers::TestCache cache(*backend, {.layers = config.layers,
                                     .sequences = kSequences,
                                     .tokens = kTokens,
                                     .kv_heads = config.kv_heads,
                                     .head_dim = config.head_dim});
  layers::TestBatch batch(*backend, cache, kSequences);
  std::vector<layers::TestBatch::Part> parts;
  for (std::int64_t s = 0; s < kSequences; ++s) parts.push_back({s, 20, {1}});
  batch.load(parts, layers::TestBatch::Logits::last, *stream);
  DecoderMemory memory(
      decoder, {.rows = kSequences, .logit_rows = kSequences, .positions = kTokens}, *backend);
  PrefetchNotes gemm;
  decoder.forward(batch.batch(), cache.cache(), memory, {*stream, gemm});
  stream->synchronize();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    CAPTURE(layer);
    const void* keys = cache.views()[static_cast<std::size_t>(layer)].keys.data;
    const auto count = std::ranges::count_if(
        gemm.notes, [&](const auto& note) { return note.second.kv.keys.data == keys; });
    CHECK(count == (layer % 3 == 0 ? 0 : 2));
  }
}

}  // namespace
}  // namespace nvllm::model
