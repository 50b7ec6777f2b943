// Implements the public interface with the launcher's sessions.
#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "launcher/cli/option_table.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/hub/pull.h"
#include "launcher/library/include/nvllm/nvllm.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_model.h"
#include "launcher/session/user_cache.h"
#include "runtime/model/open_model.h"

namespace nvllm {
namespace {

// Runs a function of the launcher; converts its errors to SessionErrors.
template <typename Function>
decltype(auto) translated(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const launcher::SessionFailed& error) {
    throw SessionError(error.what(), error.exit_code());
  } catch (const launcher::UsageError& error) {
    throw SessionError(error.what(), launcher::kExitUsage);
  } catch (const SessionError&) {
    throw;
  } catch (const std::exception& error) {
    throw SessionError(error.what());
  }
}

// Rejects an option that would have no effect: options about requests, or about files that the
// program writes.
void check_argument(const std::string& word) {
  if (!word.starts_with("--")) return;
  const std::string_view name = std::string_view(word).substr(0, word.find('='));
  const auto is_named = [&](const launcher::OptionRow& row) {
    return name == row.name || (row.second_name != nullptr && name == row.second_name);
  };
  const launcher::OptionRows used =
      launcher::join_rows({launcher::model_rows(), launcher::engine_rows(), launcher::group_rows(),
                           launcher::chat_template_rows()});
  // The model is Options::model, and a session writes no trace.
  const bool does_nothing = name == "--model" || name == "--profile";
  if (!does_nothing && std::ranges::any_of(used, is_named)) return;
  const auto& commands = launcher::commands();
  const auto generate = std::ranges::find(commands, std::string_view("generate"),
                                          [](const auto& command) { return command.name; });
  if (std::ranges::none_of(generate->rows, is_named)) return;  // --help, or not an option
  throw launcher::UsageError(str("arguments: ", name,
                                 ": is not about the model, the engine or the workers; leave it "
                                 "out (what a request asks for is in its SamplingParams)"));
}

launcher::Options parse(const Options& options) {
  // The command requires a prompt, which is not used.
  std::vector<std::string> words = {"generate", "--prompt-ids=1", "--dtype=" + options.dtype,
                                    "--log-level=warning"};
  if (!options.model.empty()) words.push_back("--model=" + options.model);
  if (options.tensor_parallel_size != 0) {
    words.push_back("--tp=" + std::to_string(options.tensor_parallel_size));
  }
  if (options.max_model_len != 0) {
    words.push_back("--max-model-len=" + std::to_string(options.max_model_len));
  }
  for (const std::string& word : options.arguments) check_argument(word);
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  launcher::Options parsed = launcher::parse_command_line(words);
  if (!parsed.message.empty()) fail("arguments: ask for help, which the program has; leave it out");
  const bool weights = parsed.model.format != runtime::LoadFormat::dummy;
  parsed.model.path = options.model.empty() ? launcher::default_model(launcher::process_environment)
                                            : launcher::find_model(options.model, weights,
                                                                   launcher::process_environment);
  launcher::apply_environment(launcher::process_environment, parsed.engine);
  return parsed;
}

runtime::Request to_internal(const Request& request) {
  const SamplingParams& from = request.sampling;
  return {.prompt = request.prompt,
          .sampling = {.n = from.n,
                       .temperature = from.temperature,
                       .top_p = from.top_p,
                       .top_k = from.top_k,
                       .min_p = from.min_p,
                       .repetition_penalty = from.repetition_penalty,
                       .presence_penalty = from.presence_penalty,
                       .frequency_penalty = from.frequency_penalty,
                       .seed = from.seed,
                       .max_tokens = from.max_tokens,
                       .min_tokens = from.min_tokens,
                       .ignore_eos = from.ignore_eos,
                       .stop_token_ids = from.stop_token_ids,
                       .logit_bias = from.logit_bias,
                       .allowed_token_ids = from.allowed_token_ids,
                       .bad_words = from.bad_words,
                       .logprobs = from.logprobs}};
}

TokenLogprob to_public(const runtime::TokenLogprob& from) {
  return {from.token, from.logprob, from.rank};
}

std::vector<TokenLogprobs> to_public(const std::vector<runtime::TokenLogprobs>& from) {
  std::vector<TokenLogprobs> all;
  for (const runtime::TokenLogprobs& each : from) {
    TokenLogprobs& one = all.emplace_back();
    one.chosen = to_public(each.chosen);
    for (const runtime::TokenLogprob& top : each.top) one.top.push_back(to_public(top));
  }
  return all;
}

FinishReason to_public(runtime::FinishReason reason) {
  switch (reason) {
    case runtime::FinishReason::none: return FinishReason::none;
    case runtime::FinishReason::stop: return FinishReason::stop;
    case runtime::FinishReason::length: return FinishReason::length;
    case runtime::FinishReason::abort: return FinishReason::abort;
  }
  return FinishReason::none;
}

launcher::SessionOptions session_options(const Options& options, const launcher::Options& parsed) {
  launcher::SessionOptions session = launcher::session_options(parsed);
  session.load_progress = options.show_progress;
  session.ends_process = false;  // the process belongs to the application
  return session;
}

}  // namespace

