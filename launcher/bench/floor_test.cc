#include "launcher/bench/floor.h"

#include <doctest/doctest.h>

#include <vector>

#include "launcher/bench/workload.h"

namespace nvllm::launcher {
namespace {

const DeviceSpeed kH200{.bytes_per_second = 4.41e12,
                        .flops_per_second = 650e12,
                        .attention_flops_per_second = 565e12,
                        .source = ""};

model::ModelConfig qwen3(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                         std::int64_t heads) {
  model::ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 151'936;
  return config;
}

struct Model {
  ModelCost cost;
  double decode_ms[4];  // of 1, 8, 64, 256 sequences with 1,024 tokens, computed by hand
  double prompt_ms[3];  // of one prompt of 1,024, 8,192, 32,768 tokens
  double workload_s;    // nano-vllm's
};

std::vector<Model> models() {
  return {
      {cost_of(qwen3(1024, 3072, 28, 16), DType::bf16, DType::bf16, 1),
       {0.297, 0.483, 1.98, 7.29},
       {1.7, 25, 262},
       3.68},
      {cost_of(qwen3(2560, 9728, 36, 32), DType::bf16, DType::bf16, 1),
       {1.86, 2.10, 4.02, 11.9},
       {12, 127, 927},
       7.9},
      {cost_of(qwen3(4096, 12288, 36, 32), DType::bf16, DType::bf16, 1),
       {3.47, 3.71, 5.62, 14.7},
       {23, 210, 1261},
       11.3},
  };
}

}  // namespace

TEST_CASE("a decode step reads the weights and the cache once") {
  for (const Model& model : models()) {
    const double batches[] = {1, 8, 64, 256};
    for (int i = 0; i < 4; ++i) {
      CHECK(decode_floor(model.cost, kH200, batches[i], 1024) * 1e3 ==
            doctest::Approx(model.decode_ms[i]).epsilon(0.01));
    }
  }
}

TEST_CASE("a prompt is bound by its GEMMs and its attention") {
  for (const Model& model : models()) {
    const double tokens[] = {1024, 8192, 32768};
    for (int i = 0; i < 3; ++i) {
      CHECK(prefill_floor(model.cost, kH200, 1, tokens[i]) * 1e3 ==
            doctest::Approx(model.prompt_ms[i]).epsilon(0.06));
    }
  }
}

TEST_CASE("nano-vllm's workload on an H200") {
  std::vector<SequenceLength> lengths;
  for (const runtime::Request& request : make_workload({.vocabulary = 151'936}).requests) {
    lengths.push_back(
        {static_cast<std::int64_t>(request.prompt.size()), *request.sampling.max_tokens});
  }
  for (const Model& model : models()) {
    CHECK(workload_floor(model.cost, kH200, lengths, 256) ==
          doctest::Approx(model.workload_s).epsilon(0.03));
    CHECK(workload_floor(model.cost, kH200, lengths, 64) > model.workload_s);
  }
}

TEST_CASE("one sequence is a prompt and its decode steps") {
  const ModelCost cost = models()[0].cost;
  double expected = prefill_floor(cost, kH200, 1, 100);
  for (int context = 101; context <= 104; ++context) {
    expected += decode_floor(cost, kH200, 1, context);
  }
  const std::vector<SequenceLength> one = {{100, 5}};
  CHECK(workload_floor(cost, kH200, one, 8) == doctest::Approx(expected));
}

TEST_CASE("with as many sequences as may run, the next begins when one ends") {
  const ModelCost cost = models()[0].cost;
  const std::vector<SequenceLength> one = {{100, 5}}, two = {{100, 5}, {100, 5}};
  const double alone = workload_floor(cost, kH200, one, 1);
  CHECK(workload_floor(cost, kH200, two, 1) == doctest::Approx(2 * alone));
  CHECK(workload_floor(cost, kH200, two, 2) < 1.5 * alone);
}

TEST_CASE("weights count as they are kept, on the rank that has most of them") {
  const model::ModelConfig config = qwen3(1024, 3072, 28, 16);
  const ModelCost before = cost_of(config, DType::bf16, DType::bf16, 1);
  runtime::ModelDescription model;
  model.config = config;
  const auto parameter = [](const char* name, std::uint64_t bytes) {
    runtime::ParameterDescription description;
    description.name = name;
    description.bytes = bytes;
    return description;
  };
  model.ranks.resize(2);
  model.ranks[0].parameters = {parameter("embedding.weight", 1000),
                               parameter("norm.weight", 7),
                               parameter("layers.0.mlp.down.weight", 30),
                               parameter("layers.1.mlp.down.weight", 40),
                               parameter("layers.1.moe.experts.down.weight", 900),
                               parameter("head.weight", 500)};
  model.ranks[1].parameters = {parameter("layers.0.mlp.down.weight", 60),
                               parameter("head.weight", 600)};
  for (const bool tied : {false, true}) {
    model.config.tied_embeddings = tied;
    ModelCost cost = before;
    count_weights(cost, model);
    CHECK(cost.layer_bytes == 70);
    CHECK(cost.expert_bytes == 900);
    CHECK(cost.head_bytes == (tied ? 1000 : 600));
    CHECK(cost.layer_flops == before.layer_flops);
    CHECK(cost.kv_bytes == before.kv_bytes);
  }
}

// Qwen3-30B-A3B.
model::ModelConfig qwen3_30b_a3b() {
  model::ModelConfig config = qwen3(2048, 6144, 48, 32);
  config.kv_heads = 4;
  config.moe = {.experts = 128,
                .experts_per_token = 8,
                .intermediate_size = 768,
                .renormalize = true,
                .activation = std::nullopt,
                .layers = std::vector<bool>(48, true)};
  return config;
}

TEST_CASE("of a mixture a step reads the experts that its rows have chosen by chance") {
  const ModelCost cost = cost_of(qwen3_30b_a3b(), DType::bf16, DType::bf16, 1);
  const double expert = 3.0 * 2048 * 768 * 2, layers = 48, others = cost.layer_bytes;
  CHECK(cost.expert_bytes == layers * 128 * expert);
  CHECK(others == 2.0 * 48 * 2048 * (2 * 4096 + 2 * 512 + 128));
  const auto read_by = [&](double rows) {
    return step_floor(cost, kH200, {.rows = rows}) * kH200.bytes_per_second - others -
           cost.head_bytes;
  };
  CHECK(read_by(1) == doctest::Approx(layers * 8 * expert));
  CHECK(read_by(2) == doctest::Approx(layers * 15.5 * expert));  // half an expert of both
  CHECK(read_by(200) > layers * 127.9 * expert);
  // A row's GEMMs use 8 experts.
  CHECK(cost.layer_flops == doctest::Approx(others + layers * 8 * expert));

  const ModelCost two = cost_of(qwen3_30b_a3b(), DType::bf16, DType::bf16, 2);
  CHECK(two.expert_bytes == cost.expert_bytes / 2);
  CHECK(two.expert_share == cost.expert_share);
}

TEST_CASE("layers without experts among others read their MLP") {
  model::ModelConfig config = qwen3_30b_a3b();
  const ModelCost all = cost_of(config, DType::bf16, DType::bf16, 1);
  config.moe.layers[5] = false;
  const ModelCost one_less = cost_of(config, DType::bf16, DType::bf16, 1);
  CHECK(one_less.expert_bytes == all.expert_bytes / 48 * 47);
  CHECK(one_less.layer_bytes - all.layer_bytes == 2.0 * 2048 * (3 * 6144 - 128));
}

TEST_CASE("layers with a window attend to no more than that") {
  model::ModelConfig config = qwen3(1024, 3072, 4, 16);
  const ModelCost all = cost_of(config, DType::bf16, DType::bf16, 1);
  CHECK(all.attended(5000) == 5000);
  CHECK(all.attended_by_prompt(5) == 15);
  config.windows = {0, 100, 100, 100};
  const ModelCost cost = cost_of(config, DType::bf16, DType::bf16, 1);
  CHECK(cost.attended(80) == doctest::Approx(80));
  CHECK(cost.attended(1000) == doctest::Approx(0.25 * 1000 + 0.75 * 100));
  config.windows = {2, 2, 2, 2};
  CHECK(cost_of(config, DType::bf16, DType::bf16, 1).attended_by_prompt(5) ==
        doctest::Approx(1 + 2 + 2 + 2 + 2));
  // So a step with a long context is shorter by the bytes that are not read.
  const double saved = decode_floor(all, kH200, 8, 4000) - decode_floor(cost, kH200, 8, 4000);
  CHECK(saved == doctest::Approx(8 * 0.75 * 3900 * all.kv_bytes / kH200.bytes_per_second));
}

TEST_CASE("on several ranks the one with most to do counts") {
  const model::ModelConfig config = qwen3(4096, 12288, 36, 32);
  const ModelCost one = cost_of(config, DType::bf16, DType::bf16, 1),
                  two = cost_of(config, DType::bf16, DType::bf16, 2);
  CHECK(two.layer_bytes == doctest::Approx(one.layer_bytes / 2));
  CHECK(two.kv_bytes == doctest::Approx(one.kv_bytes / 2));
  CHECK(cost_of(config, DType::f32, DType::f32, 1).layer_bytes == 2 * one.layer_bytes);
  CHECK(cost_of(config, DType::bf16, DType::u8, 1).kv_bytes == one.kv_bytes / 2);

  model::ModelConfig uneven = config;  // two ranks: 6 and 3 query heads, 2 and 1 KV heads
  uneven.heads = 9;
  uneven.kv_heads = 3;
  CHECK(cost_of(uneven, DType::bf16, DType::bf16, 2).kv_bytes ==
        doctest::Approx(cost_of(uneven, DType::bf16, DType::bf16, 1).kv_bytes * 2 / 3));
}

TEST_CASE("stages of a pipeline read all weights one after the other, and share the rest") {
  const ModelCost one = cost_of(qwen3(4096, 12288, 36, 32), DType::bf16, DType::bf16, 1);
  const ModelCost four = cost_in_stages(one, 4);
  CHECK(cost_in_stages(one, 1).kv_bytes == one.kv_bytes);
  // Weights bound decode with few sequences, keys and values with many, and compute bounds prefill.
  const double weights =
      (one.layer_bytes + one.head_bytes + one.expert_bytes) / kH200.bytes_per_second;
  const auto beside_weights = [&](const ModelCost& cost) {
    return decode_floor(cost, kH200, 64, 1024) - weights;
  };
  CHECK(beside_weights(four) == doctest::Approx(beside_weights(one) / 4));
  CHECK(prefill_floor(four, kH200, 1, 8192) ==
        doctest::Approx(prefill_floor(one, kH200, 1, 8192) / 4));
  CHECK(decode_floor(four, kH200, 1, 1) == doctest::Approx(weights).epsilon(1e-3));
}

}  // namespace nvllm::launcher
