#include <array>

#include "model/families/family.h"

namespace nvllm::model {

namespace {

constexpr std::array<const Family*, 4> kFamilies = {&kLlama, &kMistral, &kQwen2, &kQwen3};

}  // namespace

std::span<const Family* const> families() {
  return kFamilies;
}

const Family* find_family(std::string_view architecture) {
  for (const Family* family : kFamilies) {
    if (family->architecture == architecture) return family;
    if (family->other_spelling != nullptr && family->other_spelling == architecture) return family;
  }
  return nullptr;
}

const Family* find_family_of_type(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace nvllm::model
