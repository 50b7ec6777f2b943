// Quantized weights of safetensors: how they are found, and what is refused.
#include "model/checkpoint/quantized_weight.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/testing/safetensors_builder.h"

namespace nvllm::model {
namespace {

std::string config(const std::string& quantization) {
  return R"({"quantization_config":)" + quantization + "}";
}

// A matrix of 16 outputs and 32 inputs as each method stores it.
SafetensorsBuilder fp8() {
  SafetensorsBuilder files;
  files.set_config(config(R"({"quant_method":"fp8","weight_block_size":[8,16]})"));
  files.set("m.weight", "F8_E4M3", {16, 32}, std::vector<std::uint8_t>(512, 0x38));
  files.set("m.weight_scale_inv", "F32", {2, 2}, std::vector<float>(4, 1));
  return files;
}

SafetensorsBuilder packed() {
  SafetensorsBuilder files;
  files.set_config(config(R"({"quant_method":"compressed-tensors","format":"pack-quantized",
      "config_groups":{"group_0":{"weights":{"num_bits":4,"type":"int"}}}})"));
  files.set("m.weight_packed", "I32", {16, 4}, std::vector<std::int32_t>(64, 0));
  files.set("m.weight_scale", "F32", {16, 2}, std::vector<float>(32, 1));
  files.set("m.weight_shape", "I64", {2}, std::vector<std::int64_t>{16, 32});
  return files;
}

SafetensorsBuilder gptq() {
  SafetensorsBuilder files;
  files.set_config(config(R"({"quant_method":"gptq","bits":4})"));
  files.set("m.qweight", "I32", {4, 16}, std::vector<std::int32_t>(64, 0));
  files.set("m.qzeros", "I32", {2, 2}, std::vector<std::int32_t>(4, 0));
  files.set("m.scales", "F32", {2, 16}, std::vector<float>(32, 1));
  std::vector<std::int32_t> groups(32, 0);
  for (std::size_t i = 16; i < 32; ++i) groups[i] = 1;
  files.set("m.g_idx", "I32", {32}, groups);
  return files;
}

SafetensorsBuilder awq() {
  SafetensorsBuilder files;
  files.set_config(config(R"({"quant_method":"awq","bits":4,"version":"GEMM"})"));
  files.set("m.qweight", "I32", {32, 2}, std::vector<std::int32_t>(64, 0));
  files.set("m.qzeros", "I32", {2, 2}, std::vector<std::int32_t>(4, 0));
  files.set("m.scales", "F32", {2, 16}, std::vector<float>(32, 1));
  return files;
}

// A weight whose shape has 32 bits.
SafetensorsBuilder packed_small_shape() {
  SafetensorsBuilder files = packed();
  files.set("m.weight_shape", "I32", {2}, std::vector<std::int32_t>{16, 32});
  return files;
}

// Two experts of 3 outputs each of gate and up, 64 inputs.
SafetensorsBuilder mxfp4() {
  SafetensorsBuilder files;
  files.set_config(config(R"({"quant_method":"mxfp4"})"));
  files.set("m.experts.gate_up_proj_blocks", "U8", {2, 6, 2, 16}, std::vector<std::uint8_t>(384));
  files.set("m.experts.gate_up_proj_scales", "U8", {2, 6, 2}, std::vector<std::uint8_t>(24));
  files.set("m.experts.gate_up_proj_bias", "F32", {2, 6}, std::vector<float>(12));
  return files;
}

using Make = SafetensorsBuilder (*)();

// The error of opening the files after a change.
std::string error_after(Make make, const std::function<void(SafetensorsBuilder&)>& change) {
  SafetensorsBuilder files = make();
  change(files);
  const TestFolder folder;
  files.write(folder);
  return error_of(folder);
}

std::string error_with(Make make, const std::string& quantization) {
  return error_after(make,
                     [&](SafetensorsBuilder& files) { files.set_config(config(quantization)); });
}

TEST_CASE("a quantized weight has its usual name, and its parts are no tensors of their own") {
  for (const Make make : {fp8, packed, packed_small_shape, gptq, awq}) {
    const TestFolder folder;
    make().write(folder);
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    CHECK(checkpoint.tensors().size() == 1);
    const StoredTensor& weight = checkpoint.get("m.weight", {16, 32});
    REQUIRE(weight.quantized != nullptr);
    CHECK(weight.quantized->groups == 2);
    CHECK(weight.quantized->scale_inputs == 16);
    CHECK_FALSE(weight.quantized->group_of.has_value());  // they are in the usual order
  }
}

TEST_CASE("experts in one tensor have numbers of 16 or 32 bits") {
  for (const std::string type : {"F32", "F16", "BF16", "U8"}) {
    CAPTURE(type);
    const std::size_t bytes = type == "F32" ? 4 : type == "U8" ? 1 : 2;
    SafetensorsBuilder files;
    files.set("m.experts.gate_up_proj", type, {2, 32, 6},
              std::vector<std::uint8_t>(2 * 32 * 6 * bytes));
    files.set("m.experts.gate_up_proj_bias", "F32", {2, 6}, std::vector<float>(12));
    const TestFolder folder;
    files.write(folder);
    if (type == "U8") {
      CHECK(error_of(folder).find("expected F32, F16 or BF16 [2, inputs, 6]") != std::string::npos);
    } else {
      CHECK_NOTHROW(open_checkpoint(folder.path()).get("m.experts.1.up_proj.weight", {3, 32}));
    }
  }
}

TEST_CASE("scales of activations, of queries and of KV caches are no weights") {
  const TestFolder folder;
  SafetensorsBuilder files = fp8();
  files.set("m.input_scale", "F32", {1}, std::vector<float>{1});
  files.set("a.k_scale", "F32", {}, std::vector<float>{1});
  files.set("a.q_scale", "F32", {}, std::vector<float>{1});
  files.write(folder);
  CHECK(open_checkpoint(folder.path()).tensors().size() == 1);
  CHECK(open_checkpoint(folder.path()).kv_scales().size() == 1);
}

TEST_CASE("what quantization_config asks for and is not supported is named") {
  const std::string is = "DIR/config.json: quantization_config";
  CHECK(error_with(fp8, R"({"quant_method":"bitsandbytes"})")
            .starts_with(is + ".quant_method \"bitsandbytes\" is not supported: known are fp8"));
  CHECK(error_with(fp8, "{}").starts_with(is + ".quant_method is not supported"));
  CHECK(error_with(fp8, "[]") == is + " is not supported: it must be an object");
  CHECK(error_with(fp8, R"({"quant_method":"fp8","fmt":"e5m2"})")
            .starts_with(is + ".fmt \"e5m2\" is not supported"));
  CHECK(error_with(fp8, R"({"quant_method":"fp8","weight_block_size":[128]})")
            .starts_with(is + ".weight_block_size [128] is not supported"));
  CHECK(error_with(gptq, R"({"quant_method":"gptq","bits":8})")
            .starts_with(is + ".bits 8 is not supported: weights of 4 bits"));
  CHECK(error_with(gptq, R"({"quant_method":"gptq"})") ==
        is + ".bits: missing; weights of 4 bits are supported");
  CHECK(error_with(gptq, R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})")
            .starts_with(is + ".checkpoint_format \"marlin\" is not supported"));
  for (const std::string version : {"gemv", "GEMV"}) {
    CHECK(error_with(gptq, str(R"({"quant_method":"awq","bits":4,"version":")", version, R"("})"))
              .starts_with(str(is, ".version \"", version, "\" is not supported")));
  }
  CHECK(error_with(packed, R"({"quant_method":"compressed-tensors","format":"int-quantized"})")
            .starts_with(is + ".format \"int-quantized\" is not supported"));
  CHECK(error_with(packed, R"({"quant_method":"compressed-tensors","format":"pack-quantized",
            "config_groups":{"g":{"weights":{"num_bits":8,"type":"int"}}}})")
            .starts_with(is + ".config_groups.g.weights.num_bits 8 is not supported"));
}

