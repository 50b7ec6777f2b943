// What is refused of a configuration, and how.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/json_text.h"
#include "model/config/config_fixture.h"

namespace nvllm::model {

TEST_CASE("whatever is not computed here is refused by name") {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"architectures",
       {"Qwen2MoeForCausalLM"},
       "architecture \"Qwen2MoeForCausalLM\" is not supported; known are Gemma3ForCausalLM, "
       "Gemma3ForConditionalGeneration, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, "
       "GptOssForCausalLM, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, "
       "Qwen2ForCausalLM, Qwen3ForCausalLM, "
       "Qwen3_5ForConditionalGeneration, Qwen3_5MoeForConditionalGeneration, "
       "Qwen3MoeForCausalLM, Qwen3NextForCausalLM"},
      {"architectures",
       {"Two\nlines"},
       "architecture \"Two\\nlines\" is not supported; known are Gemma3ForCausalLM, "
       "Gemma3ForConditionalGeneration, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, "
       "GptOssForCausalLM, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, "
       "Qwen2ForCausalLM, Qwen3ForCausalLM, "
       "Qwen3_5ForConditionalGeneration, Qwen3_5MoeForConditionalGeneration, "
       "Qwen3MoeForCausalLM, Qwen3NextForCausalLM"},
      {"hidden_act", "relu2",
       "hidden_act \"relu2\": not supported; known are silu, gelu and gelu_pytorch_tanh"},
      {"rope_scaling",
       {{"rope_type", "longrope"}},
       "rope_scaling.rope_type \"longrope\": not supported; known are default, linear, dynamic, "
       "yarn, llama3 and proportional"},
      {"rope_scaling",
       {{"type", "mrope"}},
       "rope_scaling.rope_type \"mrope\": not supported; known are default, linear, dynamic, yarn, "
       "llama3 and proportional"},
      {"partial_rotary_factor", 0.5,
       "partial_rotary_factor 0.5: RoPE over a part of a head is not supported"},
      {"num_experts", 8,
       "num_experts 8: a Qwen3ForCausalLM with a mixture of experts is not supported"},
      {"num_local_experts", 8,
       "num_local_experts 8: a Qwen3ForCausalLM with a mixture of experts is not supported"},
      {"n_routed_experts", 64,
       "n_routed_experts 64: a Qwen3ForCausalLM with a mixture of experts is not supported"},
      {"layer_types",
       {"full_attention", "linear_attention"},
       "layer_types (a list): layers of type \"linear_attention\" are not supported"},
      {"layer_types",
       {"full_attention", "full_attention"},
       "layer_types (a list): has 2 types, for num_hidden_layers 3"},
      {"layer_types",
       {"full_attention", "sliding_attention", "full_attention"},
       "sliding_window: not in use, though \"layer_types\" names layers of "
       "sliding_attention"},
      {"torch_dtype", "float8_e4m3fn",
       "torch_dtype \"float8_e4m3fn\": not supported; known are bfloat16, float16 and float32"},
  };
  for (const Case& each : cases) {
    CHECK(refusal_of(each.key, each.value) == str("DIR/config.json: ", each.message));
  }
}

TEST_CASE("dual chunk attention is refused, unless an override takes it away") {
  const Json json = with(of("Qwen2ForCausalLM"), "dual_chunk_attention_config",
                         parse_json(R"({"chunk_size": 262144, "local_size": 8192})"));
  CHECK(refusal(json_text(json)) ==
        "DIR/config.json: dual_chunk_attention_config (an object): dual chunk attention is not "
        "supported; for full attention, in contexts as long as those of training, pass "
        "--hf-overrides '{\"dual_chunk_attention_config\": null}'");
  CHECK(parse(json, R"({"dual_chunk_attention_config": null})").qkv_bias);
}

