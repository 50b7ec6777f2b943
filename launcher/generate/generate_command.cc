#include "launcher/generate_command.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/trace.h"
#include "launcher/engine_session.h"
#include "launcher/exit_code.h"
#include "launcher/generate/answer_book.h"
#include "launcher/generate/intake.h"
#include "launcher/generate/line_writer.h"
#include "launcher/generate/progress.h"
#include "launcher/generate/text_input.h"
#include "launcher/trace_file.h"
#include "runtime/open_model.h"

namespace nvllm::launcher {
namespace {

// What is read ahead of the first answer that is still missing: enough to keep the engine busy behind one
// long answer, and no more, so that an input may be of any length.
constexpr std::size_t kMostHeld = 4096;
constexpr std::size_t kHeldPerSequence = 8;
constexpr std::uint64_t kMostHeldBytes = std::uint64_t{256} << 20;
// Between two looks at the engine.
constexpr int kTasksAtOnce = 256;

constexpr Nanoseconds kNone{0};
constexpr Nanoseconds kLookEvery = std::chrono::milliseconds(100);
// How long a new line of input may wait while the engine has nothing to say.
constexpr Nanoseconds kInputWaits = std::chrono::milliseconds(10);

Asked asked_of(const Task& task) {
  const runtime::SamplingParams& sampling = task.request->sampling;
  return {.line = task.line,
          .id = task.id,
          .prompt = task.request->prompt,
          .n = sampling.n,
          .stop_token_ids = sampling.stop_token_ids,
          .logprobs = sampling.logprobs.has_value(),
          .prompt_logprobs = sampling.prompt_logprobs.has_value(),
          .text = task.text};
}

// Takes tasks in, lets the engine work on them, and writes the answers in the input's order.
class Generation {
 public:
  Generation(EngineSession& session, Intake& intake, LineWriter& writer, std::size_t max_num_seqs,
             Trace* trace)
      : session_(session),
        client_(session.client()),
        intake_(intake),
        writer_(writer),
        most_held_(std::max(kMostHeld, kHeldPerSequence * max_num_seqs)),
        trace_(trace),
        progress_(now_ns()) {}

  // From now on answers have text; before run().
  void use_text(const tokenizer::Tokenizer& tokenizer, bool pieces) {
    book_.use_text(tokenizer, pieces);
  }

  // Until all is done, or an Error.
  void run() {
    while (true) {
      take_in();
      if (ended_ && book_.empty()) break;
      take_updates();
      write_ready();
      show_progress();
    }
    statistics_ = client_.statistics();
  }

  // After an Error: what else is done. It may have been the output that failed; nobody is told twice.
  void write_rest() {
    try {
      writer_.write(book_.take_all_done());
    } catch (const Error&) {
      return;
    }
  }

  void summarize() {
    print(progress_.clear());
    if (!log_enabled(LogLevel::info)) return;
    std::string text = progress_.summary(book_.totals(), intake_.kept_lines(), now_ns());
    if (statistics_.kv_bytes_to_host + statistics_.kv_bytes_to_device > 0) {
      text += str("; keys and values moved: ", format_bytes(statistics_.kv_bytes_to_host),
                  " to the host, ", format_bytes(statistics_.kv_bytes_to_device), " to the device");
      if (statistics_.kv_bytes_by_host > 0) {
        text += str(", ", format_bytes(statistics_.kv_bytes_by_host), " read by the host's cores");
      }
    }
    print(format_log_line("launcher", LogLevel::info, text));
  }

  const AnswerBook::Totals& totals() const { return book_.totals(); }

 private:
  bool has_room() const { return book_.held() < most_held_ && book_.held_bytes() < kMostHeldBytes; }

  void take_in() {
    Task task;
    input_waits_ = false;
    const Trace::Span span(ended_ ? nullptr : trace_, "host", "read");
    for (int i = 0; i < kTasksAtOnce && !ended_ && has_room(); ++i) {
      const Intake::Found found = intake_.next(book_.empty() ? kLookEvery : kNone, task);
      ended_ = found == Intake::Found::end;
      input_waits_ = found == Intake::Found::nothing_yet;
      if (found != Intake::Found::task) return;
      begin(task);
    }
  }

  void begin(Task& task) {
    if (!task.answers.empty()) {
      book_.add(task.line, std::move(task.answers), task.read_bytes);
    } else if (!task.request) {
      book_.refuse(task.line, std::move(task.id), task.error, task.read_bytes);
    } else {
      book_.expect(asked_of(task), task.read_bytes);
      client_.submit(task.line, *task.request);
    }
  }

  void take_updates() {
    Nanoseconds limit = input_waits_ ? kInputWaits : kLookEvery;
    if (client_.unfinished() == 0) limit = kNone;
    const std::vector<runtime::Update> updates = client_.poll(limit);
    if (updates.empty()) return;
    const Trace::Span span(trace_, "host", "updates");
    for (const runtime::Update& update : updates) book_.take(update);
    for (const std::uint64_t request : book_.take_stopped()) client_.abort(request);
    writer_.write(book_.take_pieces());
  }

  void write_ready() {
    const std::string lines = book_.take_ready();
    if (lines.empty()) return;
    const Trace::Span span(trace_, "host", "write");
    writer_.write(lines);
  }

