// The command generate: answers prompts from a file or the command line, as JSON lines.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/trace.h"
#include "base/visible_text.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/generate/answer_queue.h"
#include "launcher/generate/batch.h"
#include "launcher/generate/request_line.h"
#include "launcher/generate/request_source.h"
#include "launcher/generate/run_record.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_io.h"
#include "launcher/session/trace_file.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {
namespace {

// Limits of reading ahead of the first missing answer. They are high enough to keep the engine busy
// after one long answer, and bound the memory for input of any length.
constexpr std::size_t kMaxHeld = 4096;
constexpr std::size_t kHeldPerSequence = 8;
constexpr std::uint64_t kMaxHeldBytes = std::uint64_t{256} << 20;
// Tasks read between two polls of the engine.
constexpr int kTasksAtOnce = 256;

constexpr Nanoseconds kNone{0};
constexpr Nanoseconds kPollInterval = std::chrono::milliseconds(100);
// Maximum delay of a new input line while the engine sends no update.
constexpr Nanoseconds kInputInterval = std::chrono::milliseconds(10);

RequestInfo info_of(const Task& task) {
  RequestInfo info{.line = task.line, .id = task.parsed.id, .hash = task.parsed.hash};
  if (!task.parsed.request) return info;
  const runtime::SamplingParams& sampling = task.parsed.request->sampling;
  info.prompt = task.parsed.request->prompt;
  info.n = sampling.n;
  info.stop_token_ids = sampling.stop_token_ids;
  info.logprobs = sampling.logprobs.has_value();
  info.prompt_logprobs = sampling.prompt_logprobs.has_value();
  info.text = task.parsed.text;
  return info;
}

// Reads tasks, submits them to the engine, and writes the answers in input order.
class Generation {
 public:
  // api: context of the endpoints, for batch lines.
  Generation(EngineSession& session, RequestSource& source, LineWriter& writer, ApiContext api,
             std::size_t max_num_seqs, Trace* trace)
      : session_(session),
        client_(session.client()),
        api_(std::move(api)),
        source_(source),
        writer_(writer),
        max_held_(std::max(kMaxHeld, kHeldPerSequence * max_num_seqs)),
        trace_(trace),
        progress_(now_ns()),
        owed_(session, [this] { write_owed(); }) {}

  // From now on answers have text; call it before run().
  void use_text(const tokenizer::Tokenizer& tokenizer, bool pieces) {
    queue_.use_text(tokenizer, pieces);
  }

  // Runs until everything is done, or throws an Error.
  void run() {
    const std::unique_lock lock(answers_);
    while (true) {
      read_tasks();
      if (ended_ && queue_.empty()) break;
      apply_updates();
      write_ready();
      show_progress();
    }
    statistics_ = client_.statistics();
  }

  // After an Error: writes the other finished answers. If the output itself failed, that is already
  // reported.
  void write_rest() {
    const std::lock_guard lock(answers_);
    write_all_done();
  }

  void summarize() {
    draw(progress_.clear());
    if (!log_enabled(LogLevel::info)) return;
    std::string text = progress_.summary(queue_.totals(), source_.kept_lines(), now_ns());
    if (statistics_.kv_bytes_to_host + statistics_.kv_bytes_to_device > 0) {
      text += str("; keys and values moved: ", format_bytes(statistics_.kv_bytes_to_host),
                  " to the host, ", format_bytes(statistics_.kv_bytes_to_device), " to the device");
      if (statistics_.kv_bytes_by_host > 0) {
        text += str(", ", format_bytes(statistics_.kv_bytes_by_host), " read by the host's cores");
      }
    }
    session_.workers().console().print(format_log_line("launcher", LogLevel::info, text));
  }

  const AnswerQueue::Totals& totals() const { return queue_.totals(); }

 private:
  void write_all_done() {
    try {
      writer_.write(queue_.take_all_done());
    } catch (const Error&) {
      return;
    }
  }

  // Called by another thread when the process is about to end while this one reads a line.
  void write_owed() {
    const std::unique_lock lock(answers_, std::try_to_lock);
    if (lock) write_all_done();
  }

