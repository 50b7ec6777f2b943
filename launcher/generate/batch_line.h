// Lines of a batch in the format of OpenAI's batch API: requests and responses.
//   {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", ...}}
//   {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": "req_1",
//    "body": {...}}, "error": null}
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/generate/request_line.h"
#include "launcher/serve/api/api_call.h"

namespace nvllm::launcher {

// Whether a text that may not be valid JSON was meant to be such a line.
bool mentions_custom_id(std::string_view line);
bool is_batch_line(const nlohmann::json& object);

// Parses everything around the body. Throws an Error, with result.error_param set.
void read_batch_line(std::string_view line, const nlohmann::json& object, RequestLine& result);

// Lets the endpoint parse the body. Throws an ApiError.
std::unique_ptr<ApiCall> parse_batch_request(const ApiContext& context, std::uint64_t line,
                                             const BatchRequest& request);

// Appends an output line. custom_id: as JSON; empty: it could not be read. body: JSON.
void append_batch_line(std::string& out, std::uint64_t line, std::string_view custom_id, int status,
                       std::string_view body);

// The part of such a line that --resume needs.
struct BatchAnswer {
  std::uint64_t line = 0;  // of the input
  std::string custom_id = "";
  bool failed = false;
};
// nullopt: the object is not a line of this format.
std::optional<BatchAnswer> read_batch_answer(const nlohmann::json& object);

}  // namespace nvllm::launcher