SessionError::SessionError(const std::string& message, int exit_code)
    : std::runtime_error(message), exit_code_(exit_code) {}
SessionError::~SessionError() = default;

class Session::Implementation {
 public:
  explicit Implementation(const Options& options)
      : parsed_(parse(options)), session_(session_options(options, parsed_)) {}

  // For calls that need the workers.
  launcher::EngineSession& running() {
    if (exit_code_) fail("the session has ended: make another one");
    return session_;
  }
  const launcher::EngineSession& session() const { return session_; }
  // Stops the workers once; further calls return the same.
  int finish() {
    if (!exit_code_) exit_code_ = session_.finish();
    return *exit_code_;
  }
  std::size_t unfinished() { return exit_code_ ? 0 : session_.client().unfinished(); }

  // Loaded at the first use: many programs use token ids only.
  const launcher::TextModel& text() {
    if (!text_) {
      text_ = launcher::TextModel::open(parsed_.model.path, parsed_.text.chat_template,
                                        parsed_.text.special_tokens_in_messages);
    }
    return *text_;
  }

 private:
  const launcher::Options parsed_;
  launcher::EngineSession session_;
  std::optional<launcher::TextModel> text_;
  std::optional<int> exit_code_;  // it has ended
};

Session::Session(const Options& options)
    : implementation_(translated([&] { return std::make_unique<Implementation>(options); })) {}
Session::~Session() = default;
Session::Session(Session&& other) noexcept = default;
Session& Session::operator=(Session&& other) noexcept = default;

std::vector<std::vector<Answer>> Session::generate(const std::vector<Request>& requests) {
  std::vector<runtime::Request> internal;
  for (const Request& request : requests) internal.push_back(to_internal(request));
  std::vector<std::vector<Answer>> all;
  translated([&] {
    for (const auto& answers : implementation_->running().generate(internal)) {
      auto& of_request = all.emplace_back();
      for (const launcher::EngineSession::Answer& answer : answers) {
        of_request.push_back({answer.tokens, to_public(answer.logprobs), to_public(answer.finish)});
      }
    }
  });
  return all;
}

void Session::submit(std::uint64_t id, const Request& request) {
  translated([&] { implementation_->running().client().submit(id, to_internal(request)); });
}

void Session::abort(std::uint64_t id) {
  translated([&] { implementation_->running().client().abort(id); });
}

std::vector<Update> Session::poll(double seconds) {
  constexpr double kLongest = 1e9;  // more does not fit a count of nanoseconds
  const double wanted = seconds > 0 ? std::min(seconds, kLongest) : 0;  // NaN: 0
  const auto limit = std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(wanted));
  std::vector<Update> updates;
  translated([&] {
    for (runtime::Update& from : implementation_->running().client().poll(limit)) {
      updates.push_back({from.request, from.index, std::move(from.tokens), to_public(from.logprobs),
                         to_public(from.finish), std::move(from.error)});
    }
  });
  return updates;
}

std::size_t Session::unfinished() const {
  return implementation_->unfinished();
}

std::vector<std::int32_t> Session::encode(std::string_view text) const {
  return translated([&] {
    const auto ids = implementation_->text().encode_prompt(text);
    return std::vector<std::int32_t>(ids.begin(), ids.end());
  });
}

std::string Session::decode(const std::vector<std::int32_t>& tokens) const {
  return translated([&] {
    const std::vector<tokenizer::TokenId> ids(tokens.begin(), tokens.end());
    return implementation_->text().tokenizer().decode(ids, true);
  });
}

SamplingParams Session::default_sampling() const {
  const runtime::SamplingParams& from = implementation_->session().sampling_defaults();
  SamplingParams params;
  params.temperature = from.temperature;
  params.top_p = from.top_p;
  params.top_k = from.top_k;
  params.min_p = from.min_p;
  params.repetition_penalty = from.repetition_penalty;
  params.max_tokens = from.max_tokens;
  return params;
}

std::int64_t Session::max_model_len() const {
  return implementation_->session().info().max_model_len;
}

int Session::finish() {
  return translated([&] { return implementation_->finish(); });
}

}  // namespace nvllm