  // Runs work on text, which may take long, without the lock: finished answers can be written
  // meanwhile.
  template <typename Work>
  auto without_lock(const Work& work) {
    struct Unlocked {
      std::mutex& mutex;
      explicit Unlocked(std::mutex& locked) : mutex(locked) { mutex.unlock(); }
      Unlocked(const Unlocked&) = delete;
      Unlocked& operator=(const Unlocked&) = delete;
      ~Unlocked() { mutex.lock(); }
    };
    const Unlocked unlocked(answers_);
    return work();
  }

  bool may_read_ahead() const {
    return queue_.held() < max_held_ && queue_.held_bytes() < kMaxHeldBytes;
  }

  void read_tasks() {
    Task task;
    input_idle_ = false;
    const Trace::Span span(ended_ ? nullptr : trace_, "host", "read");
    for (int i = 0; i < kTasksAtOnce && !ended_ && may_read_ahead(); ++i) {
      const Nanoseconds limit = queue_.empty() ? kPollInterval : kNone;
      const RequestSource::Found found = without_lock([&] { return source_.next(limit, task); });
      ended_ = found == RequestSource::Found::end;
      input_idle_ = found == RequestSource::Found::nothing_yet;
      if (found != RequestSource::Found::task) return;
      start(task);
    }
  }

  void start(Task& task) {
    const RequestLine& parsed = task.parsed;
    if (!task.answers.empty()) {
      queue_.add_finished(task.line, std::move(task.answers), task.read_bytes);
    } else if (parsed.batch) {
      start_batch_line(task);
    } else if (!parsed.request) {
      queue_.add_error(info_of(task), parsed.error, task.read_bytes);
    } else {
      queue_.add_request(info_of(task), task.read_bytes);
      client_.submit(engine_request(task.line), *parsed.request);
    }
  }

  void start_batch_line(const Task& task) {
    std::optional<BatchCall> call;
    try {
      call = without_lock([&] { return read_batch_call(task); });
    } catch (const ApiError& error) {
      return queue_.add_batch_error(info_of(task), error, task.read_bytes);
    }
    const std::vector<runtime::Request> requests = call->take_requests();
    queue_.add_call(info_of(task), std::move(*call), task.read_bytes);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      client_.submit(engine_request(task.line, i), requests[i]);
    }
  }

  // Only throws an ApiError: a failure of one line does not affect the others.
  BatchCall read_batch_call(const Task& task) const {
    const RequestLine& parsed = task.parsed;
    constexpr int kBadRequest = 400, kOurFault = 500;
    try {
      if (!parsed.batch_request) throw ApiError(kBadRequest, parsed.error, parsed.error_param);
      return BatchCall(parse_batch_request(api_, task.line, *parsed.batch_request));
    } catch (const ApiError&) {
      throw;
    } catch (const Error& error) {
      throw ApiError(kBadRequest, error.what());
    } catch (const std::exception& error) {
      throw ApiError(kOurFault, str("this line cannot be read: ", error.what()));
    }
  }

  void apply_updates() {
    Nanoseconds limit = input_idle_ ? kInputInterval : kPollInterval;
    if (client_.unfinished() == 0) limit = kNone;
    const std::vector<runtime::Update> updates = client_.poll(limit);
    if (updates.empty()) return;
    const Trace::Span span(trace_, "host", "updates");
    for (const runtime::Update& update : updates) queue_.apply(update);
    for (const std::uint64_t request : queue_.take_stopped()) client_.abort(request);
    writer_.write(queue_.take_pieces());
  }

  void write_ready() {
    const std::string lines = queue_.take_ready();
    if (lines.empty()) return;
    const Trace::Span span(trace_, "host", "write");
    writer_.write(lines);
  }

  void show_progress() {
    if (!shows_bar_) return;
    draw(progress_.bar(queue_.totals(), source_.total_bytes(), now_ns()));
  }

