#include "launcher/inspect/inspect_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "launcher/session/load_display.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

// A made-up model with two layers on two ranks, the second of which has no heads.
InspectReport made_up() {
  InspectReport report;
  report.started_ns = 1'000'000'000;
  runtime::ModelDescription& model = report.model;
  model.path = "models/tiny";
  model.config.architecture = "Qwen3ForCausalLM";
  model.config.hidden_size = 8;
  model.config.intermediate_size = 12;
  model.config.layers = 2;
  model.config.heads = 1;
  model.config.kv_heads = 1;
  model.config.head_dim = 16;
  model.config.vocab_size = 10;
  model.config.max_position_embeddings = 32;
  model.config.qk_norm = true;
  model.config.rope.type = layers::RopeConfig::Type::yarn;
  model.config.rope.factor = 4;
  model.config.rope.original_max_position_embeddings = 16;
  model.config.dtype = DType::f32;
  model.elements = 1'234'567;
  model.checkpoint.summary = "models/tiny/model.safetensors";
  model.checkpoint.files = {{"models/tiny/model.safetensors", 4000}};
  model.checkpoint.encodings = {{"BF16", {1, 16}}, {"F32", {2, 3000}}};
  model.checkpoint.all = {3, 3016};

  for (int rank = 0; rank < 2; ++rank) {
    runtime::RankDescription one;
    one.heads = one.kv_heads = {0, rank == 0 ? 1 : 0};
    one.intermediate = {6 * rank, 6 * rank + 6};
    one.vocabulary = {5 * rank, 5 * rank + 5};
    one.elements = 100;
    one.bytes = 200;
    one.allocated = 512;
    one.parameters.push_back(
        {.name = "embedding.weight",
         .shape = {5, 8},
         .format = "bfloat16",
         .bytes = 80,
         .slices = {{"model.embed_tokens.weight", {10, 8}, one.vocabulary, {0, 8}, 0}}});
    for (int layer = 0; layer < 2; ++layer) {
      const std::string tensors = str("model.layers.", layer, '.');
      one.parameters.push_back({.name = str("layers.", layer, ".attention.qkv.weight"),
                                .shape = {rank == 0 ? 16 : 0, 8},
                                .format = "bfloat16",
                                .bytes = rank == 0 ? 256u : 0u,
                                .slices = {}});
      if (rank == 0) {
        one.parameters.back().slices = {
            {tensors + "self_attn.q_proj.weight", {16, 8}, {0, 16}, {0, 8}, 0}};
      }
      one.parameters.push_back(
          {.name = str("layers.", layer, ".mlp.down.weight"),
           .shape = {8, 6},
           .format = "bfloat16",
           .bytes = 96,
           .slices = {{tensors + "mlp.down_proj.weight", {8, 12}, {0, 8}, one.intermediate, 0}}});
    }
    model.ranks.push_back(std::move(one));
  }
  return report;
}

InspectReport loaded() {
  InspectReport report = made_up();
  for (int rank = 0; rank < 2; ++rank) {
    runtime::RankLoad load;
    load.report.pid = 100 + rank;
    load.report.device = "CPU, 2 cores";
    load.report.memory = {{"device", "weights", 512, 1}};
    load.times = {.started_ns = 1'500'000'000,
                  .loaded_ns = 2'000'000'000 + rank * std::int64_t{500'000'000},
                  .bytes_read = 1'000'000'000,
                  .bytes_loaded = 2'000'000'000};
    load.checksums = {{"embedding.weight", 0xabcu + static_cast<unsigned>(rank)}};
    report.loads.push_back(load);
  }
  return report;
}

bool has_line(const std::string& text, const std::string& line) {
  return ('\n' + text).find('\n' + line + '\n') != std::string::npos;
}

}  // namespace

TEST_CASE("columns are as wide as their widest cell, numbers on the right") {
  TextTable table;
  table.add_row({"name", "bytes", "note"});
  table.add_row({"a", "5", "x"});
  table.add_row({"longer", "12345678", ""});
  CHECK(table.text() ==
        "  name       bytes  note\n"
        "  a              5  x\n"
        "  longer  12345678\n");
}

