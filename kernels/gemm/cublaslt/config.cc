#include "kernels/gemm/cublaslt/config.h"

#include <charconv>

#include "base/text.h"

namespace nvllm::kernels {
namespace {

// Takes `name`, '=' and a number from the text's start. False: there is something else.
template <typename Number>
bool take(std::string_view& text, std::string_view name, Number& number) {
  if (!text.starts_with(name)) return false;
  text.remove_prefix(name.size());
  if (!text.starts_with('=')) return false;
  text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return true;
}

}  // namespace

std::string text_of(const GemmConfig& config) {
  return str("id=", config.id, " tile=", config.tile, " stages=", config.stages,
             " splits=", config.splits, " reduction=", config.reduction,
             " swizzle=", config.swizzle, " custom=", config.custom, " inner=", config.inner,
             " cluster=", config.cluster);
}

std::optional<GemmConfig> parse_gemm_config(std::string_view text) {
  GemmConfig config;
  std::string_view rest = text;
  const bool whole = take(rest, "id", config.id) && take(rest, "tile", config.tile) &&
                     take(rest, "stages", config.stages) && take(rest, "splits", config.splits) &&
                     take(rest, "reduction", config.reduction) &&
                     take(rest, "swizzle", config.swizzle) && take(rest, "custom", config.custom) &&
                     take(rest, "inner", config.inner) && take(rest, "cluster", config.cluster);
  if (!whole || text_of(config) != text) return std::nullopt;  // "+1", "01", two blanks
  return config;
}

}  // namespace nvllm::kernels
