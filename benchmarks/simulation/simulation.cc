#include "benchmarks/simulation/simulation.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::simulation {
namespace {

// Events at the same time are ordered by kind, so that requests that arrive together start
// together.
struct Event {
  // A request is sent, or reaches its replica's engine; a replica's step ends; an idle replica with
  // requests starts.
  enum class Kind : std::uint8_t { sent, reached, step_end, start };
  double at = 0;
  Kind kind = Kind::sent;
  std::uint64_t number = 0;  // orders events of the same time and kind
  std::size_t of = 0;        // the replica's or the request's number

  bool operator>(const Event& other) const {
    return std::tie(at, kind, number) > std::tie(other.at, other.kind, other.number);
  }
};

class Run {
 public:
  Run(const Simulation& simulation, Traffic& traffic)
      : simulation_(simulation), traffic_(traffic), router_(simulation.router) {
    for (std::int64_t i = 0; i < simulation.router.replicas; ++i)
      replicas_.push_back(std::make_unique<Replica>(simulation.engine));
    result_.replicas.resize(replicas_.size());
    stepping_.resize(replicas_.size());
  }

  SimulationResult run() {
    take_next();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case Event::Kind::sent: send(event); break;
        case Event::Kind::reached: submit(event); break;
        case Event::Kind::step_end: finish_step(event); break;
        case Event::Kind::start: start(event); break;
      }
    }
    NVLLM_CHECK(open_.empty(), open_.size(), " requests have no answer");
    for (std::size_t i = 0; i < replicas_.size(); ++i)
      result_.replicas[i].busy_s = replicas_[i]->busy_s();
    result_.work = work();
    result_.warmup_s = simulation_.warmup_s;
    return std::move(result_);
  }

 private:
  struct Open {
    Arrival arrival;
    std::vector<std::int32_t> answer;
  };

  void add_event(double at, Event::Kind kind, std::size_t of) {
    events_.push({.at = at, .kind = kind, .number = ++event_number_, .of = of});
  }
  void take_next() {
    if (std::optional<Arrival> arrival = traffic_.next()) {
      newest_ = arrival->number;
      result_.steady_s = std::max(0.0, arrival->at - simulation_.warmup_s);
      expect(std::move(*arrival));
    } else {
      all_sent_ = true;
    }
  }
  void expect(Arrival arrival) {
    const auto number = static_cast<std::size_t>(arrival.number);
    if (result_.requests.size() < number) result_.requests.resize(number);
    result_.requests[number - 1].sent = arrival.at;
    add_event(arrival.at, Event::Kind::sent, number);
    open_.emplace(number, Open{.arrival = std::move(arrival), .answer = {}});
  }
  RequestRecord& record(std::size_t number) { return result_.requests.at(number - 1); }

  void send(const Event& event) {
    RequestRecord& request = record(event.of);
    const std::vector<std::int32_t>& prompt = open_.at(event.of).arrival.prompt;
    request.prompt_tokens = std::ssize(prompt);
    request.replica = router_.choose(prompt);
    ++result_.replicas[request.replica].requests;
    add_event(event.at + simulation_.front_end_s, Event::Kind::reached, event.of);
    // The traffic's next request is known once this one is sent.
    if (static_cast<std::int64_t>(event.of) == newest_) take_next();
  }

  void submit(const Event& event) {
    Arrival& arrival = open_.at(event.of).arrival;
    const std::size_t replica = record(event.of).replica;
    replicas_[replica]->submit(event.of, std::move(arrival.prompt), arrival.max_tokens);
    if (!stepping_[replica]) add_event(event.at, Event::Kind::start, replica);
  }

  void start(const Event& event) {
    if (stepping_[event.of]) return;
    replicas_[event.of]->enqueue_steps(event.at);
    await_step(event.of);
  }

  // A replica has at most one event in the queue, for its oldest step.
  void await_step(std::size_t replica) {
    const std::optional<double> end = replicas_[replica]->next_end();
    if (!end || stepping_[replica]) return;
    stepping_[replica] = true;
    add_event(*end, Event::Kind::step_end, replica);
  }

  void finish_step(const Event& event) {
    stepping_[event.of] = false;
    for (const runtime::SequenceOutput& output : replicas_[event.of]->finish_step())
      take(output, event.at);
    await_step(event.of);
  }

  void take(const runtime::SequenceOutput& output, double now) {
    RequestRecord& request = record(output.id);
    if (output.tokens.empty()) return;
    if (request.output_tokens == 0) note_first_token(request, now);
    Open& open = open_.at(output.id);
    open.answer.insert(open.answer.end(), output.tokens.begin(), output.tokens.end());
    request.output_tokens = std::ssize(open.answer);
    request.last_token = now;
    if (!all_sent_ && now >= simulation_.warmup_s)
      result_.steady_tokens += std::ssize(output.tokens);
    request.cached_tokens = output.cached_tokens;
    request.preemptions = output.preemptions;
    if (output.finish == runtime::FinishReason::none) return;
    router_.release(request.replica);
    if (request.output_tokens != open.arrival.max_tokens) {
      fail("request ", output.id, " ended after ", request.output_tokens, " of ",
           open.arrival.max_tokens, " tokens: max_model_len or blocks are too small for it");
    }
    const std::vector<std::int32_t> answer = std::move(open.answer);
    open_.erase(output.id);
    if (std::optional<Arrival> more =
            traffic_.after(static_cast<std::int64_t>(output.id), answer, now)) {
      expect(std::move(*more));
    }
  }

  void note_first_token(RequestRecord& request, double now) {
    request.first_token = now;
    result_.first_tokens_s = now;
    if (replicas_.size() == 1) result_.work_until_first_tokens = work();
  }

  StepWork work() const {
    StepWork sum;
    for (const auto& replica : replicas_) sum += replica->work();
    return sum;
  }

  const Simulation& simulation_;
  Traffic& traffic_;
  Router router_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<char> stepping_;  // replicas with an event in the queue
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t event_number_ = 0;
  std::int64_t newest_ = 0;  // of Traffic::next()
  bool all_sent_ = false;    // there are no more requests
  std::unordered_map<std::size_t, Open> open_;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const Simulation& simulation, Traffic& traffic) {
  return Run(simulation, traffic).run();
}