TEST_CASE("the table tells what the model is") {
  const std::string text = format_table(made_up());
  INFO(text);
  CHECK(text.starts_with("nvllm 0.2.0 inspect: Qwen3ForCausalLM, 1 million parameters, 2 ranks\n"));
  CHECK(has_line(text, "  attention    1 head of 16, 1 KV head, q and k normed"));
  CHECK(has_line(text, "  biases       none"));
  CHECK(has_line(text, "  positions    64"));
  CHECK(has_line(text, "  RoPE         yarn, theta 10000, factor 4, made for 16 positions"));
  CHECK(has_line(text, "  type         bfloat16, in the configuration float32"));
  CHECK(has_line(text, "  weights      models/tiny/model.safetensors: 3 tensors, 2.95 KiB"));
  CHECK(has_line(text, "               BF16: 1 tensor, 16 B"));
  CHECK(text.find("loaded") == std::string::npos);
}

TEST_CASE("the table tells what a gpt-oss is") {
  InspectReport report = made_up();
  model::ModelConfig& config = report.model.config;
  config.attention_sinks = config.qkv_bias = true;
  model::MoeConfig& mixture = config.moe;
  mixture.experts = 8, mixture.experts_per_token = 4, mixture.intermediate_size = 64;
  mixture.renormalize = mixture.bias = true;
  mixture.layers.assign(static_cast<std::size_t>(config.layers), true);
  mixture.activation = kernels::Activation::clamped_swiglu;
  const std::string text = format_table(report);
  INFO(text);
  CHECK(has_line(text, "  experts      8 of 64, clamped_swiglu, 4 per token, renormalized"));
  CHECK(has_line(text, "  attention    1 head of 16, 1 KV head, q and k normed, sinks"));
  CHECK(has_line(text, "  biases       q, k, v, router, experts"));
}

TEST_CASE("the KV cache: bytes per token, and how many fit where") {
  InspectReport report = made_up();  // 2 layers, 1 KV head of 16, bfloat16: 128 bytes per token
  CHECK(kv_bytes_per_token(report.model) == 128);
  CHECK(has_line(format_table(report), "  KV cache     128 B per token"));
  report.kv_memory = {.where = "2 GiB of this machine's memory that is free", .bytes = 2u << 30};
  CHECK(tokens_that_fit(report.model, report.kv_memory) == ((2u << 30) - 1024) / 128);
  CHECK(has_line(
      format_table(report),
      "  KV cache     128 B per token; 17 M tokens fit beside the weights in 2 GiB of this "
      "machine's memory that is free"));
  // Each rank has its own memory: the second one has no KV head, so the first one limits the number
  // of tokens.
  report.kv_memory = {.where = "each GPU", .bytes = 512 + 1280, .shared = false};
  CHECK(tokens_that_fit(report.model, report.kv_memory) == 10);
  CHECK(parse_json(format_json(report)).at("kv_cache") ==
        nlohmann::json({{"bytes_per_token", 128}, {"tokens_that_fit", 10}}));
  report.kv_memory.bytes = 500;
  CHECK(has_line(format_table(report),
                 "  KV cache     128 B per token; the weights alone do not fit in each GPU"));
}

TEST_CASE("the KV cache: layers with a window keep no more than that of a sequence") {
  InspectReport report = made_up();
  report.model.config.windows = {0, 4};
  CHECK(kv_bytes_per_token(report.model) == 128);
  CHECK(kv_window_bytes_per_token(report.model) == 64);
  report.kv_memory = {.where = "there", .bytes = 1024 + 4 * 128 + 10 * 64};
  CHECK(tokens_that_fit(report.model, report.kv_memory) == 4 + 10);
  CHECK(has_line(format_table(report),
                 "  KV cache     128 B per token, 64 B of them for the last 4 tokens of a sequence "
                 "alone; 14 tokens fit beside the weights in there"));
  CHECK(parse_json(format_json(report)).at("kv_cache") ==
        nlohmann::json({{"bytes_per_token", 128},
                        {"window", {{"tokens", 4}, {"bytes_per_token", 64}}},
                        {"tokens_that_fit", 14}}));
  report.kv_memory.bytes = 1024 + 3 * 128;
  CHECK(tokens_that_fit(report.model, report.kv_memory) == 3);
  report.model.config.windows = {4, 4};  // one group of layers
  CHECK(kv_window_bytes_per_token(report.model) == 0);
}

