#include "launcher/generate/batch.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kIdPrefix = "batch_req_";

struct Endpoint {
  std::string_view url;
  ParseCall parse;
};
constexpr Endpoint kEndpoints[] = {
    {"/v1/chat/completions", parse_chat_completion},
    {"/v1/completions", parse_completion},
};

const Endpoint* find_endpoint(std::string_view url) {
  const auto* const found = std::ranges::find(kEndpoints, url, &Endpoint::url);
  return found == std::end(kEndpoints) ? nullptr : found;
}

// Skips one value or name in valid JSON; at: its first byte.
std::size_t end_of_value(std::string_view json, std::size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < json.size(); ++at) {
    const char c = json[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
        if (depth == 0) return at + 1;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return at;  // after a number
      if (--depth == 0) return at + 1;
    } else if (depth == 0 && (c == ',' || c == ':' || c == ' ' || c == '\t' || c == '\r')) {
      return at;
    }
  }
  return at;
}

// The text of a member of a JSON object: the body as the client wrote it, with its names in their
// order, for the endpoint to parse.
std::string_view text_of_member(std::string_view object, std::string_view name) {
  constexpr std::string_view kBetween = " \t\r\n,:{";
  std::size_t at = 0;
  while (true) {
    at = object.find_first_not_of(kBetween, at);
    const std::size_t end_of_name = end_of_value(object, at);
    const std::string_view found = object.substr(at, end_of_name - at);
    if (found == "}" || found.empty()) return "";
    // This skips no comma or brace of the value, which starts after the colon.
    const std::size_t value = object.find_first_not_of(" \t\r\n:", end_of_name);
    const std::size_t end = end_of_value(object, value);
    if (parse_json(found) == name) return object.substr(value, end - value);
    at = end;
  }
}

std::string read_custom_id(const Json& object) {
  const auto id = object.find("custom_id");
  if (id == object.end() || id->is_null()) fail("custom_id: missing; pass a text");
  if (!id->is_string()) fail("custom_id: ", shown(*id), ": no text");
  return json_text(*id);
}

void read_url(const Json& object, std::string& url) {
  const auto found = object.find("url");
  if (found == object.end()) fail("url: missing; pass \"/v1/chat/completions\"");
  with_context("url", [&] { read_value(*found, url); });
  if (find_endpoint(url) == nullptr) {
    fail("url: ", shown(*found), ": must be /v1/chat/completions or /v1/completions");
  }
}

}  // namespace

bool mentions_custom_id(std::string_view line) {
  return line.find("\"custom_id\"") != std::string_view::npos;
}

bool is_batch_line(const Json& object) {
  return object.contains("custom_id") || (object.contains("url") && object.contains("body"));
}

void read_batch_line(std::string_view line, const Json& object, RequestLine& result) {
  result.error_param = "custom_id";
  result.id = read_custom_id(object);
  for (const auto& item : object.items()) {
    constexpr std::string_view kNames[] = {"custom_id", "method", "url", "body"};
    if (std::ranges::find(kNames, item.key()) != std::end(kNames)) continue;
    result.error_param = item.key().substr(0, 64);
    fail(shown(item.key()), ": no such field; a line has custom_id, method, url and body");
  }
  result.error_param = "method";
  if (object.contains("method") && object["method"] != "POST") {
    fail("method: ", shown(object["method"]), ": must be \"POST\"");
  }
  BatchRequest request;
  result.error_param = "url";
  read_url(object, request.url);
  result.error_param = "body";
  const auto body = object.find("body");
  if (body == object.end()) fail("body: missing; pass what would be sent to ", request.url);
  if (!body->is_object()) fail("body: ", shown(*body), ": not an object");
  request.body = text_of_member(line, "body");
  result.batch_request = std::move(request);
}

std::unique_ptr<ApiCall> parse_batch_request(const ApiContext& context, std::uint64_t line,
                                             const BatchRequest& request) {
  const ApiRequestInfo info{.id = str("batch-", line), .created_s = context.created_s};
  std::unique_ptr<ApiCall> call = find_endpoint(request.url)->parse(context, info, request.body);
  if (call->stream()) {
    throw ApiError(400, "stream: the answers of a batch are whole; pass false, or leave it out",
                   "stream");
  }
  return call;
}

void append_batch_line(std::string& out, std::uint64_t line, std::string_view custom_id,
                       std::string_view request_hash, int status, std::string_view body) {
  out += str(R"({"id": ")", kIdPrefix, line, R"(", "custom_id": )",
             custom_id.empty() ? "null" : custom_id, R"(, "response": {"status_code": )", status,
             R"(, "request_id": "req_)", line, request_hash.empty() ? "" : "_", request_hash,
             R"(", "body": )");
  out += body;
  out += R"(}, "error": null})";
  out += '\n';
}

std::optional<BatchAnswer> read_batch_answer(const Json& object) {
  if (!object.is_object() || !object.contains("custom_id") || !object.contains("response")) {
    return std::nullopt;
  }
  const auto id = object.at("id").get<std::string>();
  if (!id.starts_with(kIdPrefix)) return std::nullopt;
  BatchAnswer answer;
  const auto parsed =
      std::from_chars(id.data() + kIdPrefix.size(), id.data() + id.size(), answer.line);
  if (parsed.ec != std::errc{} || parsed.ptr != id.data() + id.size()) return std::nullopt;
  const Json& custom_id = object.at("custom_id");
  if (!custom_id.is_null()) answer.custom_id = json_text(custom_id);
  const Json& response = object.at("response");
  const auto request_id = response.value("request_id", "");
  const std::size_t hash = request_id.rfind('_') + 1;
  if (hash > std::string_view("req_").size()) answer.request_hash = request_id.substr(hash);
  answer.failed = response.at("status_code").get<int>() != 200;
  return answer;
}

using runtime::FinishReason;

BatchCall::BatchCall(std::unique_ptr<ApiCall> call) : call_(std::move(call)) {
  for (const runtime::Request& request : call_->requests()) {
    parts_.push_back({.open = request.sampling.n});
    prompt_tokens_ += request.prompt.size();
    answers_ += static_cast<std::uint64_t>(request.sampling.n);
  }
  open_answers_ = answers_;
}

template <typename Work>
void BatchCall::guarded(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    error_ = str("the answer cannot be written: ", error.what());
  }
}

std::vector<std::size_t> BatchCall::apply(std::size_t index, const runtime::Update& update) {
  Part& part = parts_.at(index);
  const bool refused = !update.error.empty();
  std::int32_t ended = update.finish == FinishReason::none ? 0 : 1;
  if (refused) ended = part.open;  // the only update of a rejected request
  part.open -= ended;
  open_answers_ -= static_cast<std::uint64_t>(ended);
  if (refused && error_.empty()) error_ = update.error;
  if (!refused && error_.empty()) guarded([&] { call_->apply(index, update, ignored_); });
  ignored_.clear();

  // One rejected request fails the whole line, so the others can be aborted.
  std::vector<std::size_t> stopped;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].open == 0 || parts_[i].abandoned) continue;
    if (error_.empty() && (i != index || !call_->stopped(i))) continue;
    parts_[i].abandoned = true;
    stopped.push_back(i);
  }
  return stopped;
}

std::string BatchCall::body() {
  std::string out;
  if (error_.empty()) guarded([&] { call_->finish(out); });
  return error_.empty() ? out : "";
}

}  // namespace nvllm::launcher
