// Family: what one kind of decoder adds to, or takes from, the common config.json. A family is one file,
// model/family_NAME.cc, and its name below and in model/families.cc; docs/add-a-model.md shows how.
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"
#include "model/config_keys.h"
#include "model/tensor_names.h"

namespace nvllm::model {

struct Family {
  // As config.json's "architectures" names it; the second one is another spelling or nullptr.
  const char* architecture;
  const char* other_spelling = nullptr;
  const char*
      model_type;  // as config.json's "model_type" names it, should "architectures" be absent

  bool tied_embeddings = false;  // when "tie_word_embeddings" is absent
  bool uses_sliding_window =
      false;  // when "use_sliding_window" is absent, but "sliding_window" is not

  // Sets what is the family's own: biases, norms of q and k. The common keys have been read by then.
  void (*read)(const ConfigKeys& keys, ModelConfig& config);

  TensorNames names = {};
};

// Those that there are. families() lists them.
extern const Family kLlama;
extern const Family kMistral;
extern const Family kQwen2;
extern const Family kQwen3;

std::span<const Family* const> families();

// nullptr: unknown.
const Family* find_family(std::string_view architecture);
const Family* find_family_of_type(std::string_view model_type);

}  // namespace nvllm::model
