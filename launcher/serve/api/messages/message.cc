// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_text.h"
#include "launcher/serve/api/answer_stream.h"
#include "launcher/serve/api/generation_call.h"
#include "launcher/serve/api/messages/message_fields.h"
#include "launcher/serve/api/response_json.h"

namespace nvllm::launcher {
namespace {

using Kind = AnswerBlock::Kind;

// The arguments as the object that clients expect; {} if max_tokens truncated them.
std::string_view object_of(std::string_view arguments) {
  constexpr std::string_view kNone = "{}";
  if (arguments.empty()) return kNone;
  try {
    return parse_json(arguments).is_object() ? arguments : kNone;
  } catch (const nlohmann::json::parse_error&) {
    return kNone;
  }
}

void append_block(std::string& out, const AnswerBlock& block) {
  switch (block.kind) {
    case Kind::reasoning:
      out += R"({"type":"thinking","thinking":)";
      append_json_string(out, block.text);
      out += R"(,"signature":""})";
      return;
    case Kind::text:
      out += R"({"type":"text","text":)";
      append_json_string(out, block.text);
      out += '}';
      return;
    case Kind::tool_call: break;
  }
  out += R"({"type":"tool_use","id":)";
  append_json_string(out, block.id);
  out += R"(,"name":)";
  append_json_string(out, block.name);
  out += R"(,"input":)";
  out += object_of(block.text);
  out += '}';
}

// A block without its text.
void append_empty_block(std::string& out, const AnswerBlock& block) {
  append_block(out, {.kind = block.kind, .id = block.id, .name = block.name});
}

// Writes the events of content blocks.
class BlockEvents final : public AnswerBlocks::Listener {
 public:
  explicit BlockEvents(std::string& out) : out_(out) {}

  void opened(std::size_t index, const AnswerBlock& block) override {
    begin("content_block_start", index);
    out_ += R"(,"content_block":)";
    append_empty_block(out_, block);
    out_ += "}\n\n";
  }

  void grew(std::size_t index, const AnswerBlock& block, std::string_view by) override {
    begin("content_block_delta", index);
    switch (block.kind) {
      case Kind::reasoning: out_ += R"(,"delta":{"type":"thinking_delta","thinking":)"; break;
      case Kind::text: out_ += R"(,"delta":{"type":"text_delta","text":)"; break;
      case Kind::tool_call: out_ += R"(,"delta":{"type":"input_json_delta","partial_json":)"; break;
    }
    append_json_string(out_, by);
    out_ += "}}\n\n";
  }

  void closed(std::size_t index, const AnswerBlock& /*block*/) override {
    begin("content_block_stop", index);
    out_ += "}\n\n";
  }

 private:
  void begin(std::string_view event, std::size_t index) {
    out_.append("event: ").append(event).append("\ndata: {\"type\":\"").append(event);
    out_ += R"(","index":)";
    append_json_number(out_, static_cast<std::int64_t>(index));
  }

  std::string& out_;
};

class MessageCall final : public GenerationCall {
 public:
  MessageCall(const ApiContext& context, const ApiRequestInfo& info, const MessageFields& fields,
              ChatPrompt prompt)
      : GenerationCall(context, info, fields, "msg_") {
    answer_options().parallel_tool_calls = fields.parallel_tool_calls;
    add_conversation(std::move(prompt), "messages", fields.has_tools && fields.uses_tools);
  }

  void fail(int status, std::string_view message, std::string& out) override {
    if (stream())
      out.append("event: error\ndata: ").append(message_error_body(status, message)) += "\n\n";
  }

 private:
  // Up to the content.
  void append_head(std::string& out) const {
    out += R"({"id":)";
    append_json_string(out, id());
    out += R"(,"type":"message","role":"assistant","model":)";
    append_json_string(out, model());
    out += R"(,"content":[)";
  }

  // Anthropic counts cached prompt tokens separately from the others.
  static void append_message_usage(std::string& out, const Usage& usage) {
    out += R"("usage":{"input_tokens":)";
    append_json_number(out, usage.prompt_tokens - usage.cached_tokens);
    out += R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)";
    append_json_number(out, usage.cached_tokens);
    out += R"(,"output_tokens":)";
    append_json_number(out, usage.completion_tokens);
    out += '}';
  }

  void append_stop(std::string& out) {
    const AnswerStream& answer = choice(0).answer;
    out += R"("stop_reason":)";
    if (answer.met_stop_string()) {
      out += R"("stop_sequence")";
    } else if (answer.finish_reason() == "tool_calls") {
      out += R"("tool_use")";
    } else if (answer.finish_reason() == "length") {
      out += R"("max_tokens")";
    } else {
      out += answer.finish_reason() == "stop" ? R"("end_turn")" : "null";
    }
    out += R"(,"stop_sequence":)";
    if (answer.met_stop_string()) {
      append_json_string(out, answer.stop_reason().text);
    } else {
      out += "null";
    }
  }

  void write_begin(std::string& out) override {
    out += "event: message_start\ndata: {\"type\":\"message_start\",\"message\":";
    append_head(out);
    out += R"(],"stop_reason":null,"stop_sequence":null,)";
    append_message_usage(out, usage());
    out += "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n";
  }

  void write_delta(std::size_t /*index*/, bool last, std::string& out) override {
    BlockEvents events(out);
    blocks_.add(choice(0).answer.delta().text, &events);
    if (last) blocks_.close(&events);
  }

  void write_end(std::string& out) override {
    out += "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{";
    append_stop(out);
    out += "},";
    append_message_usage(out, usage());
    out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  }

  void write_body(std::string& out) override {
    blocks_.add(choice(0).answer.delta().text);
    append_head(out);
    for (const AnswerBlock& block : blocks_.blocks()) {
      if (&block != blocks_.blocks().data()) out += ',';
      append_block(out, block);
    }
    out += "],";
    append_stop(out);
    out += ',';
    append_message_usage(out, usage());
    out += '}';
  }

  AnswerBlocks blocks_;
};

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string message_error_body(int status, std::string_view message, std::string_view /*param*/) {
  std::string out = R"({"type":"error","error":{"type":")";
  out += anthropic_type(status);
  out += R"(","message":)";
  append_json_string(out, message);
  out += "}}";
  return out;
}

std::unique_ptr<ApiCall> parse_message(const ApiContext& context, const ApiRequestInfo& info,
                                       std::string_view body) {
  const MessageFields fields = read_message_fields(context, body);
  if (!fields.max_tokens) throw ApiError(400, "max_tokens: missing", "max_tokens");
  return std::make_unique<MessageCall>(context, info, fields,
                                       message_prompt_of(context, fields, body));
}

std::string respond_count_tokens(const ApiContext& context, std::string_view body) {
  const MessageFields fields = read_message_fields(context, body);
  std::string out = R"({"input_tokens":)";
  const ChatPrompt prompt = message_prompt_of(context, fields, body);
  append_json_number(out, static_cast<std::int64_t>(prompt.ids.size()));
  out += '}';
  return out;
}

}  // namespace nvllm::launcher
