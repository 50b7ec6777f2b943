#include "model/checkpoint/expert_tensors.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/quantized_weight.h"

namespace nvllm::model {
namespace {

constexpr std::string_view kBias = "_bias";
constexpr std::int64_t kGroup = 32;  // inputs that share a scale of MXFP4
constexpr std::int64_t kMaxExperts = 1024;

using Tensors = std::map<std::string, StoredTensor>;

// gate_up_proj or down_proj of a layer's experts.
class ExpertModules {
 public:
  ExpertModules(Tensors& tensors, std::span<const CheckpointFile> files, const StoredTensor& bias)
      : tensors_(tensors),
        files_(files),
        bias_(bias),
        name_(bias.name.substr(0, bias.name.size() - kBias.size())),
        prefix_(name_.substr(0, name_.rfind('.') + 1)) {
    if (name_.ends_with("down_proj")) {
      modules_ = {"down_proj"};
    } else {
      modules_ = {"gate_proj", "up_proj"};
    }
    if (bias.shape.size() != 2) refuse(bias, "expected [experts, outputs]");
    experts_ = bias.shape[0], outputs_ = bias.shape[1];
    const auto alternating = static_cast<std::int64_t>(modules_.size());
    if (experts_ < 1 || experts_ > kMaxExperts || outputs_ < 1 || outputs_ % alternating != 0) {
      refuse(bias, "expected 1 to ", kMaxExperts, " experts",
             alternating > 1 ? ", and as many outputs of gate as of up" : "");
    }
  }

  void split() {
    const std::string blocks = name_ + "_blocks";
    if (tensors_.contains(blocks)) {
      split_mxfp4(take(blocks), take(name_ + "_scales"));
    } else {
      split_floats(take(name_));
    }
    const StoredTensor bias = take(bias_.name);
    for_modules([&](std::int64_t expert, std::int64_t module, std::int64_t step) {
      add(expert, module, ".bias",
          part_of(bias, {outputs_ / step}, {.rows = 0, .columns = step},
                  expert * outputs_ + module));
    });
  }

 private:
  [[noreturn]] void refuse(const StoredTensor& tensor, auto&&... why) const {
    fail(files_[tensor.file].path(), ": tensor ", printable(tensor.name), " ",
         name_of(tensor.encoding), " ", shape_text(tensor.shape), ": ", why...);
  }

  StoredTensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      refuse(bias_, "there is no ", printable(name), " beside it");
    }
    StoredTensor tensor = found->second;
    if (name != bias_.name) tensors_.erase(found);
    return tensor;
  }

  // function(expert, module, step): of `step` modules, whose outputs alternate.
  template <typename Function>
  void for_modules(const Function& function) const {
    const auto step = static_cast<std::int64_t>(modules_.size());
    for (std::int64_t expert = 0; expert < experts_; ++expert) {
      for (std::int64_t module = 0; module < step; ++module) function(expert, module, step);
    }
  }

  // Some elements of a tensor, from `first` on.
  static StoredTensor part_of(const StoredTensor& whole, std::vector<std::int64_t> shape,
                              StoredStrides strides, std::int64_t first) {
    StoredTensor part = whole;
    part.shape = std::move(shape);
    part.strides = strides;
    part.offset += static_cast<std::uint64_t>(first * block_bytes(whole.encoding));
    part.bytes = *bytes_of(whole.encoding, part.shape);
    return part;
  }

  void add(std::int64_t expert, std::int64_t module, const char* what, StoredTensor tensor) {
    tensor.name = str(prefix_, expert, ".", modules_[static_cast<std::size_t>(module)], what);
    if (tensors_.contains(tensor.name))
      refuse(bias_, "there is a ", printable(tensor.name), ", too");
    std::string name = tensor.name;
    tensors_.emplace(std::move(name), std::move(tensor));
  }

