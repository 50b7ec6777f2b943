#include "runtime/model/open_model.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/loading/loader.h"
#include "runtime/model/model_loading.h"
#include "testing/error_of.h"

namespace nvllm::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 72,
    "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 9, "head_dim": 16,
    "num_key_value_heads": 3, "vocab_size": 515, "max_position_embeddings": 64,
    "torch_dtype": "float32"})";

// A temporary folder with this config.json.
class Folder {
 public:
  explicit Folder(const std::string& config = kConfig) {
    std::string name = (fs::temp_directory_path() / "open_model_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno("mkdtemp ", name);
    path = name;
    write("config.json", config);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
  }

  std::string path;
};

std::string refusal(const ModelOptions& options) {
  return testing::error_of([&] { open_model(options); });
}

OpenModel dummy(const Folder& folder, std::optional<DType> dtype = {}) {
  return open_model({.path = folder.path, .format = LoadFormat::dummy, .dtype = dtype});
}

}  // namespace

constexpr const char* kMixtral = R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 64,
    "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512,
    "max_position_embeddings": 64})";

TEST_CASE("a weight of an expert that is NaN is told by the expert's tensor and the place in it") {
  const Folder folder(kMixtral);
  const auto backend = create_backend(DeviceKind::cpu);
  const model::Decoder decoder(dummy(folder).config, {1, 3}, DType::f32);
  const Buffer memory = model::bind_parameters(decoder.parameters(), DType::f32, *backend);
  model::load_dummy(decoder.parameters(), *backend, 0.02f, 1);
  for (const layers::Parameter* parameter : decoder.parameters()) {
    CHECK(weight_fault(*parameter, *backend) == std::nullopt);
    if (parameter->name != "layers.1.moe.experts.gate_up.weight") continue;
    // This rank has 32 rows of each gate, from row 40 on, and as many of each up.
    const std::int64_t row = (2 * 5 + 1) * 32 + 3;
    parameter->view.as<float>()[row * 64 + 9] = std::nanf("");
    CHECK(weight_fault(*parameter, *backend) ==
          "model.layers.1.block_sparse_moe.experts.5.w3.weight holds NaN at [43, 9]");
  }
}

TEST_CASE("a scale of 1 in MXFP4, a byte that would be NaN in FP8, is a number") {
  const auto backend = create_backend(DeviceKind::cpu);
  std::vector<std::uint8_t> values(16, 0xff), scales(1, 127);
  layers::Parameter parameter;
  parameter.name = "w";
  parameter.shape = {1, 32};
  parameter.quantization = {.format = kernels::WeightFormat::mxfp4, .group = 32};
  parameter.view = {values.data(), DType::u8, {1, 16}};
  parameter.scales = {scales.data(), DType::u8, {1, 1}};
  CHECK(weight_fault(parameter, *backend) == std::nullopt);
  scales[0] = 255;
  CHECK(weight_fault(parameter, *backend) == "w has a scale that is NaN");
}

TEST_CASE("experts in MXFP4 stay so in memory") {
  const OpenModel model = open_model({.path = "tests/data/golden-models/gptoss-mxfp4"});
  const ModelDescription description = describe_model(model, 2);
  int packed = 0;
  for (const ParameterDescription& parameter : description.ranks[1].parameters) {
    packed += parameter.format == "mxfp4 in groups of 32" ? 1 : 0;
  }
  CHECK(packed == 8);  // of each layer gate and up, and down
}

TEST_CASE("of a mixture of experts, what a token needs is counted") {
  const Folder dense;
  const Folder folder(kMixtral);
  const OpenModel model = dummy(folder);
  const ModelDescription description = describe_model(model, 3);
  const std::uint64_t expert = 3 * 64 * 104;
  CHECK(description.elements - description.active_elements == 2 * 6 * expert);
  CHECK(description.ranks[0].intermediate == layers::Range{});
  CHECK(description.ranks[1].expert_intermediate == layers::Range{40, 72});
  const ModelDescription of_dense = describe_model(dummy(dense), 1);
  CHECK(of_dense.active_elements == of_dense.elements);
}

TEST_CASE("a model's window is that of its layers") {
  const Folder folder(R"({"architectures": ["MistralForCausalLM"], "hidden_size": 64,
      "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 4,
      "sliding_window": 16, "vocab_size": 512, "max_position_embeddings": 64})");
  CHECK(dummy(folder).config.windows == std::vector<std::int64_t>{16, 16});
}

TEST_CASE("a dummy needs a config.json alone") {
  const Folder folder;
  const OpenModel model = dummy(folder);
  CHECK(model.dummy);
  CHECK_FALSE(model.checkpoint.has_value());
  CHECK(model.config.heads == 9);
}

TEST_CASE("a config.json alone can be looked at") {
  const Folder folder;
  const OpenModel model = open_model({.path = folder.path + "/config.json"});
  CHECK_FALSE(model.dummy);
  CHECK_FALSE(model.checkpoint.has_value());
}

