#include "model/checkpoint/quantized_weight.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/math.h"
#include "base/text.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/expert_tensors.h"

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
      // Some files have GEMM, which is the same in transformers.
      if (const std::string version = lower_case(text(config_, "version"));
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

  static std::string lower_case(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  }

  void require_int4() const {
    const auto bits = config_.find("bits");
    if (bits == config_.end()) {
      fail(where_, ": quantization_config.bits: missing; weights of 4 bits are supported");
    }
    if (*bits != 4) {
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

namespace {

std::vector<std::byte> read_all(const StoredTensor& tensor, std::span<const CheckpointFile> files) {
  std::vector<std::byte> bytes(tensor.bytes);
  read_at(files[tensor.file], tensor.offset, bytes);
  return bytes;
}

// The tensors of a checkpoint by name, out of which weights are joined.
class QuantizedWeightJoiner {
 public:
  QuantizedWeightJoiner(std::vector<StoredTensor> tensors, std::span<const CheckpointFile> files,
                        const QuantizationConfig& config)
      : files_(files), config_(config) {
    for (StoredTensor& tensor : tensors) {
      std::string name = tensor.name;
      has_input_scales_ |= name.ends_with(kInputScale);
      const std::size_t count = tensors_.size();
      tensors_.try_emplace(tensors_.end(), std::move(name), std::move(tensor));
      if (tensors_.size() == count) repeated_.push_back(std::move(tensor));  // it is still there
    }
  }

  std::vector<StoredTensor> join() {
    for (auto at = tensors_.begin(); at != tensors_.end(); at = next_) {
      next_ = std::next(at);
      join_weight(at);
    }
    // Scales of quantized queries, which are not supported here.
    std::erase_if(tensors_, [](const auto& entry) { return entry.first.ends_with(".q_scale"); });
    std::vector<StoredTensor> all = std::move(repeated_);
    all.reserve(all.size() + tensors_.size());
    for (auto& [name, tensor] : tensors_) all.push_back(std::move(tensor));
    return all;
  }

 private:
  using Tensors = std::map<std::string, StoredTensor>;

  static constexpr std::string_view kInputScale = ".input_scale";

  // If the tensor holds the values of a weight, takes it and the weight's other parts out, and puts
  // the weight in.
  void join_weight(Tensors::iterator values) {
    const std::string name = values->first;
    const auto module = [&](std::string_view end) {
      return name.substr(0, name.size() - end.size());
    };
    if (name.ends_with(".weight") && values->second.encoding == Encoding::f8_e4m3) {
      join_fp8(module(".weight"), take(values));
    } else if (name.ends_with(".weight_packed")) {
      join_packed(module(".weight_packed"), take(values));
    } else if (name.ends_with(".qweight")) {
      join_transposed(module(".qweight"), take(values));
    }
  }

  [[noreturn]] void refuse(const StoredTensor& tensor, auto&&... why) const {
    fail(files_[tensor.file].path(), ": tensor ", printable(tensor.name), " ",
         name_of(tensor.encoding), " ", shape_text(tensor.shape), ": ", why...);
  }

  StoredTensor take(Tensors::iterator at) {
    if (at == next_) ++next_;
    StoredTensor tensor = std::move(at->second);
    tensors_.erase(at);
    return tensor;
  }

  std::optional<StoredTensor> take_optional(const std::string& name) {
    // Scales mostly come right after their values.
    const bool is_next = next_ != tensors_.end() && next_->first == name;
    const auto found = is_next ? next_ : tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    return take(found);
  }

  StoredTensor take(const std::string& name, const StoredTensor& for_values) {
    if (auto tensor = take_optional(name)) return std::move(*tensor);
    refuse(for_values, "there is no ", printable(name), " beside it");
  }

  void require(const StoredTensor& tensor, Encoding encoding,
               const std::vector<std::int64_t>& shape) const {
    if (tensor.encoding != encoding || tensor.shape != shape)
      refuse(tensor, "expected ", name_of(encoding), " ", shape_text(shape));
  }

  void require_scales(const StoredTensor& tensor, const std::vector<std::int64_t>& shape) const {
    const bool floats = tensor.encoding == Encoding::f32 || tensor.encoding == Encoding::f16 ||
                        tensor.encoding == Encoding::bf16;
    if (!floats || tensor.shape != shape)
      refuse(tensor, "expected F32, F16 or BF16 ", shape_text(shape));
  }

  // The weight under its usual name. INT4 is read in words of eight outputs or inputs.
  void add(const std::string& module, std::int64_t outputs, std::int64_t inputs,
           QuantizedWeight weight) {
    StoredTensor tensor;
    tensor.name = module + ".weight";
    tensor.stored_name = weight.values.name;
    tensor.encoding = weight.layout == QuantizedLayout::fp8 ? Encoding::f8_e4m3 : Encoding::i4;
    tensor.shape = {outputs, inputs};
    tensor.file = weight.values.file;
    tensor.offset = weight.values.offset;
    tensor.bytes = weight.values.bytes;
    const auto quantized = std::make_shared<const QuantizedWeight>(std::move(weight));
    tensor.quantized = quantized;
    std::string name = tensor.name;
    const std::size_t count = tensors_.size();
    tensors_.try_emplace(next_, std::move(name), std::move(tensor));
    if (tensors_.size() == count) refuse(quantized->values, "there is a .weight beside it, too");
  }

  void drop_input_scale(const std::string& module) {
    if (has_input_scales_) take_optional(str(module, kInputScale));
  }

  void join_fp8(const std::string& module, StoredTensor values) {
    QuantizedWeight weight;
    weight.values = std::move(values);
    if (weight.values.shape.size() != 2) refuse(weight.values, "FP8 weights must be matrices");
    if (weight.values.shape[0] == 0 || weight.values.shape[1] == 0)
      refuse(weight.values, "it is empty");
    auto scales = take_optional(module + ".weight_scale_inv");
    weight.scales = scales ? *std::move(scales) : take(module + ".weight_scale", weight.values);
    drop_input_scale(module);
    const std::int64_t outputs = weight.values.shape[0], inputs = weight.values.shape[1];
    set_fp8_blocks(weight, outputs, inputs);
    add(module, outputs, inputs, std::move(weight));
  }

  // One scale for the matrix, for each output, or for each block. Sets the scales' shape to two
  // dimensions.
  void set_fp8_blocks(QuantizedWeight& weight, std::int64_t outputs, std::int64_t inputs) const {
    std::vector<std::int64_t>& shape = weight.scales.shape;
    weight.scale_outputs = outputs;
    weight.scale_inputs = inputs;
    if (shape.size() < 2) {
      const bool each_output = shape.size() == 1 && shape[0] == outputs && outputs > 1;
      if (each_output) weight.scale_outputs = 1;
      require_scales(weight.scales, shape.empty() ? shape : std::vector{each_output ? outputs : 1});
      shape = {each_output ? outputs : 1, 1};
    } else if (shape == std::vector<std::int64_t>{outputs, 1} && config_.block_outputs != 1) {
      weight.scale_outputs = 1;
      require_scales(weight.scales, shape);
    } else {
      if (config_.block_outputs == 0)
        refuse(weight.scales, "quantization_config does not say for which blocks its scales are");
      weight.scale_outputs = config_.block_outputs;
      weight.scale_inputs = config_.block_inputs;
      require_scales(weight.scales, {divide_up(outputs, weight.scale_outputs),
                                     divide_up(inputs, weight.scale_inputs)});
    }
    weight.groups = divide_up(inputs, weight.scale_inputs);
  }

  // Sets scale_inputs for `groups` groups of all inputs.
  void set_groups(QuantizedWeight& weight, std::int64_t groups, std::int64_t inputs) const {
    if (groups < 1 || inputs % groups != 0)
      refuse(weight.scales, inputs, " inputs are no multiple of its ", groups, " groups");
    weight.groups = groups;
    weight.scale_inputs = inputs / groups;
    const std::int64_t size = config_.group_size;
    if (size > 0 && weight.scale_inputs != size && (groups > 1 || size < inputs)) {
      refuse(weight.scales, "quantization_config says group_size ", size, "; ", inputs,
             " inputs in ", groups, " groups have ", weight.scale_inputs, " each");
    }
  }

  // The values of a tensor of two whole numbers.
  template <typename T>
  std::array<std::int64_t, 2> read_pair(const StoredTensor& tensor) const {
    std::array<T, 2> pair{};
    std::memcpy(pair.data(), read_all(tensor, files_).data(), sizeof pair);
    return {pair[0], pair[1]};
  }

  // Outputs and inputs of a packed weight, which are I64 or I32.
  std::array<std::int64_t, 2> read_sizes(const StoredTensor& shape) const {
    const bool small = shape.encoding == Encoding::i32;
    require(shape, small ? Encoding::i32 : Encoding::i64, {2});
    return small ? read_pair<std::int32_t>(shape) : read_pair<std::int64_t>(shape);
  }

  void join_packed(const std::string& module, StoredTensor values) {
    QuantizedWeight weight;
    weight.layout = QuantizedLayout::packed_inputs;
    weight.values = std::move(values);
    weight.scales = take(module + ".weight_scale", weight.values);
    const StoredTensor shape = take(module + ".weight_shape", weight.values);
    drop_input_scale(module);
    if (const auto zeros = take_optional(module + ".weight_zero_point"))
      refuse(*zeros,
             "zero points of packed INT4 weights are not supported; only symmetric ones are");
    const std::array<std::int64_t, 2> sizes = read_sizes(shape);
    const auto [outputs, inputs] = sizes;
    if (outputs < 1 || inputs < 1 || inputs % 8 != 0)
      refuse(shape, "says ", shape_text(sizes), "; inputs must be a multiple of 8");
    require(weight.values, Encoding::i32, {outputs, inputs / 8});
    weight.group_of = take_optional(module + ".weight_g_idx");
    if (weight.scales.shape.size() != 2) refuse(weight.scales, "expected [outputs, groups]");
    set_groups(weight, weight.scales.shape[1], inputs);
    require_scales(weight.scales, {outputs, weight.groups});
    check_groups(weight, inputs);
    add(module, outputs, inputs, std::move(weight));
  }

  void join_transposed(const std::string& module, StoredTensor values) {
    const bool awq = config_.method == "awq";
    QuantizedWeight weight;
    weight.layout = awq ? QuantizedLayout::awq : QuantizedLayout::gptq;
    weight.values = std::move(values);
    if (weight.values.shape.size() != 2) refuse(weight.values, "expected a matrix");
    require(weight.values, Encoding::i32, weight.values.shape);
    // The file holds them, so eight times as many are still a number, but where one size is 0.
    if (weight.values.shape[0] == 0 || weight.values.shape[1] == 0)
      refuse(weight.values, "it is empty");
    const std::int64_t outputs = weight.values.shape[1] * (awq ? 8 : 1);
    const std::int64_t inputs = weight.values.shape[0] * (awq ? 1 : 8);
    if (inputs % 8 != 0 || outputs % 8 != 0)
      refuse(weight.values, "inputs and outputs must be multiples of 8");
    weight.scales = take(module + ".scales", weight.values);
    weight.zeros = take(module + ".qzeros", weight.values);
    weight.zero_offset = awq ? 0 : config_.zero_offset;
    weight.group_of = take_optional(module + ".g_idx");
    if (weight.scales.shape.size() != 2) refuse(weight.scales, "expected [groups, outputs]");
    set_groups(weight, weight.scales.shape[0], inputs);
    require_scales(weight.scales, {weight.groups, outputs});
    require(*weight.zeros, Encoding::i32, {weight.groups, outputs / 8});
    check_groups(weight, inputs);
    add(module, outputs, inputs, std::move(weight));
  }

  // That every input's group exists. An order that is the usual one is forgotten.
  void check_groups(QuantizedWeight& weight, std::int64_t inputs) const {
    if (!weight.group_of) return;
    const StoredTensor& tensor = *weight.group_of;
    require(tensor, Encoding::i32, {inputs});
    const std::vector<std::byte> bytes = read_all(tensor, files_);
    bool usual = true;
    for (std::int64_t input = 0; input < inputs; ++input) {
      std::int32_t group = 0;
      std::memcpy(&group, bytes.data() + input * sizeof group, sizeof group);
      if (group < 0 || group >= weight.groups)
        refuse(tensor, "input ", input, " is of group ", group, "; there are ", weight.groups);
      usual = usual && group == input / weight.scale_inputs;
    }
    if (usual) weight.group_of.reset();
  }

  Tensors tensors_;
  Tensors::iterator next_;              // the tensor that is looked at next
  bool has_input_scales_ = false;       // of activations, which are not used here
  std::vector<StoredTensor> repeated_;  // of a name that is there already: an Error later
  std::span<const CheckpointFile> files_;
  const QuantizationConfig& config_;
};

// Refuses what only quantized weights are stored as where it is part of none.
void check_encodings(const std::vector<StoredTensor>& tensors,
                     std::span<const CheckpointFile> files) {
  for (const StoredTensor& tensor : tensors) {
    const Encoding encoding = tensor.encoding;
    const bool plain = encoding != Encoding::f8_e4m3 && encoding != Encoding::i32 &&
                       encoding != Encoding::i64 && encoding != Encoding::u8;
    if (plain || tensor.quantized != nullptr) continue;
    fail(files[tensor.file].path(), ": tensor ", printable(tensor.name), ": expected F32, F16 or ",
         "BF16, found ", name_of(encoding), ", and it is part of no quantized weight that the ",
         "configuration's quantization_config describes");
  }
}

}  // namespace

std::vector<StoredTensor> join_quantized(std::vector<StoredTensor> tensors,
                                         std::span<const CheckpointFile> files,
                                         std::string_view config_json, const std::string& where) {
  tensors = split_experts(std::move(tensors), files);
  if (const auto config = read_quantization_config(config_json, where))
    tensors = QuantizedWeightJoiner(std::move(tensors), files, *config).join();
  check_encodings(tensors, files);
  return tensors;
}

}  // namespace nvllm::model
