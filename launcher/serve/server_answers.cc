// From the engine's updates to the bytes of responses.
#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "base/visible_text.h"
#include "launcher/serve/server.h"

namespace nvllm::launcher {
namespace {

using runtime::FinishReason;
using runtime::Update;

// A stream that waits longer for its first token starts anyway, so that comments keep proxies from
// timing out. Until then an error can still have its own status.
constexpr Nanoseconds kBeginAfter = std::chrono::seconds(5);

// The field that an error of the engine is about, which only it can check: token ids, since only
// the engine knows the vocabulary.
std::string field_of(std::string_view error) {
  const std::size_t end = error.find(" holds token id ");
  if (end == std::string_view::npos) return "";
  const std::string_view what = error.substr(0, end);
  return std::string(what == "the prompt" ? "prompt" : what);
}

}  // namespace

// --- The end of a job; called by any thread ---

// Removes the job from the open ones; the caller that gets true answers it.
bool Server::claim(const JobPtr& job) {
  const std::lock_guard lock(mutex_);
  if (job->ended.exchange(true)) return false;
  jobs_.erase(job->exchange);
  if (std::exchange(job->counted_as_queued, false)) {
    --queued_requests_;
    queued_tokens_ -= job->prompt_lengths.empty() ? 0 : job->prompt_tokens.load();
  }
  return true;
}

void Server::finish(const JobPtr& job, int status, std::string body) {
  if (!claim(job)) return;
  log(*job, status);
  answer(job->exchange, status, job->headers, "application/json", std::move(body));
}

void Server::fail(const JobPtr& job, int status, const std::string& why, const std::string& param) {
  if (!claim(job)) return;
  log(*job, status);
  std::vector<HttpOutput> outputs(1);
  HttpOutput& output = outputs[0];
  output = {.exchange = job->exchange, .last = true};
  if (job->stream_started) {
    output.body = std::move(job->out);
    job->call->fail(status, why, output.body);
  } else {
    output.status = status;
    output.headers = job->headers;
    output.headers.push_back({"Content-Type", "application/json"});
    if (status == 503) output.headers.push_back({"Retry-After", "1"});
    output.body = job->route->error(status, why, param);
  }
  http_.send(std::move(outputs));
}

void Server::fail_unforeseen(const JobPtr& job, const std::exception& error) {
  log_warning(visible_text(str("request ", job->info.id, ": ", error.what()), Breaks::none));
  fail(job, 500, "the server failed at this request; its log says why");
}

void Server::log(const Job& job, int status) const {
  if (!options_.log_requests) return;
  std::string line = str("request ", job.info.id, ' ', job.route->path, ' ', status, ": ",
                         job.prompt_tokens.load(), " tokens in, ", job.generated_tokens.load(),
                         " out, ", format_duration(seconds_since(job.received_ns)));
  if (!job.trace_parent.empty()) line += str(", traceparent ", job.trace_parent.substr(0, 64));
  // The id was chosen by the client.
  log_info(visible_text(line, Breaks::none));
}

// --- The engine's thread ---

void Server::apply(const std::vector<Update>& updates,
                   const runtime::SchedulerStatistics& scheduler) {
  if (updates.empty()) return;
  std::vector<EngineRequest> requests(updates.size());
  EnginePort* engine = nullptr;
  {
    const std::lock_guard lock(mutex_);
    engine = engine_;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      const auto found = engine_requests_.find(updates[i].request);
      if (found == engine_requests_.end()) continue;
      requests[i] = found->second;
      Job& job = *found->second.job;
      if (std::exchange(job.counted_as_queued, false)) {
        --queued_requests_;
        queued_tokens_ -= job.prompt_tokens;
      }
      const bool over = updates[i].finish != FinishReason::none || !updates[i].error.empty();
      if (!over) continue;
      const std::int64_t answers = updates[i].error.empty() ? 1 : job.n;
      job.open_answers -= answers;
      // The last answer of this engine request; with several answers, the job's last one.
      if (job.n == 1 || !updates[i].error.empty() || job.open_answers <= 0) {
        engine_requests_.erase(found);
      }
    }
  }
  metrics_->set_scheduler(scheduler);
  std::int64_t generated = 0, prompt_tokens = 0;
  std::vector<JobPtr> touched;
  ++round_;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const Update& update = updates[i];
    const JobPtr& job = requests[i].job;
    if (job == nullptr) continue;
    record(*job, requests[i].index, update, prompt_tokens);
    generated += static_cast<std::int64_t>(update.tokens.size());
    if (job->ended) continue;
    if (!update.error.empty()) {
      fail(job, update.internal_error ? 500 : 400, update.error, field_of(update.error));
      abort_engine_requests(*job);
      continue;
    }
    try {
      apply_to(job, update, requests[i].index, *engine);
    } catch (const std::exception& error) {
      fail_unforeseen(job, error);
      abort_engine_requests(*job);
      continue;
    }
    if (std::exchange(job->touched_in, round_) != round_) touched.push_back(job);
  }
  metrics_->record_step(prompt_tokens, generated);
  std::vector<HttpOutput> outputs;
  outputs.reserve(touched.size());
  for (const JobPtr& job : touched) {
    if (job->ended) continue;
    try {
      send_progress(job, outputs);
    } catch (const std::exception& error) {
      fail_unforeseen(job, error);
      abort_engine_requests(*job);
    }
  }
  http_.send(std::move(outputs));
}

void Server::apply_to(const JobPtr& job, const Update& update, std::size_t index,
                      EnginePort& engine) {
  start_call(*job);
  job->call->apply(index, update, job->out);
  if (job->aborted[index] || !job->call->stopped(index)) return;
  job->aborted[index] = 1;
  engine.abort(update.request);
}

