// GET /v1/models
#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/json_append.h"

namespace nvllm::launcher {

std::string respond_models(const ApiContext& context, std::string_view /*body*/) {
  std::string out = R"({"object":"list","data":)";
  append_json_list(out, context.model_names, [&](std::string& to, const std::string& name) {
    to += R"({"id":)";
    append_json_string(to, name);
    to += R"(,"object":"model","created":)";
    append_json_number(to, context.created_s);
    to += R"(,"owned_by":"nvllm","root":)";
    append_json_string(to, context.model_root);
    to += R"(,"parent":null,"max_model_len":)";
    append_json_number(to, context.max_model_len);
    to += '}';
  });
  out += '}';
  return out;
}

}  // namespace nvllm::launcher