TEST_CASE("the table tells what each rank owns, and one line stands for all layers") {
  const std::string text = format_table(made_up());
  INFO(text);
  CHECK(has_line(text, "  rank  heads  KV heads  MLP   vocabulary  parameters  bytes  allocated"));
  CHECK(has_line(text, "     0  0:1    0:1       0:6   0:5                100  200 B      512 B"));
  CHECK(has_line(text, "     1  -      -         6:12  5:10               100  200 B      512 B"));
  CHECK(
      has_line(text, "  model.embed_tokens.weight               [10, 8]  rows 0:5     rows 5:10"));
  CHECK(has_line(text, "  model.layers.*.self_attn.q_proj.weight  [16, 8]  all          -"));
  CHECK(text.find("columns 0:6  columns 6:12") != std::string::npos);
  CHECK(text.find("model.layers.0") == std::string::npos);
}

TEST_CASE("a layer that is split otherwise has a line of its own") {
  InspectReport report = made_up();
  report.model.ranks[0].parameters.back().slices[0].columns = {0, 5};
  const std::string text = format_table(report);
  CHECK(text.find("columns 0:6  columns 6:12") != std::string::npos);
  CHECK(text.find("columns 0:5  columns 6:12") != std::string::npos);
}

TEST_CASE("the slices of a tensor are told together, those that meet as one") {
  InspectReport report = made_up();
  for (int layer = 0; layer < 2; ++layer) {
    auto& qkv = report.model.ranks[0].parameters[static_cast<std::size_t>(1 + 2 * layer)].slices;
    layers::Slice slice = qkv.front();
    qkv.clear();
    for (const layers::Range rows : {layers::Range{12, 14}, {0, 4}, {4, 8}}) {
      slice.rows = rows;
      qkv.push_back(slice);
    }
  }
  const std::string text = format_table(report);
  INFO(text);
  CHECK(text.find("self_attn.q_proj.weight  [16, 8]  rows 0:8, rows 12:14  -") !=
        std::string::npos);
}

TEST_CASE("the table tells what linear attention and a shared expert are") {
  InspectReport report = made_up();
  model::ModelConfig& config = report.model.config;
  config.output_gate = true;
  config.linear_attention = {.key_heads = 2,
                             .value_heads = 4,
                             .key_head_dim = 32,
                             .value_head_dim = 16,
                             .conv_width = 4,
                             .layers = {true, false}};
  config.moe.experts = 8, config.moe.experts_per_token = 2;
  config.moe.intermediate_size = 64, config.moe.shared_intermediate_size = 48;
  config.moe.layers = {true, true};
  report.model.ranks[0].state_bytes = 3 << 10;
  report.model.ranks[1].state_bytes = 1 << 10;
  const std::string text = format_table(report);
  INFO(text);
  CHECK(has_line(text, "  attention         1 head of 16, 1 KV head, q and k normed, gated"));
  CHECK(has_line(text, "  linear attention  2 key heads of 32, 4 value heads of 16, in 1 layer"));
  CHECK(has_line(text, "  shared expert     48"));
  CHECK(has_line(text, "  KV cache          64 B per token"));  // of one layer
  CHECK(has_line(text,
                 "  states            4 KiB per sequence, and per snapshot for prefix caching"));
  CHECK(parse_json(format_json(report)).at("state_bytes_per_sequence") == 4096);
}