TEST_CASE("what a Gemma 3 may ask for and this program does not compute is refused") {
  const Json gemma =
      with(with(of("Gemma3ForCausalLM"), "query_pre_attn_scalar", 32), "use_sliding_window", true);
  CHECK(refusal(json_text(gemma)) == "");
  CHECK(refusal(json_text(with(gemma, "final_logit_softcapping", 30.0))) ==
        "DIR/config.json: final_logit_softcapping 30.0: capped logits are not supported");
  CHECK(refusal(json_text(with(gemma, "attn_logit_softcapping", 50.0))) ==
        "DIR/config.json: attn_logit_softcapping 50.0: capped logits are not supported");
  CHECK(refusal(json_text(with(gemma, "use_bidirectional_attention", true))) ==
        "DIR/config.json: use_bidirectional_attention true: attention to later tokens is not "
        "supported");
  CHECK(refusal(json_text(with(gemma, "text_config", 3))) ==
        "DIR/config.json: text_config 3: not an object; it must be null or {...}");
  const auto with_ropes = [&](const char* text) {
    return refusal(json_text(with(gemma, "rope_parameters", parse_json(text))));
  };
  CHECK(with_ropes(R"({"full_attention": {"rope_theta": 1e6}})") ==
        "DIR/config.json: rope_parameters.sliding_attention: must be an object");
  CHECK(with_ropes(R"({"full_attention": {"rope_type": "default"},
                       "sliding_attention": {"rope_theta": 1e4}})") ==
        "DIR/config.json: rope_parameters.full_attention.rope_theta: missing; it must be a number "
        "from 1 to 1e+12");
  CHECK(with_ropes(R"({"full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
                       "sliding_attention": {"rope_theta": 1e4}})") ==
        "DIR/config.json: rope_parameters.full_attention.partial_rotary_factor 0.5: RoPE over a "
        "part of a head is not supported");
  CHECK(refusal_of("rope_parameters", parse_json(R"({"full_attention": {"rope_theta": 1e6}})")) ==
        "DIR/config.json: rope_parameters.full_attention (an object): RoPE by kind of layer is not "
        "supported");
}

TEST_CASE("a window of a family without windows is refused") {
  Json json = with(with(of("LlamaForCausalLM"), "sliding_window", 32), "use_sliding_window", true);
  CHECK(refusal(json_text(json)) ==
        "DIR/config.json: sliding_window 32: a LlamaForCausalLM with a window is not supported");
  json = with(of("LlamaForCausalLM"), "layer_types",
              {"full_attention", "full_attention", "sliding_attention"});
  CHECK(refusal(json_text(json)) ==
        "DIR/config.json: layer_types (a list): layers of type \"sliding_attention\" are not "
        "supported");
}