  void draw(const std::string& text) {
    if (!text.empty()) session_.workers().console().draw(text);
  }

  EngineSession& session_;
  runtime::EngineClient& client_;
  const ApiContext api_;
  runtime::EngineStatistics statistics_;  // at the end of the run
  RequestSource& source_;
  LineWriter& writer_;
  const std::size_t max_held_;
  Trace* const trace_;
  // Held by run(), except while it reads a line: guards queue_ and writer_.
  std::mutex answers_;
  AnswerQueue queue_;
  GenerateProgress progress_;
  // The progress bar would mix with answers on the same terminal.
  const bool shows_bar_ =
      log_enabled(LogLevel::info) && ::isatty(STDERR_FILENO) == 1 && ::isatty(writer_.fd()) == 0;
  bool ended_ = false;       // end of input
  bool input_idle_ = false;  // no line was available at the last read
  const EngineSession::ExitCallback owed_;
};

// The model's defaults, overridden by the command line.
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

RequestSource open_source(const GenerateOptions& generate, const LineWriter& writer,
                          const runtime::SamplingParams& defaults) {
  if (generate.input.empty()) return {generate.prompts, defaults};
  LineReader reader(generate.input);
  if (writer.same_file_as(reader.fd())) {
    throw UsageError(str("--output ", generate.output, ": is the input; pass another file"));
  }
  return {std::move(reader), defaults};
}

// Whether the output is a file that the model is read from.
bool is_of_model(const LineWriter& writer, const runtime::OpenModel& model) {
  namespace fs = std::filesystem;
  const fs::path path(model.path);
  if (writer.same_file_as(path.string())) return true;
  if (model.checkpoint) {
    for (const model::CheckpointFile& file : model.checkpoint->files()) {
      if (writer.same_file_as(file.fd())) return true;
    }
  }
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  constexpr const char* kNames[] = {
      "config.json",    "generation_config.json", "model.safetensors.index.json",
      "tokenizer.json", "tokenizer_config.json",  "chat_template.jinja"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
    return writer.same_file_as((folder / name).string());
  });
}

