// POST /v1/responses: OpenAI's Responses API, without stored state.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/serve/api/answer_stream.h"
#include "launcher/serve/api/generation_call.h"
#include "launcher/serve/api/response_json.h"
#include "launcher/serve/api/responses/response_fields.h"

namespace nvllm::launcher {
namespace {

using Kind = AnswerBlock::Kind;

// --- The response object, and the items of its output ---

enum class ResponseStatus { in_progress, completed, incomplete, failed };

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

// The constant parts of a response in all its states. Immutable.
class ResponseObject {
 public:
  ResponseObject(std::string_view id, std::int64_t created_s, std::string_view model,
                 const ResponseFields& fields);

  struct State {
    ResponseStatus status = ResponseStatus::in_progress;
    const std::vector<AnswerBlock>* blocks = nullptr;  // the output; null: none yet
    const Usage* usage = nullptr;
    std::int64_t reasoning_tokens = 0;
    std::string_view incomplete_reason = "";  // "max_output_tokens"
    std::string_view error = "";              // its message
  };
  void append(std::string& out, const State& state) const;

  // "msg_...": the id of this block.
  std::string item_id(std::size_t index, const AnswerBlock& block) const;
  // An item with its content, or without it (when it is added).
  void append_item(std::string& out, std::size_t index, const AnswerBlock& block,
                   ResponseStatus status, bool with_content) const;

 private:
  std::string id_;    // without its prefix
  std::string head_;  // up to the status
  std::string tail_;  // request values, after the output
};

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

// {"type": "output_text", ...} or {"type": "reasoning_text", ...}
void append_content_part(std::string& out, const AnswerBlock& block, std::string_view text) {
  const bool is_text = block.kind == Kind::text;
  out += is_text ? R"({"type":"output_text","annotations":[],"logprobs":[],"text":)"
                 : R"({"type":"reasoning_text","text":)";
  append_json_string(out, text);
  out += '}';
}

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

// --- The answer, as a stream of events or as one object ---

// Writes a stream's events, which are numbered. A block is an output item; in messages and
// reasoning its text is a part of the item's content.
class ResponseEvents final : public AnswerBlocks::Listener {
 public:
  explicit ResponseEvents(const ResponseObject& response) : response_(response) {}

  // Sets where later events are written.
  void write_to(std::string& out) { out_ = &out; }
  // The status with which items are closed.
  void set_status(ResponseStatus status) { status_ = status; }

  void write_response(std::string_view event, const ResponseObject::State& state) {
    begin(event);
    *out_ += R"(,"response":)";
    response_.append(*out_, state);
    end();
  }

  void write_error(int status, std::string_view message) {
    begin("error");
    *out_ += R"(,"code":)";
    append_json_string(*out_, std::to_string(status));
    *out_ += R"(,"message":)";
    append_json_string(*out_, message);
    *out_ += R"(,"param":null)";
    end();
  }

  void opened(std::size_t index, const AnswerBlock& block) override {
    write_item("response.output_item.added", index, block, ResponseStatus::in_progress, false);
    if (block.kind != Kind::tool_call) write_part("response.content_part.added", index, block, "");
  }

  void grew(std::size_t index, const AnswerBlock& block, std::string_view by) override {
    begin_in_item(delta_event(block.kind), index, block);
    *out_ += R"(,"delta":)";
    append_json_string(*out_, by);
    if (block.kind == Kind::text) *out_ += R"(,"logprobs":[])";
    end();
  }

  void closed(std::size_t index, const AnswerBlock& block) override {
    begin_in_item(done_event(block.kind), index, block);
    *out_ += block.kind == Kind::tool_call ? R"(,"arguments":)" : R"(,"text":)";
    append_json_string(*out_, block.text);
    if (block.kind == Kind::text) *out_ += R"(,"logprobs":[])";
    if (block.kind == Kind::tool_call) {
      *out_ += R"(,"name":)";
      append_json_string(*out_, block.name);
    }
    end();
    if (block.kind != Kind::tool_call) {
      write_part("response.content_part.done", index, block, block.text);
    }
    write_item("response.output_item.done", index, block, status_, true);
  }

 private:
  static std::string_view delta_event(Kind kind) {
    if (kind == Kind::reasoning) return "response.reasoning_text.delta";
    return kind == Kind::text ? "response.output_text.delta"
                              : "response.function_call_arguments.delta";
  }
  static std::string_view done_event(Kind kind) {
    if (kind == Kind::reasoning) return "response.reasoning_text.done";
    return kind == Kind::text ? "response.output_text.done"
                              : "response.function_call_arguments.done";
  }