  void split_floats(const StoredTensor& all) {
    const bool floats = all.encoding == Encoding::f32 || all.encoding == Encoding::f16 ||
                        all.encoding == Encoding::bf16;
    if (!floats || all.shape.size() != 3 || all.shape[0] != experts_ || all.shape[1] < 1 ||
        all.shape[2] != outputs_) {
      refuse(all, "expected F32, F16 or BF16 [", experts_, ", inputs, ", outputs_, "]");
    }
    const std::int64_t inputs = all.shape[1];
    for_modules([&](std::int64_t expert, std::int64_t module, std::int64_t step) {
      add(expert, module, ".weight",
          part_of(all, {outputs_ / step, inputs}, {.rows = step, .columns = outputs_},
                  expert * inputs * outputs_ + module));
    });
  }

  void split_mxfp4(const StoredTensor& blocks, const StoredTensor& scales) {
    if (blocks.encoding != Encoding::u8 || blocks.shape.size() != 4 ||
        blocks.shape[0] != experts_ || blocks.shape[1] != outputs_ || blocks.shape[2] < 1 ||
        blocks.shape[3] != kGroup / 2) {
      refuse(blocks, "expected U8 [", experts_, ", ", outputs_, ", groups of 32 inputs, 16]");
    }
    const std::int64_t groups = blocks.shape[2], inputs = groups * kGroup, bytes = inputs / 2;
    if (scales.encoding != Encoding::u8 ||
        scales.shape != std::vector<std::int64_t>{experts_, outputs_, groups}) {
      refuse(scales, "expected U8 [", experts_, ", ", outputs_, ", ", groups, "]");
    }
    for_modules([&](std::int64_t expert, std::int64_t module, std::int64_t step) {
      const std::int64_t first = expert * outputs_ + module, outputs = outputs_ / step;
      QuantizedWeight weight;
      weight.layout = QuantizedLayout::mxfp4;
      weight.values =
          part_of(blocks, {outputs, bytes}, {.rows = step * bytes, .columns = 1}, first * bytes);
      weight.scales =
          part_of(scales, {outputs, groups}, {.rows = step * groups, .columns = 1}, first * groups);
      weight.scale_inputs = kGroup;
      weight.groups = groups;
      StoredTensor tensor = blocks;
      tensor.encoding = Encoding::mxfp4;
      tensor.shape = {outputs, inputs};
      tensor.offset = weight.values.offset;
      tensor.bytes = weight.values.bytes;
      tensor.quantized = std::make_shared<const QuantizedWeight>(std::move(weight));
      add(expert, module, ".weight", std::move(tensor));
    });
  }

  Tensors& tensors_;
  std::span<const CheckpointFile> files_;
  const StoredTensor bias_;
  const std::string name_, prefix_;  // "...experts.down_proj", "...experts."
  std::vector<std::string> modules_;
  std::int64_t experts_ = 0, outputs_ = 0;
};

// gate_up_proj or down_proj of a layer's experts without biases: each expert's weights lie one
// after the other, as if they were tensors of their own.
void split_without_bias(Tensors& tensors, std::span<const CheckpointFile> files,
                        const StoredTensor& all) {
  const auto refuse = [&](auto&&... why) {
    fail(files[all.file].path(), ": tensor ", printable(all.name), " ", name_of(all.encoding), " ",
         shape_text(all.shape), ": ", why...);
  };
  const bool is_down = all.name.ends_with("down_proj");
  const std::vector<std::string> modules = is_down
                                               ? std::vector<std::string>{"down_proj"}
                                               : std::vector<std::string>{"gate_proj", "up_proj"};
  const auto count = static_cast<std::int64_t>(modules.size());
  const bool floats = all.encoding == Encoding::f32 || all.encoding == Encoding::f16 ||
                      all.encoding == Encoding::bf16;
  if (!floats || all.shape.size() != 3 || all.shape[0] < 1 || all.shape[0] > kMaxExperts ||
      all.shape[1] < 1 || all.shape[1] % count != 0 || all.shape[2] < 1) {
    refuse("expected F32, F16 or BF16 ",
           is_down ? "[experts, outputs, inputs]" : "[experts, outputs of gate and up, inputs]",
           ", of 1 to ", kMaxExperts, " experts");
  }
  const std::string prefix = all.name.substr(0, all.name.rfind('.') + 1);
  StoredTensor part = all;
  part.shape = {all.shape[1] / count, all.shape[2]};
  part.bytes = *bytes_of(all.encoding, part.shape);
  for (std::int64_t expert = 0; expert < all.shape[0]; ++expert) {
    for (const std::string& module : modules) {
      part.name = str(prefix, expert, ".", module, ".weight");
      if (!tensors.emplace(part.name, part).second) refuse("there is a ", part.name, ", too");
      part.offset += part.bytes;
    }
  }
}