TEST_CASE("parts that are missing or do not fit are named") {
  const std::string tensor = "DIR/model.safetensors: tensor ";
  CHECK(error_after(fp8, [](auto& files) { files.erase("m.weight_scale_inv"); }) ==
        tensor + "m.weight F8_E4M3 [16, 32]: there is no m.weight_scale beside it");
  CHECK(error_after(fp8, [](auto& files) {
          files.set("m.weight_scale_inv", "F32", {2, 3}, std::vector<float>(6, 1));
        }) == tensor + "m.weight_scale_inv F32 [2, 3]: expected F32, F16 or BF16 [2, 2]");
  CHECK(error_after(fp8, [](auto& files) {
          files.set_config(config(R"({"quant_method":"fp8"})"));
        }).starts_with(tensor + "m.weight_scale_inv F32 [2, 2]: quantization_config does not say"));
  CHECK(error_after(packed, [](auto& files) {
          files.set("m.weight_shape", "I64", {2}, std::vector<std::int64_t>{16, 31});
        }).starts_with(tensor + "m.weight_shape I64 [2]: says [16, 31]; inputs must be"));
  CHECK(error_after(packed, [](auto& files) {
          files.set("m.weight_shape", "I32", {2}, std::vector<std::int32_t>{-16, 32});
        }).starts_with(tensor + "m.weight_shape I32 [2]: says [-16, 32]; inputs must be"));
  CHECK(error_after(packed, [](auto& files) {
          files.set("m.weight_shape", "I32", {4}, std::vector<std::int32_t>{16, 0, 32, 0});
        }).starts_with(tensor + "m.weight_shape I32 [4]: expected I32 [2]"));
  CHECK(error_after(packed, [](auto& files) {
          files.set("m.weight_shape", "F32", {2}, std::vector<float>{16, 32});
        }).starts_with(tensor + "m.weight_shape F32 [2]: expected I64 [2]"));
  CHECK(error_after(packed, [](auto& files) {
          files.set("m.weight_scale", "F32", {16, 3}, std::vector<float>(48, 1));
        }) == tensor + "m.weight_scale F32 [16, 3]: 32 inputs are no multiple of its 3 groups");
  CHECK(error_after(packed, [](auto& files) {
          files.set("m.weight_zero_point", "I32", {2, 2}, std::vector<std::int32_t>(4, 0));
        }).starts_with(tensor + "m.weight_zero_point I32 [2, 2]: zero points of packed INT4"));
  CHECK(error_after(gptq, [](auto& files) {
          files.set("m.qweight", "I32", {0, 16}, std::vector<std::int32_t>());
        }) == tensor + "m.qweight I32 [0, 16]: it is empty");
  CHECK(error_after(fp8, [](auto& files) {
          files.set("m.weight", "F8_E4M3", {0, 32}, std::vector<std::uint8_t>());
        }) == tensor + "m.weight F8_E4M3 [0, 32]: it is empty");
  CHECK(error_after(gptq, [](auto& files) { files.erase("m.qzeros"); }) ==
        tensor + "m.qweight I32 [4, 16]: there is no m.qzeros beside it");
  CHECK(error_after(gptq, [](auto& files) {
          files.set("m.qzeros", "I32", {2, 3}, std::vector<std::int32_t>(6, 0));
        }) == tensor + "m.qzeros I32 [2, 3]: expected I32 [2, 2]");
  CHECK(error_after(gptq, [](auto& files) {
          files.set("m.g_idx", "I32", {32}, std::vector<std::int32_t>(32, 2));
        }) == tensor + "m.g_idx I32 [32]: input 0 is of group 2; there are 2");
}

