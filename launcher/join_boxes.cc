#include "launcher/join_boxes.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/logging.h"
#include "base/system_files.h"
#include "base/text.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/program.h"

namespace nvllm::launcher {
namespace {

// Commands whose ranks may be on several boxes. All others have no ranks and run on each box
// independently.
constexpr std::string_view kOverBoxes[] = {"bench latency",    "bench long", "bench startup",
                                           "bench throughput", "chat",       "generate",
                                           "selftest",         "serve"};

bool has_ranks(const Options& options) {
  if (options.command == "inspect") return options.inspect_load;
  return std::ranges::find(kOverBoxes, options.command) != std::end(kOverBoxes);
}

// Why the command cannot run over several boxes, and the fix; empty: it can.
std::string refusal_over_boxes(const Options& options) {
  if (options.command == "bench startup" && options.bench.repeat > 1) {
    return "bench startup: boxes can be joined once, so each start needs an mpirun or srun of its "
           "own; pass --repeat 1, and run that several times";
  }
  if (options.command == "bench long" && options.bench.modes.size() > 1) {
    return str(
        "bench long: each mode starts a group, and boxes can be joined once; pass one mode, "
        "--modes ",
        name_of(options.bench.modes.front()));
  }
  return "";
}

// Advice for users of mpirun, given once.
void advise(const cluster::Task& task) {
  cpu_set_t cores;
  const long all = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < all) {
    log_warning("box ", task.box, " may use ", CPU_COUNT(&cores), " of its ", all,
                " cores: mpirun binds tasks to cores; pass --bind-to none");
  }
  if (task.box != 0 || task.starter != "mpirun") return;
  // Open MPI 4.1 hands on what it was given, wherever that stood; 5.0 does not.
  constexpr const char* kKeepalive = "oob_tcp_keepalive_time";
  if (::getenv(str("OMPI_MCA_", kKeepalive).c_str()) != nullptr) return;
  const std::string starter = str("/proc/", ::getppid());
  for (const char* file : {"/cmdline", "/environ"}) {
    if (system_text(starter + file).find(kKeepalive) != std::string::npos) return;
  }
  log_info(
      "mpirun notices a lost box after minutes; to have it do so in seconds, pass it --mca "
      "oob_tcp_keepalive_time 2 --mca oob_tcp_keepalive_intvl 1 --mca "
      "oob_tcp_keepalive_probes 3");
}

}  // namespace

void join_boxes(Options& options, const cluster::Task& task,
                const std::vector<std::string>& arguments) {
  const pid_t starter = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != starter) ::_exit(kExitFailed);
  if (const std::string why = refusal_over_boxes(options); !why.empty()) {
    refuse(why, " (this is one of ", task.boxes, " tasks of ", task.starter, ')');
  }
  if (!has_ranks(options)) return;
  options.group.task = task;
  for (const std::string& argument : arguments) {
    options.group.command_line += str(options.group.command_line.empty() ? "" : " ", argument);
  }
  advise(task);
}

}  // namespace nvllm::launcher