namespace {

double spread(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  const double largest = *std::max_element(values.begin(), values.end());
  return sum > 0 ? largest * static_cast<double>(values.size()) / sum : 1;
}

}  // namespace

SimulationSummary summary_of(const SimulationResult& result) {
  SimulationSummary summary;
  std::vector<double> ttft, tpot, e2el;
  double first = -1, last = 0;
  for (const RequestRecord& request : result.requests) {
    if (request.sent < result.warmup_s) continue;
    ++summary.requests;
    summary.prompt_tokens += request.prompt_tokens;
    summary.cached_tokens += request.cached_tokens;
    summary.output_tokens += request.output_tokens;
    summary.preemptions += request.preemptions;
    if (first < 0 || request.sent < first) first = request.sent;
    last = std::max(last, request.last_token);
    ttft.push_back(request.first_token - request.sent);
    e2el.push_back(request.last_token - request.sent);
    if (request.output_tokens > 1) {
      tpot.push_back((request.last_token - request.first_token) /
                     static_cast<double>(request.output_tokens - 1));
    }
  }
  if (summary.requests == 0) fail("no request is sent after warmup_s ", result.warmup_s);
  summary.duration_s = last - first;
  summary.ttft_s = launcher::summary_of(std::move(ttft));
  summary.tpot_s = launcher::summary_of(std::move(tpot));
  summary.e2el_s = launcher::summary_of(std::move(e2el));
  std::vector<double> requests, busy;
  for (const ReplicaRecord& replica : result.replicas) {
    requests.push_back(static_cast<double>(replica.requests));
    busy.push_back(replica.busy_s);
    summary.mean_busy += replica.busy_s / last / static_cast<double>(result.replicas.size());
  }
  summary.requests_spread = spread(requests);
  summary.busy_spread = spread(busy);
  return summary;
}

}  // namespace nvllm::simulation