TEST_CASE("experts in one tensor become tensors of their own") {
  const TestFolder folder;
  mxfp4().write(folder);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.tensors().size() == 8);  // weights and biases of gate and up
  const StoredTensor& up = checkpoint.get("m.experts.1.up_proj.weight", {3, 64});
  CHECK(up.encoding == Encoding::mxfp4);
  REQUIRE(up.quantized != nullptr);
  CHECK(up.quantized->groups == 2);
  CHECK(up.bytes == 96);
  CHECK(checkpoint.get("m.experts.1.up_proj.bias", {3}).bytes == 12);
}

TEST_CASE("experts whose tensors are missing or do not fit are refused by name") {
  const std::string tensor = "DIR/model.safetensors: tensor m.experts.gate_up_proj";
  CHECK(error_after(mxfp4, [](auto& files) { files.erase("m.experts.gate_up_proj_scales"); }) ==
        tensor + "_bias F32 [2, 6]: there is no m.experts.gate_up_proj_scales beside it");
  CHECK(error_after(mxfp4, [](auto& files) { files.erase("m.experts.gate_up_proj_blocks"); }) ==
        tensor + "_bias F32 [2, 6]: there is no m.experts.gate_up_proj beside it");
  CHECK(error_after(mxfp4, [](auto& files) {
          files.set("m.experts.gate_up_proj_blocks", "U8", {2, 6, 4, 8},
                    std::vector<std::uint8_t>(384));
        }) == tensor + "_blocks U8 [2, 6, 4, 8]: expected U8 [2, 6, groups of 32 inputs, 16]");
  CHECK(
      error_after(mxfp4, [](auto& files) {
        files.set("m.experts.gate_up_proj_scales", "U8", {2, 6, 1}, std::vector<std::uint8_t>(12));
      }) == tensor + "_scales U8 [2, 6, 1]: expected U8 [2, 6, 2]");
  CHECK(error_after(mxfp4, [](auto& files) {
          files.set("m.experts.gate_up_proj_bias", "F32", {2, 5}, std::vector<float>(10));
        }).starts_with(tensor + "_bias F32 [2, 5]: expected 1 to 1024 experts"));
  CHECK(error_after(mxfp4, [](auto& files) {
          files.erase("m.experts.gate_up_proj_bias");
        }).find("found U8") != std::string::npos);
  CHECK(error_after(mxfp4, [](auto& files) {
          files.set("m.experts.0.up_proj.bias", "F32", {1}, std::vector<float>(1));
        }).ends_with("there is a m.experts.0.up_proj.bias, too"));
}

