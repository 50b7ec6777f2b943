// GET /openapi.json: the description of all endpoints, which is next to this file.
#include "launcher/serve/api/api_call.h"

namespace nvllm::launcher {

std::string respond_openapi(const ApiContext& /*context*/, std::string_view /*body*/) {
  constexpr std::string_view kDescription =
#include "launcher/serve/api/openapi_text.inc"
      ;
  return std::string(kDescription);
}

}  // namespace nvllm::launcher
