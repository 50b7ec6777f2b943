#include "kernels/gemm/cublaslt/config.h"

#include <doctest/doctest.h>

#include <limits>

namespace nvllm::kernels {
namespace {

TEST_CASE("a configuration's text gives it back") {
  const GemmConfig usual{.id = 66, .tile = 600, .stages = 36, .splits = 1, .cluster = 2};
  CHECK(text_of(usual) ==
        "id=66 tile=600 stages=36 splits=1 reduction=0 swizzle=0 custom=0 inner=0 cluster=2");
  const GemmConfig extreme{.id = -1,
                           .tile = std::numeric_limits<std::uint32_t>::max(),
                           .stages = 1,
                           .splits = std::numeric_limits<std::int32_t>::max(),
                           .reduction = 2,
                           .swizzle = 1,
                           .custom = 7,
                           .inner = std::numeric_limits<std::uint16_t>::max(),
                           .cluster = 9};
  for (const GemmConfig& config : {GemmConfig{}, usual, extreme}) {
    CHECK(parse_gemm_config(text_of(config)) == config);
  }
}

TEST_CASE("other text is no configuration") {
  const std::string good = text_of({.id = 66});
  for (const std::string& bad :
       {std::string{}, std::string{"id=66"}, good + " ", " " + good, good + " more=1",
        good.substr(1), good.substr(0, good.size() - 1), "id=70000000000" + good.substr(5),
        "id=+66" + good.substr(5), "id=066" + good.substr(5), "id = 66" + good.substr(5),
        good.substr(0, good.size() - 1) + "65536"}) {
    CAPTURE(bad);
    CHECK(!parse_gemm_config(bad).has_value());
  }
}

}  // namespace
}  // namespace nvllm::kernels