// Records the metrics of one update; adds to prompt_tokens those of an answer's prompt when it gets
// its first token. As in vLLM, each of n answers counts its prompt, of which all but the first find
// most in the prefix cache.
void Server::record(Job& job, std::size_t index, const Update& update,
                    std::int64_t& prompt_tokens) {
  if (!update.error.empty()) return;
  const std::int64_t now = now_ns();
  Job::AnswerTimes& answer =
      job.answers[index * static_cast<std::size_t>(job.n) + static_cast<std::size_t>(update.index)];
  if (!update.tokens.empty()) {
    if (answer.last_ns == 0) {
      metrics_->record_first_token(1e-9 * static_cast<double>(now - job.received_ns));
      prompt_tokens += job.prompt_lengths[index];
    } else {
      metrics_->record_inter_token(1e-9 * static_cast<double>(now - answer.last_ns));
    }
    answer.last_ns = now;
    answer.tokens += static_cast<std::int64_t>(update.tokens.size());
    job.generated_tokens += static_cast<std::int64_t>(update.tokens.size());
  }
  if (update.finish == FinishReason::none) return;
  FinishedAnswer finished{.times = update.times,
                          .received_ns = job.received_ns,
                          .finished_ns = now,
                          // An abort because of a stop string counts as a normal end.
                          .finish = job.aborted[index] != 0 ? FinishReason::stop : update.finish,
                          .prompt_tokens = job.prompt_lengths[index],
                          .generated_tokens = answer.tokens,
                          .cached_tokens = update.cached_tokens,
                          .max_tokens = job.max_tokens};
  if (job.open_answers <= 0) {
    finished.n = job.n;
    for (const Job::AnswerTimes& each : job.answers) {
      finished.longest = std::max(finished.longest, each.tokens);
    }
  }
  metrics_->record_answer(finished);
}

// A stream's first events come before those of its first update.
void Server::start_call(Job& job) {
  if (job.call->stream() && !std::exchange(job.call_started, true)) job.call->begin(job.out);
}

// Sends the head of the response, and what there is of its body.
void Server::begin_stream(Job& job, std::vector<HttpOutput>& outputs) {
  start_call(job);
  job.stream_started = true;
  HttpOutput& output = outputs.emplace_back();
  output.exchange = job.exchange;
  output.status = 200;
  output.headers = std::move(job.headers);
  output.headers.push_back({"Content-Type", "text/event-stream; charset=utf-8"});
  output.headers.push_back({"Cache-Control", "no-cache"});
  output.headers.push_back({"X-Accel-Buffering", "no"});
  output.body = std::exchange(job.out, {});
}

// Sends the new output of a job that had updates.
void Server::send_progress(const JobPtr& job, std::vector<HttpOutput>& outputs) {
  const bool done = job->call->done();
  if (!job->call->stream()) {
    if (!done) return;
    pool_->run([this, job] {
      try {
        std::string body;
        job->call->finish(body);
        finish(job, 200, std::move(body));
      } catch (const std::exception& error) {
        fail_unforeseen(job, error);
      }
    });
    return;
  }
  if (!job->stream_started) begin_stream(*job, outputs);
  if (done) job->call->finish(job->out);
  if (job->out.empty()) return;
  if (done && !claim(job)) return;
  if (done) log(*job, 200);
  outputs.push_back({.exchange = job->exchange, .body = std::exchange(job->out, {}), .last = done});
}

std::vector<Server::JobPtr> Server::all_jobs() const {
  const std::lock_guard lock(mutex_);
  std::vector<JobPtr> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [exchange, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void Server::tick() {
  const std::int64_t now = now_ns();
  constexpr Nanoseconds kInterval = std::chrono::milliseconds(500);
  if (Nanoseconds(now - last_tick_ns_) < kInterval) return;
  last_tick_ns_ = now;
  std::vector<HttpOutput> outputs;
  for (const JobPtr& job : all_jobs()) {
    const Nanoseconds age(now - job->received_ns);
    if (options_.request_timeout.count() > 0 && age > options_.request_timeout) {
      fail(job, 504,
           str("the request took longer than ",
               format_duration(std::chrono::duration<double>(options_.request_timeout).count()),
               "; see --request-timeout"));
      abort_engine_requests(*job);
    } else if (age > kBeginAfter && waits_for_stream(*job)) {
      begin_stream(*job, outputs);
    }
  }
  http_.send(std::move(outputs));
}

// Whether it is a submitted stream that has sent nothing yet.
bool Server::waits_for_stream(const Job& job) const {
  const std::lock_guard lock(mutex_);
  return engine_requests_.contains(job.first_engine_request) && !job.ended && job.call->stream() &&
         !job.stream_started;
}

void Server::abort_engine_requests(const Job& job) {
  EnginePort* engine = nullptr;
  std::uint64_t first = 0;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    engine = engine_;
    first = job.first_engine_request;
    count = job.prompt_lengths.size();
  }
  for (std::size_t i = 0; engine != nullptr && i < count; ++i) engine->abort(first + i);
}

void Server::end_requests(int status, const std::string& why) {
  for (const JobPtr& job : all_jobs()) {
    fail(job, status, why);
    abort_engine_requests(*job);
  }
}

void Server::close_engine(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    engine_ = nullptr;
    no_engine_ = "the engine is being restarted: " + why;
    engine_requests_.clear();
  }
  if (metrics_) metrics_->engine_lost();
  for (const JobPtr& job : all_jobs()) fail(job, 500, why);
}

}  // namespace nvllm::launcher
