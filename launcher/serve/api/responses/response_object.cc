#include "launcher/serve/api/responses/response_object.h"

#include "launcher/serve/api/json_append.h"

namespace nvllm::launcher {
namespace {

using Kind = AnswerBlock::Kind;

std::string_view name_of(ResponseStatus status) {
  switch (status) {
    case ResponseStatus::in_progress: return "in_progress";
    case ResponseStatus::completed: return "completed";
    case ResponseStatus::incomplete: return "incomplete";
    case ResponseStatus::failed: break;
  }
  return "failed";
}

std::string_view prefix_of(Kind kind) {
  switch (kind) {
    case Kind::reasoning: return "rs_";
    case Kind::text: return "msg_";
    case Kind::tool_call: break;
  }
  return "fc_";
}

void append_usage_object(std::string& out, const ResponseObject::State& state) {
  const Usage& usage = *state.usage;
  out += R"({"input_tokens":)";
  append_json_number(out, usage.prompt_tokens);
  out += R"(,"input_tokens_details":{"cached_tokens":)";
  append_json_number(out, usage.cached_tokens);
  out += R"(},"output_tokens":)";
  append_json_number(out, usage.completion_tokens);
  out += R"(,"output_tokens_details":{"reasoning_tokens":)";
  append_json_number(out, state.reasoning_tokens);
  out += R"(},"total_tokens":)";
  append_json_number(out, usage.prompt_tokens + usage.completion_tokens);
  out += '}';
}

// Request values repeated in the response.
std::string repeated_fields(const ResponseFields& fields) {
  std::string out = R"(,"background":false,"instructions":)" + fields.instructions;
  out += R"(,"max_output_tokens":)";
  if (fields.max_tokens) {
    append_json_number(out, std::int64_t{*fields.max_tokens});
  } else {
    out += "null";
  }
  out += R"(,"metadata":)" + fields.metadata;
  out += R"(,"parallel_tool_calls":)";
  out += fields.parallel_tool_calls ? "true" : "false";
  out += R"(,"previous_response_id":null,"reasoning":{"effort":)";
  if (fields.reasoning_effort.empty()) {
    out += "null";
  } else {
    append_json_string(out, fields.reasoning_effort);
  }
  out += R"(,"summary":null},"service_tier":"default","store":false,"temperature":)";
  append_json_number(out, static_cast<float>(fields.sampling.temperature));
  out += R"(,"text":{"format":{"type":"text"}},"tool_choice":)";
  append_json_string(out, fields.tool_choice);
  out += R"(,"tools":)" + fields.tools;
  out += R"(,"top_logprobs":0,"top_p":)";
  append_json_number(out, static_cast<float>(fields.sampling.top_p));
  out += R"(,"truncation":"disabled","user":)" + fields.user;
  return out;
}

}  // namespace

ResponseObject::ResponseObject(std::string_view id, std::int64_t created_s, std::string_view model,
                               const ResponseFields& fields)
    : id_(id.substr(id.find('_') + 1)), tail_(repeated_fields(fields)) {
  head_ = R"({"id":)";
  append_json_string(head_, id);
  head_ += R"(,"object":"response","created_at":)";
  append_json_number(head_, created_s);
  head_ += R"(,"model":)";
  append_json_string(head_, model);
}

void ResponseObject::append(std::string& out, const State& state) const {
  out += head_;
  out.append(R"(,"status":")").append(name_of(state.status)).append(R"(","error":)");
  if (state.error.empty()) {
    out += "null";
  } else {
    out += R"({"code":"server_error","message":)";
    append_json_string(out, state.error);
    out += '}';
  }
  out += R"(,"incomplete_details":)";
  if (state.incomplete_reason.empty()) {
    out += "null";
  } else {
    out.append(R"({"reason":")").append(state.incomplete_reason).append(R"("})");
  }
  out += R"(,"output":[)";
  for (std::size_t i = 0; state.blocks != nullptr && i < state.blocks->size(); ++i) {
    if (i > 0) out += ',';
    const bool is_last = i + 1 == state.blocks->size();
    append_item(out, i, (*state.blocks)[i], is_last ? state.status : ResponseStatus::completed,
                true);
  }
  out += ']';
  out += tail_;
  out += R"(,"usage":)";
  if (state.usage == nullptr) {
    out += "null";
  } else {
    append_usage_object(out, state);
  }
  out += '}';
}

std::string ResponseObject::item_id(std::size_t index, const AnswerBlock& block) const {
  return str(prefix_of(block.kind), id_, "_", index);
}

void ResponseObject::append_item(std::string& out, std::size_t index, const AnswerBlock& block,
                                 ResponseStatus status, bool with_content) const {
  out += R"({"id":)";
  append_json_string(out, item_id(index, block));
  // Items have no status "failed".
  out += R"(,"status":")";
  out += name_of(status == ResponseStatus::failed ? ResponseStatus::incomplete : status);
  out += R"(","type":)";
  if (block.kind == Kind::tool_call) {
    out += R"("function_call","call_id":)";
    append_json_string(out, block.id);
    out += R"(,"name":)";
    append_json_string(out, block.name);
    out += R"(,"arguments":)";
    append_json_string(out, with_content ? block.text : "");
    out += '}';
    return;
  }
  out += block.kind == Kind::text ? R"("message","role":"assistant","content":[)"
                                  : R"("reasoning","summary":[],"content":[)";
  if (with_content) append_content_part(out, block, block.text);
  out += "]}";
}

void append_content_part(std::string& out, const AnswerBlock& block, std::string_view text) {
  const bool is_text = block.kind == Kind::text;
  out += is_text ? R"({"type":"output_text","annotations":[],"logprobs":[],"text":)"
                 : R"({"type":"reasoning_text","text":)";
  append_json_string(out, text);
  out += '}';
}

}  // namespace nvllm::launcher