  void show_progress() {
    if (!shows_bar_) return;
    print(progress_.bar(book_.totals(), intake_.total_bytes(), now_ns()));
  }

  void print(const std::string& text) {
    if (!text.empty()) session_.workers().console().print(text);
  }

  EngineSession& session_;
  runtime::EngineClient& client_;
  runtime::EngineStatistics statistics_;  // when all is done
  Intake& intake_;
  LineWriter& writer_;
  const std::size_t most_held_;
  Trace* const trace_;
  AnswerBook book_;
  GenerateProgress progress_;
  // Not among answers on the same terminal.
  const bool shows_bar_ =
      log_enabled(LogLevel::info) && ::isatty(STDERR_FILENO) == 1 && ::isatty(writer_.fd()) == 0;
  bool ended_ = false;        // the input
  bool input_waits_ = false;  // it had nothing when it was asked last
};

// The model's wishes, then what the command line says.
runtime::SamplingParams sampling_defaults(const Options& options, const runtime::OpenModel& model) {
  runtime::SamplingParams params;
  if (options.generate.generation_config) params = sampling_defaults_of(model);
  apply_sampling(options.sampling, params);
  try {
    runtime::check_sampling_params(params);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return params;
}

Intake open_intake(const GenerateOptions& generate, const LineWriter& writer,
                   const runtime::SamplingParams& defaults) {
  if (generate.input.empty()) return {generate.prompts, defaults};
  LineReader reader(generate.input);
  if (writer.same_file_as(reader.fd())) {
    throw UsageError(str("--output ", generate.output, ": is the input; pass another file"));
  }
  return {std::move(reader), defaults};
}

// Texts of requests and answers, if the model has a tokenizer, which takes a moment to read: that is done
// while the workers start, or when it is needed before.
class Texts {
 public:
  explicit Texts(const Options& options) : options_(options) {}

  // From now on the intake understands text.
  void open(Intake& intake) {
    if (std::exchange(opened_, true)) return;
    const GenerateOptions& generate = options_.generate;
    model_ = TextModel::open_if_there(options_.model.path, options_.text.chat_template);
    if (model_) {
      input_.emplace(*model_, generate.stop);
      intake.use_text(*input_, generate.texts);
    } else if (!generate.texts.empty() || !generate.stop.empty() || generate.stream) {
      fail("--model ", options_.model.path,
           ": has no tokenizer, so only token ids are understood; pass ",
           "--prompt-ids, --stop-token-ids, and no --stream");
    }
  }

  const TextModel* model() const { return model_ ? &*model_ : nullptr; }

 private:
  const Options& options_;
  std::optional<TextModel> model_;
  std::optional<TextInput> input_;
  bool opened_ = false;
};

void write_profile(const std::string& path, EngineSession& session, Trace& own,
                   std::int64_t started_ns) {
  std::vector<ProcessTrace> traces = session.client().take_trace();
  ProcessTrace launcher{.name = "launcher", .events = own.take(), .dropped = own.dropped()};
  traces.insert(traces.begin(), std::move(launcher));
  write_trace(path, traces, started_ns);
}

// Whatever becomes of the run, what is done gets written. at_end: when all is.
int run_session(EngineSession& session, Generation& generation,
                const std::function<void()>& at_end) {
  std::optional<std::string> error;
  bool reader_gone = false;
  try {
    generation.run();
    at_end();
  } catch (const OutputClosed&) {
    reader_gone = true;
  } catch (const Error& failure) {
    error = failure.what();
    generation.write_rest();
  }
  generation.summarize();
  const int exit_code = session.finish(error);
  return reader_gone && exit_code == kExitFine ? kExitFailed : exit_code;
}

}  // namespace

int run_generate(const Options& options, std::int64_t started_ns) {
  runtime::OpenModel model = runtime::open_model(options.model);
  LineWriter writer(options.generate.output);
  Intake intake = open_intake(options.generate, writer, sampling_defaults(options, model));
  Texts texts(options);
  if (options.generate.resume) {
    texts.open(intake);
    intake.resume(options.generate.output);
  }
  // An empty one: a path that cannot be written to is told before the work, not after it.
  if (options.engine.profile) write_trace(options.profile, {}, started_ns);

  SessionOptions session_is = session_options(options);
  session_is.meanwhile = [&] { texts.open(intake); };
  EngineSession session(session_is, std::move(model));
  writer.begin_at(intake.kept_bytes());
  writer.set_give_up([&] { return session.workers().member().group().aborted(); });
  Trace trace;
  Generation generation(session, intake, writer,
                        static_cast<std::size_t>(options.engine.max_num_seqs),
                        options.engine.profile ? &trace : nullptr);
  if (texts.model() != nullptr) {
    generation.use_text(texts.model()->tokenizer(), options.generate.stream);
  }
  const int exit_code = run_session(session, generation, [&] {
    if (options.engine.profile) write_profile(options.profile, session, trace, started_ns);
  });
  const std::uint64_t failed = generation.totals().failed + intake.kept_failures();
  if (exit_code != kExitFine || failed == 0) return exit_code;
  const std::string& first = generation.totals().first_failure;
  fail(failed, failed == 1 ? " line failed" : " lines failed", first.empty() ? "" : "; the first, ",
       first);
}

}  // namespace nvllm::launcher