TEST_CASE("a value that cannot be is refused with file, key, value and what it must be") {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"hidden_size", 0, "hidden_size 0: must be a whole number from 1 to 65536"},
      {"hidden_size", -64, "hidden_size -64: must be a whole number from 1 to 65536"},
      {"hidden_size", 1e3, "hidden_size 1000.0: must be a whole number from 1 to 65536"},
      {"hidden_size", "64", "hidden_size \"64\": must be a whole number from 1 to 65536"},
      {"hidden_size", {64}, "hidden_size (a list): must be one whole number"},
      {"hidden_size", Json::array(), "hidden_size (a list): must be one whole number"},
      {"hidden_size", true, "hidden_size true: must be a whole number from 1 to 65536"},
      {"hidden_size", 18446744073709551615ull,
       "hidden_size 18446744073709551615: must be a whole number from 1 to 65536"},
      {"hidden_size", nullptr, "hidden_size: missing; it must be 1 to 65536"},
      {"intermediate_size", 0, "intermediate_size 0: must be a whole number from 1 to 16777216"},
      {"num_hidden_layers", 0, "num_hidden_layers 0: must be a whole number from 1 to 4096"},
      {"num_hidden_layers", 1000000000,
       "num_hidden_layers 1000000000: must be a whole number from 1 to 4096"},
      {"num_attention_heads", 0, "num_attention_heads 0: must be a whole number from 1 to 65536"},
      {"num_key_value_heads", 3,
       "num_key_value_heads 3: must divide num_attention_heads, which is 8"},
      {"num_key_value_heads", 16,
       "num_key_value_heads 16: must divide num_attention_heads, which is 8"},
      {"head_dim", 0, "head_dim 0: must be a whole number from 1 to 512"},
      {"head_dim", 520, "head_dim 520: must be a whole number from 1 to 512"},
      {"head_dim", 33,
       "head_dim 33: gives heads of 33 elements; they must have a multiple of 8, at most 512"},
      {"vocab_size", -1, "vocab_size -1: must be a whole number from 1 to 16777216"},
      {"max_position_embeddings", 0,
       "max_position_embeddings 0: must be a whole number from 1 to 2147483648"},
      {"rms_norm_eps", 0, "rms_norm_eps 0: must be a number from 1e-20 to 1"},
      {"rms_norm_eps", "1e-6", "rms_norm_eps \"1e-6\": must be a number from 1e-20 to 1"},
      {"rope_theta", 0, "rope_theta 0: must be a number from 1 to 1e+12"},
      {"rope_theta", "big", "rope_theta \"big\": must be a number from 1 to 1e+12"},
      {"rope_scaling", "linear",
       "rope_scaling \"linear\": not an object; it must be null or {...}"},
      {"rope_scaling",
       {{"factor", 2}},
       "rope_scaling.rope_type: missing, though there is a factor"},
      {"rope_scaling",
       {{"type", "linear"}},
       "rope_scaling.factor: missing; it must be a number from 1 to 65536"},
      {"rope_scaling",
       {{"type", "linear"}, {"factor", -2}},
       "rope_scaling.factor -2: must be a number from 1 to 65536"},
      {"rope_scaling", {{"type", 7}}, "rope_scaling.rope_type 7: must be a text"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}},
       "rope_scaling.low_freq_factor: missing; it must be a number from 0.001 to 1e+06"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
       "rope_scaling.high_freq_factor 4: must be above low_freq_factor, which is 4"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
       "rope_scaling.original_max_position_embeddings: missing; rope_type llama3 needs it"},
      {"tie_word_embeddings", 1, "tie_word_embeddings 1: must be true or false"},
      {"attention_bias", "no", "attention_bias \"no\": must be true or false"},
      {"eos_token_id", {2, -1}, "eos_token_id (a list): must be a whole number from 0 to 16777216"},
      {"eos_token_id", "</s>", "eos_token_id \"</s>\": must be a whole number from 0 to 16777216"},
      {"architectures", "Qwen3ForCausalLM",
       "architectures \"Qwen3ForCausalLM\": must be a list of texts"},
      {"architectures", {7}, "architectures (a list): must be a list of texts"},
  };
  for (const Case& each : cases) {
    CHECK(refusal_of(each.key, each.value) == str("DIR/config.json: ", each.message));
  }
}