TEST_CASE("what was loaded is told per rank and together") {
  const InspectReport report = loaded();
  const LoadSummary summary = summary_of(report);
  CHECK(summary.seconds == doctest::Approx(1.0));
  CHECK(summary.since_start == doctest::Approx(1.5));
  CHECK(summary.bytes_read == 2'000'000'000);
  CHECK(summary.bytes_loaded == 4'000'000'000);
  CHECK(summary.bytes_per_second == doctest::Approx(4e9));
  const std::string text = format_table(report);
  INFO(text);
  CHECK(has_line(text, "  0     CPU, 2 cores  100     954 MiB      1.86 GiB    0.500  4.00"));
  CHECK(has_line(text, "  1     CPU, 2 cores  101     954 MiB      1.86 GiB    1.000  2.00"));
  CHECK(has_line(text, "  all ranks had loaded 1.500 s after the start"));
  CHECK(has_line(text, "     1  host    weights    512        1"));
  CHECK(has_line(text, "     1  embedding.weight  0000000000000abd"));
}

TEST_CASE("ranks that have loaded on several boxes are told with their boxes") {
  InspectReport report = loaded();
  report.places = {{0, "box 0 (a)"}, {1, "box 1 (b)"}};
  const std::string text = format_table(report);
  INFO(text);
  CHECK(has_line(text,
                 "  1     box 1 (b)  CPU, 2 cores  101     954 MiB      1.86 GiB    1.000  2.00"));
  CHECK(has_line(text,
                 "  all                                   1.86 GiB      3.73 GiB    1.000  4.00"));
  const nlohmann::json json = parse_json(format_json(report));
  CHECK(json.at("ranks").at(1).at("box") == 1);
  CHECK_FALSE(parse_json(format_json(loaded())).at("ranks").at(1).contains("box"));
}

TEST_CASE("JSON has every slice of every parameter of every rank") {
  const nlohmann::json json = parse_json(format_json(loaded()));
  CHECK(json.at("config").at("architecture") == "Qwen3ForCausalLM");
  CHECK(json.at("config").at("rope").at("type") == "yarn");
  CHECK(json.at("config").at("bos_token_id") == nullptr);
  CHECK(json.at("dtype") == "bfloat16");
  CHECK(json.at("checkpoint").at("encodings").at("F32").at("bytes") == 3000);
  REQUIRE(json.at("ranks").size() == 2);
  const auto& rank = json.at("ranks")[1];
  CHECK(rank.at("heads") == nlohmann::json({0, 0}));
  CHECK(rank.at("intermediate") == nlohmann::json({6, 12}));
  CHECK(rank.at("tensors").size() == 5);
  const auto& down = rank.at("tensors")[4];
  CHECK(down.at("name") == "layers.1.mlp.down.weight");
  CHECK(down.at("slices")[0].at("tensor") == "model.layers.1.mlp.down_proj.weight");
  CHECK(down.at("slices")[0].at("columns") == nlohmann::json({6, 12}));
  CHECK(rank.at("load").at("pid") == 101);
  CHECK(rank.at("load").at("checksums").at("embedding.weight") == "0000000000000abd");
  CHECK(json.at("load").at("since_start_s").get<double>() == doctest::Approx(1.5));
  CHECK_FALSE(parse_json(format_json(made_up())).contains("load"));
}

TEST_CASE("a path that is not UTF-8 does not break the JSON") {
  InspectReport report = made_up();
  report.model.path = "models/\xff";
  CHECK(parse_json(format_json(report)).contains("model"));
}

TEST_CASE("without a terminal there is a line per second") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  LoadProgressText text(false, 0);
  CHECK(text.update(1, 100, kSecond / 2) == "");
  CHECK(text.update(2'000'000'000, 4'000'000'000, kSecond)
            .ends_with(" launcher info loading: 2.00 of 4.00 GB, 2.00 GB/s\n"));
  CHECK(text.update(2'500'000'000, 4'000'000'000, kSecond + kSecond / 2) == "");
  CHECK(text.update(3'000'000'000, 4'000'000'000, 4 * kSecond) != "");
  CHECK(text.finish() == "");
}

TEST_CASE("a terminal gets a bar, which is taken off at the end") {
  constexpr std::int64_t kMillisecond = 1'000'000;
  LoadProgressText text(true, 0);
  CHECK(text.update(1, 100, 100 * kMillisecond) == "");
  CHECK(text.finish() == "");
  CHECK(text.update(1'000'000'000, 2'000'000'000, 500 * kMillisecond) ==
        "\r\033[Kloading [###############...............] 50%, 1.00 of 2.00 GB, 2.00 GB/s");
  CHECK(text.update(0, 0, 600 * kMillisecond).find("] 100%, ") != std::string::npos);
  CHECK(text.finish() == "\r\033[K");
  CHECK(text.finish() == "");
}

}  // namespace nvllm::launcher
