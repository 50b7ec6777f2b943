// The command selftest: runs the workers' checks of calls and collectives, and prints their report.
#include "runtime/worker/selftest.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "device/topology.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/session/load_display.h"
#include "launcher/session/text_io.h"
#include "launcher/session/text_table.h"
#include "launcher/supervise/run_workers.h"

namespace nvllm::launcher {
namespace {

using runtime::RankReport;
using runtime::SelftestRow;

// The results of a selftest, and its start times.
struct SelftestReport {
  DeviceKind device = DeviceKind::cpu;
  std::int64_t started_ns = 0;     // start of the launcher
  std::int64_t forked_ns = 0;      // when all workers existed
  bool memory = false;             // whether to report the memory of each rank
  std::vector<int> box_ranks;      // of each box, if there are several
  std::vector<std::string> boxes;  // what to call them
  runtime::SelftestResult result;
};

// The maximum over the ranks, in milliseconds after the launcher's start.
double latest(const SelftestReport& report, std::int64_t runtime::StartTimes::*stage) {
  std::int64_t last = 0;
  for (const RankReport& rank : report.result.ranks) last = std::max(last, rank.start.*stage);
  return static_cast<double>(last - report.started_ns) * 1e-6;
}

int box_of(const SelftestReport& report, std::size_t rank) {
  int box = 0;
  for (auto left = static_cast<int>(rank);
       left >= report.box_ranks.at(static_cast<std::size_t>(box)); ++box) {
    left -= report.box_ranks[static_cast<std::size_t>(box)];
  }
  return box;
}

// "  box 1 (node17): ranks 2 to 3 on NVIDIA H200"
std::string format_boxes(const SelftestReport& report) {
  std::string text;
  std::size_t rank = 0;
  for (std::size_t box = 0; box < report.boxes.size(); ++box) {
    const auto ranks = static_cast<std::size_t>(report.box_ranks[box]);
    text += str("  ", report.boxes[box], ranks == 1 ? ": rank " : ": ranks ", rank,
                ranks == 1 ? "" : str(" to ", rank + ranks - 1), " on ",
                report.result.ranks.at(rank).device, '\n');
    rank += ranks;
  }
  return text;
}

std::vector<SelftestRow> start_rows(const SelftestReport& report) {
  return {
      {"start: workers forked after",
       static_cast<double>(report.forked_ns - report.started_ns) * 1e-6, "ms"},
      {"start: all joined after", latest(report, &runtime::StartTimes::joined_ns), "ms"},
      {"start: devices ready after", latest(report, &runtime::StartTimes::backend_ns), "ms"},
      {"start: communicators ready after", latest(report, &runtime::StartTimes::communicator_ns),
       "ms"},
      {"start: all ranks ready after", latest(report, &runtime::StartTimes::ready_ns), "ms"},
  };
}

// Integers unchanged, others with three significant digits.
std::string format_value(double value) {
  const bool whole = value == static_cast<double>(static_cast<long long>(value));
  const double size = std::abs(value);
  return fixed(value, whole ? 0 : size < 10 ? 2 : size < 100 ? 1 : 0);
}

std::vector<SelftestRow> all_rows(const SelftestReport& report) {
  std::vector<SelftestRow> rows = start_rows(report);
  rows.insert(rows.end(), report.result.rows.begin(), report.result.rows.end());
  return rows;
}

std::string format_table(const SelftestReport& report) {
  const runtime::SelftestResult& result = report.result;
  const RankReport& first = result.ranks.front();
  std::string text = str("nvllm ", kVersion, " selftest: ", result.ranks.size(),
                         result.ranks.size() == 1 ? " rank on " : " ranks on ", first.device,
                         ", collectives ", first.collectives, '\n') +
                     format_boxes(report);
  TextTable table;
  for (const SelftestRow& row : all_rows(report)) {
    table.add_row({row.name, format_value(row.value), row.unit});
  }
  text += table.text();
  if (report.memory) {
    text += format_memory(result.ranks);
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      std::uint64_t total = 0;
      for (const runtime::MemoryLine& line : result.ranks[rank].memory) total += line.bytes;
      text += str("  total of rank ", rank, "  ", total, " bytes\n");
    }
  }
  return text + (result.failures.empty() ? "all checks passed\n" : "CHECKS FAILED\n");
}

std::string format_json(const SelftestReport& report) {
  const runtime::SelftestResult& result = report.result;
  nlohmann::ordered_json json = {
      {"version", kVersion},
      {"device", name_of(report.device)},
      {"ranks", nlohmann::ordered_json::array()},
      {"collectives", result.ranks.front().collectives},
      {"passed", result.failures.empty()},
      {"failures", result.failures},
      {"rows", nlohmann::ordered_json::array()},
  };
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const RankReport& from = result.ranks[rank];
    const auto after = [&](std::int64_t time_ns) {
      return static_cast<double>(time_ns - report.started_ns) * 1e-6;
    };
    nlohmann::ordered_json one = {
        {"rank", rank},
        {"pid", from.pid},
        {"device", from.device},
        {"cores", from.cores},
        {"start_ms",
         {{"joined", after(from.start.joined_ns)},
          {"device", after(from.start.backend_ns)},
          {"communicator", after(from.start.communicator_ns)},
          {"ready", after(from.start.ready_ns)}}},
    };
    if (!report.box_ranks.empty()) one["box"] = box_of(report, rank);
    if (report.memory) {
      one["memory"] = nlohmann::ordered_json::array();
      for (const runtime::MemoryLine& line : from.memory) {
        one["memory"].push_back({{"kind", line.kind},
                                 {"purpose", line.purpose},
                                 {"bytes", line.bytes},
                                 {"buffers", line.buffers}});
      }
    }
    json["ranks"].push_back(std::move(one));
  }
  for (const SelftestRow& row : all_rows(report)) {
    json["rows"].push_back({{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
  }
  return json_text(json, 2) + '\n';
}

}  // namespace

int run_selftest(const Options& options, std::int64_t started_ns) {
  const LaunchPlan plan = plan_launch(options.group, cuda_built(), visible_gpus);
  SelftestReport report{.device = plan.device,
                        .started_ns = started_ns,
                        .memory = options.memory_report,
                        .box_ranks = plan.box_ranks,
                        .boxes = {},
                        .result = {}};
  const int exit_code = run_workers(options.group, plan, nullptr, [&](WorkerGroup& workers) {
    report.forked_ns = now_ns();
    report.result =
        ask_rank0<runtime::SelftestResult>(workers.member(), "selftest", options.selftest_seconds);
    for (std::size_t box = 0; box < plan.box_ranks.size(); ++box) {
      report.boxes.push_back(workers.member().group().box_text(static_cast<int>(box)));
    }
  });
  if (exit_code != kExitFine) return exit_code;
  write_results(options.json ? format_json(report) : format_table(report));
  const std::vector<std::string>& failures = report.result.failures;
  if (failures.empty()) return kExitFine;
  fail(failures.size(),
       failures.size() == 1 ? " check failed: " : " checks failed, the first: ", failures.front());
}

}  // namespace nvllm::launcher