  void begin(std::string_view event) {
    out_->append("event: ").append(event).append("\ndata: {\"type\":\"").append(event);
    *out_ += R"(","sequence_number":)";
    append_json_number(*out_, next_number_++);
  }

  void begin_in_item(std::string_view event, std::size_t index, const AnswerBlock& block) {
    begin(event);
    *out_ += R"(,"item_id":)";
    append_json_string(*out_, response_.item_id(index, block));
    append_output_index(index);
    if (block.kind != Kind::tool_call) *out_ += R"(,"content_index":0)";
  }

  void append_output_index(std::size_t index) {
    *out_ += R"(,"output_index":)";
    append_json_number(*out_, static_cast<std::int64_t>(index));
  }

  void write_item(std::string_view event, std::size_t index, const AnswerBlock& block,
                  ResponseStatus status, bool with_content) {
    begin(event);
    append_output_index(index);
    *out_ += R"(,"item":)";
    response_.append_item(*out_, index, block, status, with_content);
    end();
  }

  void write_part(std::string_view event, std::size_t index, const AnswerBlock& block,
                  std::string_view text) {
    begin_in_item(event, index, block);
    *out_ += R"(,"part":)";
    append_content_part(*out_, block, text);
    end();
  }

  void end() { *out_ += "}\n\n"; }

  const ResponseObject& response_;
  std::string* out_ = nullptr;
  ResponseStatus status_ = ResponseStatus::completed;
  std::int64_t next_number_ = 0;
};

class ResponseCall final : public GenerationCall {
 public:
  ResponseCall(const ApiContext& context, const ApiRequestInfo& info, const ResponseFields& fields,
               ChatPrompt prompt)
      : GenerationCall(context, info, fields, "resp_"),
        response_(id(), created_s(), model(), fields),
        events_(response_) {
    answer_options().parallel_tool_calls = fields.parallel_tool_calls;
    add_conversation(std::move(prompt), "input", fields.has_tools && fields.tool_choice != "none");
  }

  void fail(int status, std::string_view message, std::string& out) override {
    if (!stream()) return;
    events_.write_to(out);
    events_.write_error(status, message);
    events_.write_response(
        "response.failed",
        {.status = ResponseStatus::failed, .blocks = &blocks_.blocks(), .error = message});
  }

 private:
  bool is_whole() {
    const std::string_view reason = choice(0).answer.finish_reason();
    return reason == "stop" || reason == "tool_calls";
  }

  // Reasoning tokens are counted by encoding the reasoning again.
  std::int64_t reasoning_tokens() const {
    std::size_t tokens = 0;
    for (const AnswerBlock& block : blocks_.blocks()) {
      if (block.kind != Kind::reasoning || context().text == nullptr) continue;
      tokens += context().text->tokenizer().encode(block.text, false).size();
    }
    return static_cast<std::int64_t>(tokens);
  }

  ResponseObject::State final_state(const Usage& usage) {
    ResponseObject::State state{.status = ResponseStatus::completed,
                                .blocks = &blocks_.blocks(),
                                .usage = &usage,
                                .reasoning_tokens = reasoning_tokens()};
    if (is_whole()) return state;
    state.status = ResponseStatus::incomplete;
    if (choice(0).answer.finish_reason() == "length") state.incomplete_reason = "max_output_tokens";
    return state;
  }

  void write_begin(std::string& out) override {
    events_.write_to(out);
    events_.write_response("response.created", {});
    events_.write_response("response.in_progress", {});
  }

  void write_delta(std::size_t /*index*/, bool last, std::string& out) override {
    events_.write_to(out);
    blocks_.add(choice(0).answer.delta().text, &events_);
    if (!last) return;
    if (!is_whole()) events_.set_status(ResponseStatus::incomplete);
    blocks_.close(&events_);
  }

  void write_end(std::string& out) override {
    events_.write_to(out);
    const Usage all = usage();
    const ResponseObject::State state = final_state(all);
    events_.write_response(
        state.status == ResponseStatus::completed ? "response.completed" : "response.incomplete",
        state);
  }

  void write_body(std::string& out) override {
    blocks_.add(choice(0).answer.delta().text);
    const Usage all = usage();
    response_.append(out, final_state(all));
  }

  ResponseObject response_;
  ResponseEvents events_;
  AnswerBlocks blocks_;
};

}  // namespace

std::unique_ptr<ApiCall> parse_response(const ApiContext& context, const ApiRequestInfo& info,
                                        std::string_view body) {
  const ResponseFields fields = read_response_fields(context, body);
  return std::make_unique<ResponseCall>(context, info, fields,
                                        response_prompt_of(context, fields, body));
}

}  // namespace nvllm::launcher
