// Reports as tables, and the progress line.
#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/bench/report.h"
#include "launcher/bench/summary.h"
#include "launcher/cli/program.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

std::string percent(double share) {
  return three_digits(share * 100) + "%";
}

std::string title(const BenchSubject& subject) {
  return str("nvllm ", kVersion, " bench ", subject.benchmark, ": ", subject.model,
             subject.dummy ? " (random weights), " : ", ", name_of(subject.dtype), ", ",
             counted(subject.info.ranks.size(), "rank"),
             subject.stages > 1 ? str(" in ", subject.stages, " stages") : "", " on ",
             subject.info.ranks.at(0).report.device, '\n');
}

// "4.41 TB/s", "35.1 GFLOP/s"
std::string rate(double per_second, const char* unit) {
  const bool tera = per_second >= 1e12;
  return three_digits(per_second * (tera ? 1e-12 : 1e-9)) + (tera ? " T" : " G") + unit;
}

// "50.0%"; "-" if the floor's assumption does not hold.
std::string share_of_floor(const BenchSubject& subject, double share) {
  return floor_holds(subject.cost, subject.speed) ? percent(share) : "-";
}

std::string floor_line(const BenchSubject& subject) {
  const DeviceSpeed& speed = subject.speed;
  const std::size_t ranks = subject.info.ranks.size();
  std::string note;
  if (!floor_holds(subject.cost, speed)) {
    note =
        str("  the floor assumes that weights come from memory at each step; those of this model "
            "fit into a cache of ",
            format_bytes(static_cast<std::uint64_t>(speed.cache_bytes)),
            ", so no share of it is told\n");
  }
  return note + str("  floor (roofline): ", rate(speed.bytes_per_second, "B/s"), " and ",
                    rate(speed.flops_per_second, "FLOP/s"), " of each device (", speed.source, ')',
                    ranks > 1 ? ", communication between ranks not counted" : "",
                    subject.stages > 1 ? "; stages that share all work evenly and never wait" : "",
                    '\n');
}

std::string work_line(const EngineWork& work) {
  return str("  ", work.steps, " steps: device busy for ", three_digits(work.device_busy_s),
             " s, host busy for ", three_digits(work.host_s), " s, host waiting for ",
             three_digits(work.waiting_s), " s; ", three_digits(work.step_message_bytes),
             " bytes of messages per step\n");
}

constexpr Nanoseconds kLineEvery = std::chrono::milliseconds(200);

}  // namespace

std::string format_table(const BenchSubject& subject, const ThroughputReport& report) {
  const ThroughputResult& result = report.result;
  const double output = static_cast<double>(result.output_tokens);
  const double prompt = static_cast<double>(result.prompt_tokens);
  std::string text = title(subject);
  text += str("  ", result.prompts, " prompts of ", result.prompt_tokens, " tokens, ",
              result.output_tokens, " tokens of answers, ", report.at_once, " at a time\n");
  text += result.warmup_prompts > 0
              ? str("  warm-up: ", result.warmup_prompts, " short prompts in ",
                    three_digits(result.warmup_s), " s\n")
              : "  no warm-up\n";
  TextTable figures;
  figures.add_row({"time", three_digits(result.seconds), "s"});
  figures.add_row({"output", three_digits(output / result.seconds), "tokens/s"});
  figures.add_row(
      {"prompt and output", three_digits((output + prompt) / result.seconds), "tokens/s"});
  figures.add_row({"floor", three_digits(report.floor_s), "s"});
  if (floor_holds(subject.cost, subject.speed)) {
    figures.add_row(
        {"of the floor's speed", three_digits(report.floor_s / result.seconds * 100), "%"});
  }
  figures.add_row(
      {"mean batch", three_digits(output / static_cast<double>(result.work.steps)), ""});
  figures.add_row({"prompt tokens found in the cache", str(result.cached_tokens), ""});
  figures.add_row({"preemptions", str(result.work.preemptions), ""});
  if (result.logprobs_hash)
    figures.add_row({"hash of log-probabilities", hex_digits(*result.logprobs_hash), ""});
  text += figures.text();
  TextTable times;
  times.add_row({"ms", "mean", "p50", "p90", "p99", "max"});
  times.add_row(row_in_ms("TTFT", result.ttft_s));
  times.add_row(row_in_ms("ITL", result.itl_s));
  times.add_row(row_in_ms("request", result.request_s));
  return text + times.text() + work_line(result.work) + floor_line(subject);
}

std::string format_table(const BenchSubject& subject, const std::vector<LatencyResult>& results) {
  const LatencyPlan& plan = results.at(0).plan;
  std::string text = title(subject);
  text += str("  prompts of ", plan.prompt_tokens, " random tokens, then ", plan.steps,
              " decode steps; ",
              plan.warmup_steps > 0
                  ? str("warm-up: a batch of other prompts and ", plan.warmup_steps, " steps")
                  : std::string("no warm-up"),
              '\n');
  TextTable table;
  table.add_row({"batch", "prefill ms", "floor", "TPOT ms", "p50", "p99", "floor", "of floor",
                 "tokens/s", "context", "cached", "preempted"});
  for (const LatencyResult& result : results) {
    const double floor = decode_floor(subject.cost, subject.speed, result.rows, result.context);
    const double prompts = prefill_floor(result, subject.cost, subject.speed);
    table.add_row({str(result.plan.batch), three_digits(result.prefill_s * 1e3),
                   three_digits(prompts * 1e3), three_digits(result.mean_step_s() * 1e3),
                   three_digits(result.step_s.p50 * 1e3), three_digits(result.step_s.p99 * 1e3),
                   three_digits(floor * 1e3), share_of_floor(subject, floor / result.mean_step_s()),
                   three_digits(result.rows / result.mean_step_s()), three_digits(result.context),
                   str(result.cached_tokens), str(result.work.preemptions)});
  }
  text += table.text();
  for (const LatencyResult& result : results) {
    text += str("  batch ", result.plan.batch, ':') + work_line(result.work).substr(1);
  }
  return text + floor_line(subject);
}

