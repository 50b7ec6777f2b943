#include "launcher/supervise/post_mortem.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/system_files.h"
#include "base/text.h"

namespace nvllm::launcher {
namespace {

using Kind = Culprit::Kind;

// Follows the chain of ranks that wait for each other to one that waits for none. In a cycle: to
// the last rank that was not seen before.
int end_of_waiting(const std::vector<WorkerView>& workers, int rank) {
  std::vector<bool> seen(workers.size());
  while (true) {
    seen[static_cast<std::size_t>(rank)] = true;
    const int next = workers[static_cast<std::size_t>(rank)].record.waits_for;
    if (next < 0 || next >= static_cast<int>(workers.size()) ||
        seen[static_cast<std::size_t>(next)])
      return rank;
    rank = next;
  }
}

Culprit blame(const std::vector<WorkerView>& workers, int rank) {
  const int end = end_of_waiting(workers, rank);
  const WorkerView& worker = workers[static_cast<std::size_t>(end)];
  // A rank that has reported its error is not stuck, though it may need a moment to end.
  const bool ends = worker.status || !worker.record.error_text.empty();
  return {end, ends ? Kind::died : Kind::stuck};
}

template <typename Condition>
const WorkerView* find(const std::vector<WorkerView>& workers, Condition condition) {
  const auto found = std::find_if(workers.begin(), workers.end(), condition);
  return found != workers.end() ? &*found : nullptr;
}

std::string age(std::int64_t since_ns, std::int64_t now_ns) {
  return format_duration(static_cast<double>(std::max<std::int64_t>(0, now_ns - since_ns)) * 1e-9);
}

// "in all_reduce 4096 float32 #40 for 1.20 s, called by run #7 (1.21 s)"; empty: idle.
std::string doing(const ipc::RankSnapshot& record, std::int64_t now_ns) {
  std::string text;
  for (const ipc::ActivitySnapshot* activity : {&record.collective, &record.call}) {
    if (activity->text.empty()) continue;
    text += str(text.empty() ? "in " : ", within ", activity->text, " #", activity->number, " for ",
                age(activity->since_ns, now_ns));
  }
  return text;
}

// Why the rank counts as stuck.
std::string stuck_reason(const WorkerView& worker, std::int64_t now_ns) {
  if (worker.stopped_by) return "stopped by " + signal_name(*worker.stopped_by);
  if (worker.record.pid == 0) return "has never joined the group";
  if (worker.box_silent) {
    return str("nothing has come from its box for ", age(worker.record.heartbeat_ns, now_ns),
               ": it has failed, or the network to it");
  }
  if (worker.silent) return "no sign of life for " + age(worker.record.heartbeat_ns, now_ns);
  if (worker.overdue) return "no progress";
  return "others waited for it in vain";
}

std::string ending(const WorkerView& worker, const Culprit& culprit, std::int64_t now_ns) {
  if (worker.status) {
    const std::string how = worker.status->describe();
    return worker.killed_why.empty() ? how : str(how, " (", worker.killed_why, ")");
  }
  if (worker.rank == culprit.rank && culprit.kind == Kind::died) return "gave up";
  if (worker.rank == culprit.rank || worker.stopped_by) {
    return str("alive but stuck (", stuck_reason(worker, now_ns), ")");
  }
  return "ended by the launcher";
}

std::string headline(const WorkerView& worker, const Culprit& culprit, std::int64_t now_ns) {
  const std::string activity = doing(worker.record, now_ns);
  return str("rank ", worker.rank, " (pid ", worker.pid, worker.box.empty() ? "" : " on ",
             worker.box, ") ", culprit.kind == Kind::died ? "died: " : "is ",
             ending(worker, culprit, now_ns), activity.empty() ? "" : ", ", activity,
             worker.record.error_text.empty() ? "" : ": ", worker.record.error_text);
}

std::string rank_line(const WorkerView& worker, const Culprit& culprit, std::int64_t now_ns) {
  const ipc::RankSnapshot& record = worker.record;
  std::string text = str("  rank ", worker.rank, "  pid ", worker.pid, "  ", worker.box,
                         worker.box.empty() ? "" : "  ", ending(worker, culprit, now_ns), "; step ",
                         record.step, "; ");
  const std::string activity = doing(record, now_ns);
  if (!activity.empty()) {
    text += activity;
  } else if (record.phase == ipc::Phase::ready) {
    text += "idle";
  } else {
    text += ipc::name_of(record.phase);
  }
  if (record.waits_for == ipc::kLink) {
    text += "; waiting for the link to other boxes";
  } else if (record.waits_for >= 0) {
    text += str("; waiting for rank ", record.waits_for);
  }
  if (!record.error_text.empty()) text += str("; last error: ", record.error_text);
  return text + '\n';
}

}  // namespace

std::optional<Culprit> find_culprit(const std::vector<WorkerView>& workers, bool aborted) {
  const auto ended = [](auto& w) { return w.status && !w.done; };
  const auto waits = [](auto& w) { return w.record.waits_for >= 0; };

  // Even if the status is unknown: if no rank aborted and it left no error, it did not give up by
  // itself.
  const WorkerView* found = find(workers, [&](auto& w) {
    if (!ended(w)) return false;
    return w.status->by_signal() || (!w.status->known() && !aborted && w.record.error_text.empty());
  });
  if (found != nullptr) return Culprit{found->rank, Kind::died};

  // A stopped process is the culprit only after something else failed: it may be continued in time.
  const bool trouble = aborted || find(workers, ended) != nullptr;
  found = find(workers, [&](auto& w) { return w.silent || (trouble && w.stopped_by); });
  if (found != nullptr) return Culprit{found->rank, Kind::stuck};

  if (aborted) {
    // One rank gave up, and the others ended because of that. Its record says which rank it waited
    // for.
    found = find(workers, [&](auto& w) { return ended(w) && waits(w); });
    if (found == nullptr) found = find(workers, waits);
  }
  // A rank that ended without waiting for another one has its own reason.
  if (found == nullptr) found = find(workers, [&](auto& w) { return ended(w) && !waits(w); });
  if (found == nullptr) found = find(workers, ended);
  if (found == nullptr) found = find(workers, [](auto& w) { return w.overdue; });
  if (found == nullptr) return std::nullopt;
  return blame(workers, found->rank);
}

std::string post_mortem_line(const std::vector<WorkerView>& workers, const Culprit& culprit,
                             std::int64_t now_ns) {
  const WorkerView& worker = workers[static_cast<std::size_t>(culprit.rank)];
  return str("nvllm-launch: ", headline(worker, culprit, now_ns), '\n');
}

std::string rank_lines(const std::vector<WorkerView>& workers, std::int64_t now_ns) {
  constexpr int kNoRank = -1;
  std::string text;
  for (const WorkerView& each : workers) text += rank_line(each, {.rank = kNoRank}, now_ns);
  return text;
}

std::string post_mortem(const std::vector<WorkerView>& workers, const Culprit& culprit,
                        std::int64_t now_ns) {
  std::string text = post_mortem_line(workers, culprit, now_ns);
  for (const WorkerView& each : workers) text += rank_line(each, culprit, now_ns);
  return text;
}

std::uint64_t oom_kills(const std::string& root) {
  constexpr const char* kKills = "oom_kill";
  // In a container the path may only be valid on the host; then the mount itself is the container's
  // group.
  for (const MemoryGroup& group : memory_groups(system_text(root + "/proc/self/cgroup"))) {
    const std::string mount = root + (group.version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const char* const file = group.version2 ? "/memory.events" : "/memory.oom_control";
    for (const std::string& folder : {mount + group.path, mount}) {
      if (const auto count = number_after(folder + file, kKills)) return *count;
    }
  }
  return number_after(root + "/proc/vmstat", kKills).value_or(0);
}

}  // namespace nvllm::launcher
