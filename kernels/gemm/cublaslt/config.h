// GemmConfig: a cuBLASLt algorithm and its configuration, as text that outlives the process. The
// algorithm's memory layout is private to the library; its attributes are documented.
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
  std::int32_t splits = 1;  // split-K factor; `reduction` defines how the parts are added
  std::uint32_t reduction = 0, swizzle = 0, custom = 0;
  std::uint16_t inner = 0, cluster = 0;

  bool operator==(const GemmConfig&) const = default;
};

// "id=66 tile=600 stages=36 splits=1 reduction=0 swizzle=1 custom=0 inner=0 cluster=2"
std::string text_of(const GemmConfig& config);

// Parses the output of text_of(); returns nothing for any other text.
std::optional<GemmConfig> parse_gemm_config(std::string_view text);

}  // namespace nvllm::kernels
