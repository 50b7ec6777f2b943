// The names of the fields that endpoints accept: /openapi.json must have the same.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

std::vector<std::string> completion_field_names();
std::vector<std::string> chat_field_names();
std::vector<std::string> message_field_names();
std::vector<std::string> response_field_names();

// An endpoint's own fields, and those of generation_field_names() that it does not refuse.
template <typename Fields>
std::vector<std::string> accepted_names(std::span<const Field<Fields>> own,
                                        std::span<const RefusedField> refused) {
  std::vector<std::string> names;
  for (const Field<Fields>& field : own) names.emplace_back(field.name);
  for (std::string& name : generation_field_names()) {
    const bool is_own = std::ranges::find(names, name) != names.end();
    const bool is_refused =
        std::ranges::find(refused, std::string_view(name), &RefusedField::name) != refused.end();
    if (!is_own && !is_refused) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace nvllm::launcher
