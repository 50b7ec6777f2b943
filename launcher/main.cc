// nvllm-launch: parses the command line and runs the command that it names.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/system_files.h"
#include "base/text.h"
#include "base/visible_text.h"
#include "cluster/task.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/hub/pull.h"
#include "launcher/inherited_state.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_io.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {
namespace {

int run_completion(const Options& options, std::int64_t) {
  write_results(completion_script(options.shell));
  return kExitFine;
}

// The function of each command in the tables of options.
constexpr std::pair<std::string_view, int (*)(const Options& options, std::int64_t started_ns)>
    kCommands[] = {
        {"bench latency", run_bench_latency},
        {"bench long", run_bench_long},
        {"bench serve", run_bench_serve},
        {"bench startup", run_bench_startup},
        {"bench throughput", run_bench_throughput},
        {"chat", run_chat},
        {"completion", run_completion},
        {"detokenize", run_detokenize},
        {"doctor", run_doctor},
        {"generate", run_generate},
        {"inspect", run_inspect},
        {"pull", run_pull},
        {"selftest", run_selftest},
        {"serve", run_serve},
        {"template", run_template},
        {"tokenize", run_tokenize},
};

// Whether --model is a model on this machine.
bool takes_model(const std::string& name) {
  if (name == "bench serve") return false;  // there it is a name on a server
  for (const Command& command : commands()) {
    if (command.name != name) continue;
    for (const OptionRow& row : command.rows) {
      if (row.name == std::string_view("--model")) return true;
    }
  }
  return false;
}

// Whether the command reads the model's weights; text commands do not. A GGUF file contains
// everything.
bool wants_weights(const Options& options) {
  for (const std::string_view command : {"tokenize", "detokenize", "template"}) {
    if (options.command == command) return false;
  }
  return options.model.format != runtime::LoadFormat::dummy;
}

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

// Joins the other tasks, each on a box of its own. The workers must end with the launcher, and the
// launcher with the process that started it, even if the latter is killed.
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

// Writes an error as the program's last line: it may quote any input, but is always one line.
void print_error(const std::exception& error) {
  write_error_text(str("nvllm-launch: ", visible_text(error.what(), Breaks::none), '\n'));
}

int run(const std::vector<std::string>& arguments, std::int64_t started_ns) {
  Options options = parse_command_line(arguments);
  if (!options.message.empty()) {
    write_results(options.message);
    return kExitFine;
  }
  configure_logging({.level = options.group.log_level, .who = "launcher"});
  const cluster::Task task = or_refuse([] { return cluster::find_task(); });
  if (takes_model(options.command)) {
    options.model_name = options.model.path.empty() ? kDefaultModelName : options.model.path;
    options.model.path =
        options.model.path.empty()
            ? default_model(process_environment)
            : find_model(options.model.path, wants_weights(options), process_environment);
    or_refuse([&] { apply_environment(process_environment, options.engine); });
  }
  if (task.boxes > 1) join_boxes(options, task, arguments);
  if (options.group.task.box > 0) return follow_first_box(options);
  for (const auto& [command, run] : kCommands) {
    if (options.command == command) return run(options, started_ns);
  }
  fail("no such command: ", options.command);
}

}  // namespace
}  // namespace nvllm::launcher

int main(int argc, char** argv) {
  using namespace nvllm::launcher;
  const std::int64_t started_ns = nvllm::now_ns();
  try {
    reset_inherited_state();
    return run({argv + std::min(argc, 1), argv + argc}, started_ns);
  } catch (const OutputClosed&) {
    return kExitSignal + SIGPIPE;
  } catch (const UsageError& error) {
    print_error(error);
    return kExitUsage;
  } catch (const PullStopped& error) {
    print_error(error);
    return kExitSignal + error.signal();
  } catch (const SessionFailed& error) {
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    print_error(
        nvllm::Error("the system refuses more memory; free some, or raise the limit (ulimit -v)"));
    return kExitFailed;
  } catch (const std::exception& error) {
    print_error(error);
    return kExitFailed;
  }
}
