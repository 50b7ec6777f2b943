// GemmConfig: which of cuBLASLt's algorithms, and how it is configured, as text that outlives the
// process. What an algorithm is in memory is nobody's business but the library's; its attributes
// are documented.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nvllm::kernels {

// The attributes CUBLASLT_ALGO_CONFIG_*.
struct GemmConfig {
  std::int32_t id = 0;
  std::uint32_t tile = 0, stages = 0;
  std::int32_t splits = 1;  // of the inputs, whose sums are added as `reduction` says
  std::uint32_t reduction = 0, swizzle = 0, custom = 0;
  std::uint16_t inner = 0, cluster = 0;

  bool operator==(const GemmConfig&) const = default;
};

// "id=66 tile=600 stages=36 splits=1 reduction=0 swizzle=1 custom=0 inner=0 cluster=2"
std::string text_of(const GemmConfig& config);

// Of exactly such text; else nothing.
std::optional<GemmConfig> parse_gemm_config(std::string_view text);

}  // namespace nvllm::kernels