TEST_CASE("experts that cannot be are refused with file, key, value and what they must be") {
  struct Case {
    const char* architecture;
    const char* key;
    Json value;
    const char* message;
  };
  const char* const mixtral = "MixtralForCausalLM";
  const char* const qwen3 = "Qwen3MoeForCausalLM";
  const char* const gpt_oss = "GptOssForCausalLM";
  const std::vector<Case> cases = {
      {mixtral, "num_local_experts", nullptr, "num_local_experts: missing; it must be 1 to 1024"},
      {mixtral, "num_local_experts", 1025,
       "num_local_experts 1025: must be a whole number from 1 to 1024"},
      {mixtral, "num_experts_per_tok", 13,
       "num_experts_per_tok 13: must not be above num_local_experts, which is 12"},
      {qwen3, "num_experts", 0, "num_experts 0: must be a whole number from 1 to 1024"},
      {qwen3, "num_experts_per_tok", 11,
       "num_experts_per_tok 11: must not be above num_experts, which is 10"},
      {qwen3, "num_experts_per_tok", 0,
       "num_experts_per_tok 0: must be a whole number from 1 to 1024"},
      {qwen3, "moe_intermediate_size", nullptr,
       "moe_intermediate_size: missing; it must be 1 to 16777216"},
      {gpt_oss, "swiglu_limit", 0, "swiglu_limit 0: must be a number from 0.001 to 1e+06"},
      {gpt_oss, "hidden_act", "gelu", "hidden_act \"gelu\": a GptOssForCausalLM has silu"},
      {qwen3, "norm_topk_prob", 1, "norm_topk_prob 1: must be true or false"},
      {qwen3, "decoder_sparse_step", 0,
       "decoder_sparse_step 0: must be a whole number from 1 to 4096"},
      {qwen3,
       "mlp_only_layers",
       {-1},
       "mlp_only_layers (a list): must be a whole number from 0 to 4096"},
  };
  for (const Case& each : cases) {
    const Json json =
        with(with_experts(nvllm::model::qwen3()), "architectures", {each.architecture});
    CHECK(refusal(json_text(with(json, each.key, each.value))) ==
          str("DIR/config.json: ", each.message));
  }
}

TEST_CASE("a missing key is refused") {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    CHECK(refusal(json_text(without(qwen3(), key)))
              .starts_with(str("DIR/config.json: ", key, ": missing; it must be 1 to ")));
  }
  const Json nameless = without(without(qwen3(), "architectures"), "model_type");
  CHECK(refusal(json_text(nameless))
            .starts_with("DIR/config.json: architectures: missing; known are "));
  const Json odd = without(with(qwen3(), "hidden_size", 100), "head_dim");
  CHECK(refusal(json_text(odd)) ==
        "DIR/config.json: hidden_size 100: no multiple of num_attention_heads, which is 8, and "
        "there is no head_dim");
}

TEST_CASE("text that is no JSON object is refused with its place") {
  CHECK(refusal("") == "DIR/config.json: no valid JSON at line 1, column 1");
  CHECK(refusal("{\n  \"a\": 1,\n  b\n}") == "DIR/config.json: no valid JSON at line 3, column 3");
  CHECK(refusal("{\"hidden_size\": 64") == "DIR/config.json: no valid JSON at line 1, column 19");
  CHECK(refusal("[1]") ==
        "DIR/config.json: holds array, not an object such as {\"vocab_size\": 1000}");
  CHECK(refusal("{\"a\": 1e999}") == "DIR/config.json: holds a number that is too large");
  CHECK(refusal(std::string(100, '[')) == "DIR/config.json: nested deeper than 32 levels");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(refusal(deep) == "DIR/config.json: nested deeper than 32 levels");
}

TEST_CASE("overrides can be checked before there is a file") {
  check_overrides("");
  check_overrides(R"({"vocab_size": 0})");
  CHECK_THROWS_WITH_AS(check_overrides("{"),
                       "--hf-overrides \"{\": no valid JSON at line 1, column 2", Error);
}

TEST_CASE("bad overrides are refused in one line, with what was given") {
  const std::string good = json_text(qwen3());
  CHECK(refusal(good, "{vocab_size: 3}") ==
        "--hf-overrides \"{vocab_size: 3}\": no valid JSON at line 1, column 2");
  CHECK(refusal(good, "7") ==
        "--hf-overrides \"7\": holds number, not an object such as {\"vocab_size\": 1000}");
  CHECK(refusal(good, R"({"vocab_size": 0})") ==
        "DIR/config.json with --hf-overrides: vocab_size 0: must be a whole number from 1 to "
        "16777216");
  CHECK(refusal(good, R"({"rope_scaling": 3})") ==
        "--hf-overrides \"{\\\"rope_scaling\\\": 3}\": rope_scaling 3: not an object; it must be "
        "null or {...}");
}

}  // namespace nvllm::model