// Existing answers are not overwritten without --overwrite, and what the run reads not even then.
void check_output(const Options& options, const LineWriter& writer,
                  const runtime::OpenModel& model) {
  const GenerateOptions& generate = options.generate;
  const auto refuse_input = [&](const char* what) {
    throw UsageError(str("--output ", generate.output, ": is ", what, "; pass another file"));
  };
  if (is_of_model(writer, model)) refuse_input("a file of the model");
  if (writer.same_file_as(options.text.chat_template)) refuse_input("the chat template");
  if (generate.overwrite || generate.resume || !writer.has_content()) return;
  throw UsageError(str("--output ", generate.output,
                       ": is there already; pass --resume to continue it, --overwrite to begin it "
                       "anew, or another file"));
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

// The output of a run that has created it: removed if the run ends before the session starts.
class NewOutput {
 public:
  // path: empty if it was there before.
  NewOutput(std::string path, const LineWriter& writer) : path_(std::move(path)), writer_(writer) {}
  NewOutput(const NewOutput&) = delete;
  NewOutput& operator=(const NewOutput&) = delete;
  ~NewOutput() {
    if (!path_.empty() && !writer_.has_content()) std::remove(path_.c_str());
  }
  void keep() { path_.clear(); }

 private:
  std::string path_;
  const LineWriter& writer_;
};

// A file given by its descriptor number has no path for a record.
bool keeps_record(const GenerateOptions& generate, const LineWriter& writer) {
  return writer.is_file() && !generate.output.starts_with("/dev/") &&
         !generate.output.starts_with("/proc/");
}

// Rejects continuing the output of another model or of other options.
void check_earlier_run(const GenerateOptions& generate, const LineWriter& writer,
                       const RunRecord& record) {
  if (!generate.resume || !writer.has_content()) return;
  if (check_run_record(generate.output, record)) return;
  const std::string warning = str("--resume: ", run_record_path(generate.output),
                                  " is not there, so nothing says whether the answers in ",
                                  generate.output, " are of the same model and options");
  log_warning(visible_text(warning, Breaks::none));
}

// The model's tokenizer, if it has one, for text in requests and answers. It is loaded while the
// workers start, or earlier if needed.
class LazyTextModel {
 public:
  explicit LazyTextModel(const Options& options) : options_(options) {}

  // From now on the source accepts text.
  void open(RequestSource& source) {
    if (std::exchange(opened_, true)) return;
    const GenerateOptions& generate = options_.generate;
    model_ = TextModel::open_if_there(options_.model.path, options_.text.chat_template,
                                      options_.text.special_tokens_in_messages);
    if (model_) {
      input_.emplace(*model_, generate.stop);
      source.use_text(*input_, generate.texts);
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

// Runs the generation. If it fails, the finished answers are still written. at_end: called when all
// are done.
int run_session(EngineSession& session, Generation& generation,
                const std::function<void()>& at_end) {
  std::optional<std::string> error;
  bool closed = false;
  try {
    generation.run();
    at_end();
  } catch (const OutputClosed&) {
    closed = true;
  } catch (const Error& failure) {
    error = failure.what();
    generation.write_rest();
  }
  generation.summarize();
  const int exit_code = session.finish(error);
  return closed && exit_code == kExitFine ? kExitSignal + SIGPIPE : exit_code;
}

}  // namespace

int run_generate(const Options& options, std::int64_t started_ns) {
  const GenerateOptions& generate = options.generate;
  check_parsers(options.serve);
  runtime::OpenModel model = runtime::open_model(options.model);
  const bool was_there = is_there(generate.output);
  LineWriter writer(generate.output);
  NewOutput new_output(was_there ? "" : generate.output, writer);
  check_output(options, writer, model);
  const runtime::SamplingParams defaults = sampling_defaults(options, model);
  // Not for those who need none: it hashes the model's tokenizer, which delays the start.
  const bool recorded = keeps_record(generate, writer);
  const RunRecord record =
      recorded || generate.resume ? run_record(options, model, defaults) : RunRecord{};
  RequestSource source = open_source(generate, writer, defaults);
  check_earlier_run(generate, writer, record);
  LazyTextModel text_model(options);
  if (generate.resume) {
    text_model.open(source);
    source.resume(generate.output);
  }
  // Writes an empty trace first, so that a path that is not writable is an error before the work,
  // not after it.
  if (options.engine.profile) {
    if (writer.same_file_as(options.profile)) {
      throw UsageError(str("--profile ", options.profile, ": is the output; pass another file"));
    }
    write_trace(options.profile, {}, started_ns);
  }

  SessionOptions session_settings = session_options(options);
  session_settings.meanwhile = [&] { text_model.open(source); };
  EngineSession session(session_settings, std::move(model));
  new_output.keep();
  writer.truncate_at(source.kept_bytes());
  if (recorded) write_run_record(generate.output, record);
  writer.set_give_up([&] { return session.workers().member().group().aborted(); });
  Trace trace;
  ApiContext api =
      api_context(options, text_model.model(),
                  {.sampling = session.sampling_defaults(),
                   .has_max_tokens = session.model().generation.max_new_tokens.has_value()},
                  session.info().max_model_len);
  Generation generation(session, source, writer, std::move(api),
                        static_cast<std::size_t>(options.engine.max_num_seqs),
                        options.engine.profile ? &trace : nullptr);
  if (text_model.model() != nullptr) {
    generation.use_text(text_model.model()->tokenizer(), generate.stream);
  }
  const int exit_code = run_session(session, generation, [&] {
    if (options.engine.profile) write_profile(options.profile, session, trace, started_ns);
  });
  const std::uint64_t failed = generation.totals().failed + source.kept_failures();
  if (exit_code != kExitFine || failed == 0) return exit_code;
  const std::string& first = generation.totals().first_failure;
  fail(failed, failed == 1 ? " line failed" : " lines failed", first.empty() ? "" : "; the first, ",
       first);
}

}  // namespace nvllm::launcher
