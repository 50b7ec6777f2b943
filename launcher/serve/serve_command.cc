// The command serve: a Server with an engine that is restarted when it fails.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/serve/server.h"
#include "launcher/serve/stdin_watch.h"
#include "launcher/session/engine_session.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kPoll = std::chrono::milliseconds(100);
// Maximum restarts of the workers within this time.
constexpr std::size_t kMaxRestarts = 5;
constexpr Nanoseconds kRestartWindow = std::chrono::minutes(5);
// Maximum wait for the pool's work on request texts, at the end and before workers are restarted.
constexpr Nanoseconds kPoolLimit = std::chrono::milliseconds(700);
constexpr Nanoseconds kPoolLimitOfRestart = std::chrono::seconds(10);
// Time limit for newly forked workers to close their copies of client connections.
constexpr Nanoseconds kForkLimit = std::chrono::seconds(5);

// Adapts a session's client to the server.
class SessionPort : public EnginePort {
 public:
  explicit SessionPort(runtime::EngineClient& client) : client_(client) {}

  // The engine may have failed; its thread detects that, and answers the requests.
  void submit(std::uint64_t first_id, const std::vector<runtime::Request>& requests) override {
    quietly([&] {
      for (std::size_t i = 0; i < requests.size(); ++i) client_.submit(first_id + i, requests[i]);
      client_.send();
    });
  }
  void abort(std::uint64_t id) override {
    quietly([&] { client_.abort(id); });
  }

 private:
  template <typename Work>
  void quietly(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      log_debug(str("sending to the engine: ", error.what()));
    }
  }

  runtime::EngineClient& client_;
};

class Serving {
 public:
  explicit Serving(const Options& options) : options_(options), server_(options.serve) {}
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() { remove_socket(); }

  // Runs until a signal, the end of standard input (with --exit-when-stdin-closes), or an
  // unrecoverable failure; returns the exit code.
  int run() {
    while (true) {
      const int exit_code = run_session();
      if (exit_code == kExitFine || exit_code >= kExitSignal || !may_restart()) {
        if (!server_.stop(kPoolLimit)) end_process(exit_code);
        return exit_code;
      }
      log_warning("starting the workers again");
    }
  }

 private:
  void remove_socket() const {
    if (!options_.serve.uds.empty()) ::unlink(options_.serve.uds.c_str());
  }

  // A thread of the pool is busy with a text, and uses objects that a return would destroy.
  [[noreturn]] void end_process(int exit_code) const {
    remove_socket();
    ::_exit(exit_code);
  }

  // One group of workers, from start to end.
  int run_session() {
    const bool first = !started_;
    SessionOptions settings = session_options(options_);
    settings.before_fork = [this] {
      if (!pause(kPoolLimitOfRestart))
        fail("the workers are not started again: a request's text is still read");
    };
    settings.meanwhile = [this] { after_fork(); };
    settings.on_forked = [](WorkerGroup& workers) { await_workers(workers); };
    settings.on_signal = [this](int signal) { return drain(signal); };
    if (restarts_workers()) {
      settings.finish_limit = kPoolLimitOfRestart + Supervisor::kFinishLimit;
    }
    std::optional<EngineSession> session;
    try {
      session.emplace(settings, runtime::open_model(options_.model));
    } catch (const SessionFailed& failure) {
      resume();
      if (first) throw;
      return failure.exit_code();
    } catch (...) {
      resume();
      throw;
    }
    const EngineSession::ExitCallback on_exit(*session, [this] { remove_socket(); });
    SessionPort port(session->client());
    open(*session, port);
    const std::optional<std::string> error = serve(*session);
    server_.close_engine(error.value_or("the server is shutting down"));
    // After this, threads that were about to call the engine have done so.
    const bool restarts = error && restarts_workers() && !server_.draining();
    const bool idle = pause(restarts ? kPoolLimitOfRestart : kPoolLimit);
    const int exit_code = session->finish(error);
    if (!idle) end_process(exit_code);
    resume();
    return exit_code;
  }

  // False: the pool is still busy after the limit.
  bool pause(Nanoseconds limit) {
    return !started_ || std::exchange(paused_, true) || server_.pause(limit);
  }
  void resume() {
    if (std::exchange(paused_, false)) server_.resume();
  }