TEST_CASE("the sampling defaults of the checkpoint is read beside its config.json") {
  const Folder folder;
  CHECK_FALSE(dummy(folder).generation.temperature);
  folder.write("generation_config.json", R"({"temperature": 0.5, "eos_token_id": 3})");
  CHECK(dummy(folder).generation.temperature == 0.5);
  CHECK(dummy(folder).generation.eos_token_ids == std::vector<std::int32_t>{3});
  CHECK(open_model({.path = folder.path + "/config.json"}).generation.temperature == 0.5);
  folder.write("generation_config.json", R"({"top_p": 2})");
  CHECK(refusal({.path = folder.path, .format = LoadFormat::dummy})
            .starts_with(folder.path + "/generation_config.json: top_p 2: must be a number"));
}

TEST_CASE("weights get the type that was asked for, else the model's own, but not float32") {
  const Folder folder;
  CHECK(dummy(folder).dtype == DType::bf16);
  CHECK(dummy(folder, DType::f32).dtype == DType::f32);
  const Folder half(
      std::string(kConfig).replace(std::string(kConfig).find("float32"), 7, "float16"));
  CHECK(dummy(half).dtype == DType::f16);
}

TEST_CASE("what is not there or not a model is refused in one line") {
  const Folder folder;
  CHECK(
      refusal({.path = "/nowhere"}) ==
      "--model /nowhere: no such folder or file; pass a model's folder, its config.json or a .gguf "
      "file");
  CHECK(
      refusal({.path = "/dev/null"}) ==
      "--model /dev/null: neither a folder nor a file; pass a model's folder, its config.json or a "
      ".gguf file");
  CHECK(refusal({.path = folder.path}).starts_with(folder.path + ": expected "));
  const Folder looped;
  const std::string config = looped.path + "/config.json";
  fs::remove(config);
  fs::create_symlink("config.json", config);
  const std::string why = ": Too many levels of symbolic links (ELOOP)";
  CHECK(refusal({.path = looped.path, .format = LoadFormat::dummy}) == config + why);
  CHECK(refusal({.path = config}) == "--model " + config + why);
  folder.write("config.json", "{");
  CHECK(refusal({.path = folder.path, .format = LoadFormat::dummy}) ==
        folder.path + "/config.json: no valid JSON at line 1, column 2");
  folder.write("x.gguf", "no");
  CHECK(refusal({.path = folder.path + "/x.gguf"}).starts_with(folder.path));
}

TEST_CASE("a model that cannot be divided into so many pipeline stages is refused in one line") {
  OpenModel model;
  model.config.layers = 3;
  model.config.architecture = "Gemma4ForCausalLM";
  CHECK_NOTHROW(check_pipeline(model, 3));
  CHECK_THROWS_WITH_AS(
      check_pipeline(model, 4),
      "--pp 4: the model has 3 layers, and each stage needs one; pass --pp 3 or less", Error);
  const std::string why =
      "--pp 2: not with layers that read the keys and values of others, or an input of their own, "
      "as this Gemma4ForCausalLM has; pass --pp 1";
  model.config.kv_shared_layers = 1;
  CHECK_NOTHROW(check_pipeline(model, 1));
  CHECK_THROWS_WITH_AS(check_pipeline(model, 2), why.c_str(), Error);
  model.config.kv_shared_layers = 0;
  model.config.per_layer_width = 16;
  CHECK_THROWS_WITH_AS(check_pipeline(model, 2), why.c_str(), Error);
}

TEST_CASE("the parts of all ranks are the whole, at any number of ranks") {
  const Folder folder;
  const OpenModel model = dummy(folder);
  const std::uint64_t whole = describe_model(model, 1).ranks[0].bytes;
  CHECK(whole == describe_model(model, 1).elements * 2);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    const ModelDescription description = describe_model(model, ranks);
    REQUIRE(description.ranks.size() == static_cast<std::size_t>(ranks));
    std::int64_t heads = 0, intermediate = 0, vocabulary = 0;
    for (const RankDescription& rank : description.ranks) {
      std::uint64_t bytes = 0;
      for (const ParameterDescription& parameter : rank.parameters) bytes += parameter.bytes;
      CHECK(rank.bytes == bytes);
      CHECK(rank.bytes == 2 * rank.elements);
      CHECK(rank.allocated >= rank.bytes);
      CHECK(rank.heads.begin == heads);
      CHECK((rank.heads.size() == 0 || rank.intermediate.begin == intermediate));
      CHECK(rank.vocabulary.begin == vocabulary);
      // Whole groups of three heads, or all within the only KV head.
      CHECK(rank.kv_heads.begin == rank.heads.begin / 3);
      CHECK(rank.kv_heads.end == (rank.heads.end + 2) / 3);
      heads = rank.heads.end;
      intermediate = rank.intermediate.end;
      vocabulary = rank.vocabulary.end;
    }
    CHECK(heads == 9);
    CHECK(intermediate == 104);
    CHECK(vocabulary == 515);
  }
}

}  // namespace nvllm::runtime
