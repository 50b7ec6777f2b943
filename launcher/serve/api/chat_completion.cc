// POST /v1/chat/completions: answers conversations.
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/serve/api/chat_fields.h"
#include "launcher/serve/api/generation_call.h"
#include "launcher/serve/api/generation_fields.h"
#include "launcher/serve/api/response_json.h"

namespace nvllm::launcher {
namespace {

// Chunks of a stream and the complete message are two forms of the same object.
class ChatCompletionCall final : public GenerationCall {
 public:
  ChatCompletionCall(const ApiContext& context, const ApiRequestInfo& info,
                     const ChatFields& fields, ChatPrompt prompt)
      : GenerationCall(context, info, fields, "chatcmpl-") {
    answer_options().include_reasoning = fields.include_reasoning;
    answer_options().parallel_tool_calls = fields.parallel_tool_calls;
    add_conversation(std::move(prompt), "messages",
                     fields.has_tools && fields.tool_choice != "none");
    make_head();
  }

 private:
  void make_head() {
    head_ = R"({"id":)";
    append_json_string(head_, id());
    head_ += stream() ? R"(,"object":"chat.completion.chunk","created":)"
                      : R"(,"object":"chat.completion","created":)";
    append_json_number(head_, created_s());
    head_ += R"(,"model":)";
    append_json_string(head_, model());
    head_ += R"(,"choices":[)";
  }

  // --- A stream ---

  void open_chunk(std::size_t index, std::string& out) const {
    out += "data: ";
    out += head_;
    out += R"({"index":)";
    append_json_number(out, static_cast<std::int64_t>(index));
    out += R"(,"delta":{)";
  }

  // Ends a chunk after its choice.
  void close_chunk(std::size_t index, std::string& out) const {
    if (fields().continuous_usage_stats) {
      out += R"(}],"usage":)";
      append_usage(out, usage_of(index));
      out += "}\n\n";
    } else {
      out += fields().include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n";
    }
  }

  void write_begin(std::string& out) override {
    for (std::size_t i = 0; i < choice_count(); ++i) {
      open_chunk(i, out);
      out += R"("role":"assistant","content":""},"logprobs":null,"finish_reason":null)";
      if (fields().return_token_ids) {
        out += R"(,"prompt_token_ids":)";
        append_json_ids(out, prompt_of(i).ids);
      }
      close_chunk(i, out);
    }
  }

  void write_delta(std::size_t index, bool last, std::string& out) override {
    const AnswerStream& answer = choice(index).answer;
    if (!choice(index).answer.delta().empty()) {
      open_chunk(index, out);
      append_delta(choice(index).answer.delta().text, out);
      out += R"(},"logprobs":)";
      append_logprobs(index, out);
      out += R"(,"finish_reason":null)";
      append_token_ids(index, out);
      close_chunk(index, out);
    }
    if (!last) return;
    open_chunk(index, out);
    out += R"(},"logprobs":null)";
    append_finish(answer, out);
    close_chunk(index, out);
  }

  static void append_delta(const OutputDelta& delta, std::string& out) {
    const char* separator = "";
    for (const char* const name : {"reasoning", "reasoning_content"}) {
      if (delta.reasoning.empty()) break;
      append_member(std::exchange(separator, ","), name, delta.reasoning, out);
    }
    if (!delta.content.empty()) {
      append_member(std::exchange(separator, ","), "content", delta.content, out);
    }
    if (delta.tool_calls.empty()) return;
    out += separator;
    out += R"("tool_calls":)";
    append_json_list(out, delta.tool_calls, append_tool_call_delta);
  }

  static void append_member(const char* separator, const char* name, std::string_view text,
                            std::string& out) {
    out += separator;
    out += '"';
    out += name;
    out += "\":\"";
    append_json_escaped(out, text);
    out += '"';
  }

  static void append_tool_call_delta(std::string& out, const ToolCallDelta& call) {
    out += R"({"index":)";
    append_json_number(out, std::int64_t{call.index});
    if (!call.id.empty()) {
      append_member(",", "id", call.id, out);
      out += R"(,"type":"function")";
    }
    out += R"(,"function":{)";
    if (!call.name.empty()) append_member("", "name", call.name, out);
    append_member(call.name.empty() ? "" : ",", "arguments", call.arguments, out);
    out += "}}";
  }

  void write_end(std::string& out) override { append_stream_end(out, head_, usage()); }

  // --- The whole body ---

  void write_body(std::string& out) override {
    out += head_;
    for (std::size_t i = 0; i < choice_count(); ++i) {
      if (i > 0) out += ',';
      out += R"({"index":)";
      append_json_number(out, static_cast<std::int64_t>(i));
      out += R"(,"message":)";
      append_message(choice(i).answer.delta().text, out);
      out += R"(,"logprobs":)";
      append_logprobs(i, out);
      append_finish(choice(i).answer, out);
      append_token_ids(i, out);
      out += '}';
    }
    out += R"(],"usage":)";
    append_usage(out, usage());
    append_prompt(out);
    out += '}';
  }

  static void append_message(const OutputDelta& text, std::string& out) {
    out += R"({"role":"assistant","content":)";
    if (text.content.empty() && !text.tool_calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, text.content);
    }
    out += R"(,"refusal":null)";
    for (const char* const name : {"reasoning", "reasoning_content"}) {
      if (!text.reasoning.empty()) append_member(",", name, text.reasoning, out);
    }
    if (!text.tool_calls.empty()) {
      out += R"(,"tool_calls":)";
      append_json_list(out, text.tool_calls, append_tool_call);
    }
    out += '}';
  }

  static void append_tool_call(std::string& out, const ToolCallDelta& call) {
    out += '{';
    append_member("", "id", call.id, out);
    out += R"(,"type":"function","function":{)";
    append_member("", "name", call.name, out);
    append_member(",", "arguments", call.arguments, out);
    out += "}}";
  }

  // The parts of the body about the prompt.
  void append_prompt(std::string& out) {
    const Prompt& prompt = prompts().front();
    if (fields().sampling.prompt_logprobs) {
      out += R"(,"prompt_logprobs":)";
      append_prompt_logprobs(out, names(), prompt.logprobs);
    }
    if (fields().return_token_ids) {
      out += R"(,"prompt_token_ids":)";
      append_json_ids(out, prompt.ids);
    }
  }

  // --- Shared by both ---

  void append_logprobs(std::size_t index, std::string& out) {
    if (fields().logprobs) {
      append_chat_logprobs(out, names(), choice(index).answer.delta().logprobs);
    } else {
      out += "null";
    }
  }

  static void append_finish(const AnswerStream& answer, std::string& out) {
    out += R"(,"finish_reason":")";
    out += answer.finish_reason();
    out += R"(","stop_reason":)";
    append_stop_reason(out, answer.stop_reason());
  }

  void append_token_ids(std::size_t index, std::string& out) {
    if (!fields().return_token_ids) return;
    out += R"(,"token_ids":)";
    append_json_ids(out, choice(index).answer.delta().token_ids);
  }

  std::string head_;  // of every chunk and of the body, up to the choices
};

}  // namespace

std::unique_ptr<ApiCall> parse_chat_completion(const ApiContext& context,
                                               const ApiRequestInfo& info, std::string_view body) {
  const ChatFields fields = read_chat_fields(context, parse_body(body));
  return std::make_unique<ChatCompletionCall>(context, info, fields,
                                              chat_prompt_of(context, fields, body));
}

}  // namespace nvllm::launcher
