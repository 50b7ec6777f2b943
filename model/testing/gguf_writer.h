// GgufWriter: shared by the converters of families: writes Hugging Face configurations and tensors
// as GGUF keys and tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "device/backend.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"
#include "model/testing/gguf_conversion.h"
#include "model/testing/gguf_values.h"

namespace nvllm::model {

class GgufWriter {
 protected:
  GgufWriter(const Checkpoint& checkpoint, const GgufConversion& conversion)
      : checkpoint_(checkpoint), conversion_(conversion), config_(text_config_of(checkpoint)) {}

  std::int64_t integer(const char* key) const { return config_[key].get<std::int64_t>(); }
  bool has(const std::string& theirs) const { return checkpoint_.find(theirs) != nullptr; }
  GgufValues read(const std::string& theirs) const {
    return read_values(checkpoint_, theirs, *backend_);
  }

  // Keys with the architecture's prefix.
  void u32(const std::string& key, std::int64_t value);
  void f32(const std::string& key, const nlohmann::json& value);

  // Tensors, with dimensions in GGUF order.
  void add(const std::string& name, const GgufValues& tensor);
  void add(const std::string& name, const std::string& theirs) { add(name, read(theirs)); }
  // Adds the tensor if it exists.
  void add_optional(const std::string& name, const std::string& theirs) {
    if (has(theirs)) add(name, theirs);
  }
  // Adds a norm, if it exists, whose weights in the checkpoint are smaller by `less`.
  void add_norm(const std::string& name, const std::string& theirs, float less);

  const Checkpoint& checkpoint_;
  const GgufConversion& conversion_;
  const nlohmann::json config_;
  std::string architecture_;
  GgufBuilder builder_;

 private:
  const std::unique_ptr<Backend> backend_ = create_backend(DeviceKind::cpu);
};

}  // namespace nvllm::model