namespace {

std::string gib(std::uint64_t bytes) {
  return three_digits(static_cast<double>(bytes) / (1 << 30));
}

// Adds the cells of a floor: of compute, of the link, and the achieved share of the larger one.
void add_floor(std::vector<std::string>& row, const BenchSubject& subject, const LongFloor& floor,
               double scale, double seconds) {
  row.push_back(three_digits(floor.compute_s * scale));
  row.push_back(floor.link_s > 0 ? three_digits(floor.link_s * scale) : "-");
  row.push_back(share_of_floor(subject, floor.seconds() / seconds));
}

void add_traffic(std::vector<std::string>& row, const EngineWork& work) {
  row.push_back(gib(work.kv_bytes_to_host));
  row.push_back(gib(work.kv_bytes_to_device));
}

}  // namespace

std::string format_table(const BenchSubject& subject, const LongReport& report) {
  const LongPlan& plan = report.plan;
  std::string text = title(subject);
  text += str("  one sequence of up to ", plan.max_model_len, " tokens: a prompt of ",
              plan.one_prompt ? plan.max_model_len - plan.output_tokens : plan.max_model_len - 1,
              plan.one_prompt ? "" : str("; then one of ", plan.max_model_len - plan.output_tokens),
              " and ", plan.output_tokens, " tokens of an answer\n");
  TextTable prompts, answers;
  prompts.add_row({"prefill", "s", "tokens/s", "compute floor", "PCIe floor", "of floor",
                   "GiB to host", "to device"});
  answers.add_row({"decode", "TPOT ms", "p50", "p99", "compute floor", "PCIe floor", "of floor",
                   "GiB to host", "to device"});
  std::string failures;
  for (const LongResult& mode : report.modes) {
    if (!mode.error.empty()) {
      failures += str("  ", name_of(mode.mode), ": not measured: ", mode.error, '\n');
      continue;
    }
    std::vector<std::string> prompt = {
        name_of(mode.mode), three_digits(mode.prefill_s),
        three_digits(static_cast<double>(mode.prefill_tokens) / mode.prefill_s)};
    add_floor(prompt, subject,
              prefill_floor(mode, subject.cost, subject.speed, report.link,
                            subject.engine.max_num_batched_tokens),
              1, mode.prefill_s);
    add_traffic(prompt, mode.prefill_work);
    prompts.add_row(prompt);
    std::vector<std::string> answer = {name_of(mode.mode), three_digits(mode.mean_step_s() * 1e3),
                                       three_digits(mode.step_s.p50 * 1e3),
                                       three_digits(mode.step_s.p99 * 1e3)};
    add_floor(answer, subject, decode_floor(mode, subject.cost, subject.speed, report.link), 1e3,
              mode.mean_step_s());
    add_traffic(answer, mode.decode_work);
    answers.add_row(answer);
  }
  text += prompts.text() + answers.text() + failures;
  return text + floor_line(subject) +
         str("  PCIe: ", rate(report.link.to_device, "B/s"), " to each device, ",
             rate(report.link.to_host, "B/s"), " to the host (", report.link.source, ")\n");
}

std::string format_table(const BenchSubject& subject, const std::vector<StartupRun>& runs) {
  std::vector<double> seconds;
  for (const StartupRun& run : runs) seconds.push_back(run.seconds());
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = summary_of(seconds).p50;
  // The stages are those of the median run, because stages of different runs do not add up.
  const auto middle = std::find(seconds.begin(), seconds.end(), median) - seconds.begin();
  const StartupRun& run = runs[static_cast<std::size_t>(middle)];
  TextTable table;
  table.add_row({"ms after the start", "at", "took"});
  double before = 0;
  if (run.exec_s) {
    before = *run.exec_s;
    table.add_row({"program running", three_digits(before * 1e3), three_digits(before * 1e3)});
  }
  for (const StartupStage& stage : run.stages) {
    const double at = run.exec_s.value_or(0) + stage.after_s;
    table.add_row(
        {stage.name, three_digits(at * 1e3), three_digits(std::max(at - before, 0.0) * 1e3)});
    before = std::max(before, at);
  }
  return title(subject) + table.text() +
         str("  start to first token: median ", three_digits(median * 1e3), " ms, min ",
             three_digits(sorted.front() * 1e3), " ms of ", runs.size(),
             runs.size() == 1 ? " start\n" : " starts; the stages are those of the median\n");
}

std::string BenchProgress::line(std::span<const RequestRecord> records, std::size_t total,
                                std::int64_t now_ns) {
  if (now_ns - shown_ns_ < kLineEvery.count() || records.empty()) return "";
  shown_ns_ = now_ns;
  shown_ = true;
  std::int64_t finished = 0, tokens = 0, begin = records.front().submitted_ns;
  for (const RequestRecord& record : records) {
    finished += record.finished ? 1 : 0;
    tokens += record.tokens;
  }
  const double seconds = std::max(static_cast<double>(now_ns - begin) * 1e-9, 1e-9);
  return str(kClearLine, "measuring ", finished, " of ",
             counted(std::max(total, records.size()), "request"), " done, ", tokens, " tokens, ",
             three_digits(static_cast<double>(tokens) / seconds), " tok/s");
}

std::string BenchProgress::clear() {
  if (!shown_) return "";
  shown_ = false;
  return kClearLine;
}

}  // namespace nvllm::launcher