  // The workers have copies of client connections until they close them. While the HTTP server's
  // thread is paused, this has no effect.
  static void await_workers(WorkerGroup& workers) {
    const ipc::Group& group = workers.member().group();
    const std::int64_t begin = now_ns();
    const int first = group.first_rank(group.box());
    for (int rank = first; rank < first + group.ranks_of(group.box()); ++rank) {
      while (group.snapshot(rank).pid == 0 && Nanoseconds(now_ns() - begin) < kForkLimit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  // While the workers load the model.
  void after_fork() {
    resume();
    if (started_.exchange(true)) return;
    if (options_.serve.exit_when_stdin_closes) stdin_watch_.emplace([this] { end_at_once(); });
    server_.start();
    text_ = TextModel::open_if_there(options_.model.path, options_.text.chat_template,
                                     options_.text.special_tokens_in_messages);
  }

  void open(const EngineSession& session, SessionPort& port) {
    const runtime::EngineInfo& info = session.info();
    ApiContext context =
        api_context(options_, text_ ? &*text_ : nullptr,
                    {.sampling = session.sampling_defaults(),
                     .has_max_tokens = session.model().generation.max_new_tokens.has_value()},
                    info.max_model_len);
    const std::string name = context.model_names.front();
    server_.open(port, std::move(context),
                 {.model_name = name,
                  .max_model_len = info.max_model_len,
                  .blocks = info.blocks,
                  .block_size = info.block_size,
                  .host_blocks = info.host_blocks,
                  .prefix_caching = info.prefix_caching});
    log_info(str("listening on ", server_.address(), options_.serve.root_path, ", model ", name));
  }

  // Serves until it is drained (returns nullopt), or the engine has failed (returns the error).
  std::optional<std::string> serve(EngineSession& session) {
    runtime::EngineClient& client = session.client();
    std::optional<std::int64_t> draining_since;
    try {
      while (true) {
        server_.apply(client.poll(kPoll), client.load());
        server_.tick();
        if (!server_.draining()) continue;
        if (!draining_since) draining_since = now_ns();
        if (server_.open_requests() == 0) return std::nullopt;
        if (Nanoseconds(now_ns() - *draining_since) < options_.serve.shutdown_timeout) continue;
        server_.end_requests(503, "the server has shut down before the answer was complete");
        return std::nullopt;
      }
    } catch (const Error& error) {
      return error.what();
    }
  }

  // In the supervisor's thread. False: the signal ends everything at once.
  bool drain(int signal) {
    if (!started_ || stdin_closed_ || server_.draining()) return false;
    server_.drain();
    log_info(str(signal_name(signal), ": finishing ", server_.open_requests(),
                 " requests; a second signal ends them at once"));
    return true;
  }

  // In the thread that watches standard input.
  void end_at_once() {
    log_info("standard input was closed: ending");
    stdin_closed_ = true;
    ::kill(::getpid(), SIGTERM);
  }

  // Boxes cannot be joined again: their starter must restart them.
  bool restarts_workers() const {
    return options_.serve.restart_workers && options_.group.task.boxes == 1;
  }

  bool may_restart() {
    if (stdin_closed_ || server_.draining()) return false;
    if (options_.serve.restart_workers && !restarts_workers()) {
      log_error(str("the workers of ", options_.group.task.boxes,
                    " boxes are not started again: ", options_.group.task.starter, " has to be"));
    }
    if (!restarts_workers()) return false;
    const std::int64_t now = now_ns();
    while (!restarts_.empty() && Nanoseconds(now - restarts_.front()) > kRestartWindow) {
      restarts_.pop_front();
    }
    if (restarts_.size() >= kMaxRestarts) {
      log_error(str("the workers have failed ", kMaxRestarts + 1, " times within ",
                    format_duration(seconds_since(restarts_.front())), "; giving up"));
      return false;
    }
    restarts_.push_back(now);
    return true;
  }

  const Options& options_;
  std::optional<TextModel> text_;
  std::atomic<bool> started_ = false;  // the HTTP server
  std::atomic<bool> stdin_closed_ = false;
  bool paused_ = false;
  std::deque<std::int64_t> restarts_;  // when
  Server server_;                      // refers to text_
  std::optional<StdinWatch> stdin_watch_;
};

}  // namespace

int run_serve(const Options& options, std::int64_t /*started_ns*/) {
  check_parsers(options.serve);
  return Serving(options).run();
}

}  // namespace nvllm::launcher