bool is_of_all_experts(std::string_view name) {
  return name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj");
}

bool is_bias_of_experts(std::string_view name) {
  return name.ends_with("experts.gate_up_proj_bias") || name.ends_with("experts.down_proj_bias");
}

}  // namespace

std::vector<StoredTensor> split_experts(std::vector<StoredTensor> tensors,
                                        std::span<const CheckpointFile> files) {
  // Most checkpoints have a tensor for each expert, and many.
  if (std::ranges::none_of(tensors, [](const StoredTensor& tensor) {
        return is_bias_of_experts(tensor.name) || is_of_all_experts(tensor.name);
      })) {
    return tensors;
  }
  std::vector<StoredTensor> biases, all;
  Tensors by_name;
  for (StoredTensor& tensor : tensors) {
    std::string name = tensor.name;
    if (is_bias_of_experts(name)) biases.push_back(tensor);
    // A duplicate name is an Error later.
    if (!by_name.try_emplace(std::move(name), tensor).second) all.push_back(std::move(tensor));
  }
  for (const StoredTensor& bias : biases) {
    if (!by_name.contains(bias.name)) continue;
    ExpertModules(by_name, files, bias).split();
    by_name.erase(bias.name);
  }
  std::vector<StoredTensor> joined;
  for (const auto& [name, tensor] : by_name) {
    if (is_of_all_experts(name)) joined.push_back(tensor);
  }
  for (const StoredTensor& tensor : joined) {
    by_name.erase(tensor.name);
    split_without_bias(by_name, files, tensor);
  }
  for (auto& [name, tensor] : by_name) all.push_back(std::move(tensor));
  return all;
}

std::vector<StoredTensor> split_gguf_experts(std::vector<StoredTensor> tensors,
                                             std::span<const CheckpointFile> files,
                                             std::int64_t experts) {
  std::vector<StoredTensor> all;
  for (StoredTensor& tensor : tensors) {
    const std::size_t star = tensor.name.find('*');
    if (star == std::string::npos) {
      all.push_back(std::move(tensor));
      continue;
    }
    const bool bias = tensor.name.ends_with(".bias");
    const bool fits = tensor.shape.size() == (bias ? 2U : 3U) && tensor.shape[0] == experts &&
                      experts <= kMaxExperts && tensor.bytes > 0 &&
                      (!bias || block_elements(tensor.encoding) == 1);
    if (!fits) {
      fail(files[tensor.file].path(), ": tensor ", printable(tensor.stored_name), ": expected ",
           bias ? "F32, F16 or BF16 [" : "[", experts,
           bias ? " experts, outputs]" : " experts, outputs, inputs]", ", found ",
           name_of(tensor.encoding), " ", shape_text(tensor.shape));
    }
    // If one tensor holds both, the rows of up follow those of gate.
    constexpr std::string_view kBoth = "gate_up_proj";
    const std::size_t both = tensor.name.find(kBoth);
    const bool is_both = both != std::string::npos;
    if (is_both && tensor.shape[1] % 2 != 0) {
      fail(files[tensor.file].path(), ": tensor ", printable(tensor.stored_name),
           ": expected as many outputs of gate as of up, found ", shape_text(tensor.shape));
    }
    StoredTensor part = tensor;
    part.shape.erase(part.shape.begin());
    if (is_both) part.shape[0] /= 2;
    part.bytes = *bytes_of(part.encoding, part.shape);
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      for (const char* const module : {"gate_proj", "up_proj"}) {
        part.name = tensor.name;
        if (is_both) part.name.replace(both, kBoth.size(), module);
        part.name.replace(star, 1, std::to_string(expert));
        all.push_back(part);
        part.offset += part.bytes;
        if (!is_both) break;
      }
    }
  }
  return all;
}

}  // namespace nvllm::model
