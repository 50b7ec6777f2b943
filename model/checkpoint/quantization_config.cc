#include "model/checkpoint/quantization_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

// Reads quantization_config and refuses what is not computed here.
class ConfigReader {
 public:
  ConfigReader(const Json& config, const std::string& where) : config_(config), where_(where) {}

  QuantizationConfig read() const {
    if (!config_.is_object()) refuse("quantization_config", "it must be an object");
    QuantizationConfig result;
    result.method = text(config_, "quant_method");
    if (result.method == "fp8") {
      read_fp8(result);
    } else if (result.method == "awq") {
      require_int4();
      read_group_size(config_, result);
      if (const std::string version = text(config_, "version");
          version != "gemm" && !version.empty())
        refuse("quantization_config.version", "AWQ's version gemm is supported");
    } else if (result.method == "gptq") {
      require_int4();
      read_group_size(config_, result);
      const std::string format = text(config_, "checkpoint_format");
      if (!format.empty() && format != "gptq" && format != "gptq_v2")
        refuse("quantization_config.checkpoint_format", "gptq and gptq_v2 are supported");
      result.zero_offset = format == "gptq_v2" ? 0 : 1;
    } else if (result.method == "compressed-tensors") {
      read_compressed(result);
    } else if (result.method != "mxfp4") {
      refuse("quantization_config.quant_method",
             "known are fp8, awq, gptq, compressed-tensors and mxfp4; use such a checkpoint, one "
             "without quantization, or a GGUF file");
    }
    return result;
  }

 private:
  // The value that `dotted` names, from the configuration on, is shown.
  [[noreturn]] void refuse(std::string_view dotted, std::string_view why) const {
    const Json* value = &config_;
    for (std::size_t at = dotted.find('.'); value != nullptr && at != std::string_view::npos;) {
      const std::size_t end = dotted.find('.', at + 1);
      const std::string key(dotted.substr(at + 1, end - at - 1));
      const auto found = value->find(key);
      value = found == value->end() ? nullptr : &*found;
      at = end;
    }
    const bool shown = value != nullptr && value != &config_;
    fail(where_, ": ", dotted, " ", shown ? printable(json_ascii(*value)) : "", shown ? " " : "",
         "is not supported: ", why);
  }

  static std::string text(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  }

  void require_int4() const {
    const auto bits = config_.find("bits");
    if (bits == config_.end() || *bits != 4) {
      refuse("quantization_config.bits", "weights of 4 bits are supported");
    }
  }

  // -1: one group.
  static void read_group_size(const Json& weights, QuantizationConfig& result) {
    const auto size = weights.find("group_size");
    if (size != weights.end() && size->is_number_integer() && *size > 0)
      result.group_size = size->get<std::int64_t>();
  }

  void read_block(const Json& block, std::string_view dotted, QuantizationConfig& result) const {
    const auto whole = [](const Json& size) {
      return size.is_number_unsigned() && size.get<std::uint64_t>() >= 1 &&
             size.get<std::uint64_t>() <= 1 << 20;
    };
    if (!block.is_array() || block.size() != 2 || !whole(block[0]) || !whole(block[1]))
      refuse(dotted, "it must be [outputs, inputs] of a block");
    result.block_outputs = block[0].get<std::int64_t>();
    result.block_inputs = block[1].get<std::int64_t>();
  }

  void read_fp8(QuantizationConfig& result) const {
    if (const std::string format = text(config_, "fmt"); format != "e4m3" && !format.empty())
      refuse("quantization_config.fmt", "e4m3 is supported");
    const auto block = config_.find("weight_block_size");
    if (block != config_.end() && !block->is_null())
      read_block(*block, "quantization_config.weight_block_size", result);
  }

  void read_compressed(QuantizationConfig& result) const {
    const std::string format = text(config_, "format");
    constexpr std::array kKnown = {"float-quantized", "naive-quantized", "pack-quantized"};
    if (std::ranges::find(kKnown, format) == kKnown.end()) {
      refuse("quantization_config.format",
             "of compressed-tensors, float-quantized, naive-quantized and pack-quantized are");
    }
    const auto groups = config_.find("config_groups");
    if (groups == config_.end() || !groups->is_object()) return;
    for (const auto& [name, group] : groups->items()) {
      const auto weights = group.is_object() ? group.find("weights") : group.end();
      if (!group.is_object() || weights == group.end() || !weights->is_object()) continue;
      const std::string dotted =
          str("quantization_config.config_groups.", printable(name), ".weights.");
      const std::string type = text(*weights, "type");
      const int bits = type == "float" ? 8 : 4;
      const auto found = weights->find("num_bits");
      if (found != weights->end() && *found != bits)
        refuse(dotted + "num_bits", "FP8 and INT4 weights are supported");
      if (type != "float") read_group_size(*weights, result);
      const auto block = weights->find("block_structure");
      if (block != weights->end() && !block->is_null())
        read_block(*block, dotted + "block_structure", result);
    }
  }

  const Json& config_;
  const std::string& where_;
};

// The object; null: there is none.
Json find_quantization_config(std::string_view config_json, const std::string& where) {
  try {
    const Json config = parse_nested_json(config_json, where);
    return config.is_object() ? config.value("quantization_config", Json()) : Json();
  } catch (const BadJson& error) {
    if (error.kind() != BadJson::Kind::syntax && error.kind() != BadJson::Kind::number) throw;
    return {};
  }
}

}  // namespace

std::optional<QuantizationConfig> read_quantization_config(std::string_view config_json,
                                                           const std::string& where) {
  const Json config = find_quantization_config(config_json, where);
  if (config.is_null()) return std::nullopt;
  return ConfigReader(config, where).read();
}

}  // namespace nvllm::model