// The same experts as floats without biases, with 4 inputs.
SafetensorsBuilder joined_experts() {
  SafetensorsBuilder files;
  files.set("m.experts.gate_up_proj", "F32", {2, 6, 4}, std::vector<float>(48));
  files.set("m.experts.down_proj", "F32", {2, 4, 3}, std::vector<float>(24));
  return files;
}

TEST_CASE("experts without biases that share a tensor become tensors of their own") {
  const TestFolder folder;
  joined_experts().write(folder);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  CHECK(checkpoint.tensors().size() == 6);
  const std::uint64_t gate = checkpoint.get("m.experts.0.gate_proj.weight", {3, 4}).offset;
  CHECK(checkpoint.get("m.experts.0.up_proj.weight", {3, 4}).offset == gate + 48);
  CHECK(checkpoint.get("m.experts.1.gate_proj.weight", {3, 4}).offset == gate + 96);
  CHECK(checkpoint.get("m.experts.1.up_proj.weight", {3, 4}).offset == gate + 144);
  const StoredTensor& down = checkpoint.get("m.experts.0.down_proj.weight", {4, 3});
  CHECK(down.bytes == 48);
  CHECK(down.stored_name == "m.experts.down_proj");
  CHECK(checkpoint.get("m.experts.1.down_proj.weight", {4, 3}).offset == down.offset + 48);

  const std::string tensor = "DIR/model.safetensors: tensor m.experts.gate_up_proj ";
  CHECK(error_after(joined_experts,
                    [](auto& files) {
                      files.set("m.experts.gate_up_proj", "F32", {2, 5, 4}, std::vector<float>(40));
                    }) ==
        tensor +
            "F32 [2, 5, 4]: expected F32, F16 or BF16 [experts, outputs of gate and up, "
            "inputs], of 1 to 1024 experts");
  CHECK(error_after(joined_experts, [](auto& files) {
          files.set("m.experts.gate_up_proj", "F32", {12, 4}, std::vector<float>(48));
        }).starts_with(tensor + "F32 [12, 4]: expected F32, F16 or BF16 [experts, "));
  CHECK(error_after(joined_experts, [](auto& files) {
          files.set("m.experts.1.up_proj.weight", "F32", {1}, std::vector<float>(1));
        }) == tensor + "F32 [2, 6, 4]: there is a m.experts.1.up_proj.weight, too");
}

TEST_CASE("a group size that the scales do not have is refused, and a configuration without end") {
  CHECK(error_with(gptq, R"({"quant_method":"gptq","bits":4,"group_size":16})") == "no error");
  CHECK(error_with(gptq, R"({"quant_method":"gptq","bits":4,"group_size":32})") ==
        "DIR/model.safetensors: tensor m.scales F32 [2, 16]: quantization_config says group_size "
        "32; 32 inputs in 2 groups have 16 each");
  CHECK(error_after(gptq, [](auto& files) { files.set_config(std::string(1 << 20, '[')); }) ==
        "DIR/config.json: nested deeper than 32 levels");
}

TEST_CASE("integers and FP8 that no configuration describes are refused") {
  const auto plain = [](auto& files) { files.set_config("{}"); };
  CHECK(
      error_after(fp8, plain)
          .starts_with(
              "DIR/model.safetensors: tensor m.weight: expected F32, F16 or BF16, found F8_E4M3"));
  CHECK(error_after(gptq, [](auto& files) {
          files.set("odd", "I64", {1}, std::vector<std::int64_t>{1});
        }).starts_with("DIR/model.safetensors: tensor odd: expected F32, F16 or BF16, found I64"));
}

}  // namespace
}  // namespace nvllm::model
