#include "launcher/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "ipc/group.h"
#include "launcher/version.h"
#include "model/config.h"

namespace nvllm::launcher {
namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw UsageError(str(parts...));
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A finite number of seconds; the caller checks its range.
double parse_seconds(std::string_view given, std::string_view value) {
  const auto seconds = parse_number<double>(value);
  if (!seconds || !std::isfinite(*seconds)) {
    refuse(given, " '", value, "': not a number of seconds; pass one such as 2 or 0.5");
  }
  return *seconds;
}

void store_ranks(Options& options, std::string_view given, std::string_view value) {
  const auto ranks = parse_number<int>(value);
  if (!ranks) refuse(given, " '", value, "': not a whole number; pass 1 to ", ipc::kMaxRanks);
  if (*ranks < 1)
    refuse(given, ' ', *ranks, ": at least one rank is needed; pass 1 to ", ipc::kMaxRanks);
  if (*ranks > ipc::kMaxRanks) {
    refuse(given, ' ', *ranks, ": a group has at most ", ipc::kMaxRanks, " ranks; pass 1 to ",
           ipc::kMaxRanks);
  }
  options.ranks = *ranks;
}

void store_device(Options& options, std::string_view given, std::string_view value) {
  if (value == "auto") {
    options.device = DeviceChoice::automatic;
  } else if (value == "cpu") {
    options.device = DeviceChoice::cpu;
  } else if (value == "cuda") {
    options.device = DeviceChoice::cuda;
  } else {
    refuse(given, " '", value, "': no such kind of device; pass auto, cpu or cuda");
  }
}

void store_step_timeout(Options& options, std::string_view given, std::string_view value) {
  constexpr double kLongest = 1e6;  // eleven days; nanoseconds in 64 bits hold more
  const double seconds = parse_seconds(given, value);
  if (seconds < 0.001 || seconds > kLongest) {
    refuse(given, ' ', value, ": a wait needs a limit; pass 0.001 to ", static_cast<long>(kLongest),
           " seconds");
  }
  options.step_timeout = Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

void store_collectives(Options& options, std::string_view given, std::string_view value) {
  const auto known = {"auto", "shm", "peer", "nccl"};
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    refuse(given, " '", value, "': no such implementation; pass auto, shm, peer or nccl");
  }
  options.collectives = value;
}

void store_log_level(Options& options, std::string_view given, std::string_view value) {
  try {
    options.log_level = parse_log_level(value);
  } catch (const Error&) {
    refuse(given, " '", value, "': no such level; pass debug, info, warning, error or off");
  }
}

void store_seconds(Options& options, std::string_view given, std::string_view value) {
  const double seconds = parse_seconds(given, value);
  if (seconds < 0 || seconds > 1e9) refuse(given, ' ', value, ": pass 0 to 1000000000 seconds");
  options.seconds = seconds;
}

void store_model(Options& options, std::string_view given, std::string_view value) {
  if (value.empty()) refuse(given, " '': pass a model's folder, its config.json or a .gguf file");
  options.model.path = value;
}

void store_dtype(Options& options, std::string_view given, std::string_view value) {
  options.model.dtype.reset();
  if (value == "auto") return;
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    if (value == name_of(type)) options.model.dtype = type;
  }
  if (!options.model.dtype) {
    refuse(given, " '", value, "': no such type; pass auto, bfloat16, float16 or float32");
  }
}

void store_load_format(Options& options, std::string_view given, std::string_view value) {
  using runtime::LoadFormat;
  constexpr std::pair<std::string_view, LoadFormat> kKnown[] = {
      {"auto", LoadFormat::automatic},
      {"dummy", LoadFormat::dummy},
      {"safetensors", LoadFormat::safetensors},
      {"gguf", LoadFormat::gguf},
  };
  for (const auto& [name, format] : kKnown) {
    if (name != value) continue;
    options.model.format = format;
    return;
  }
  refuse(given, " '", value, "': no such format; pass auto, dummy, safetensors or gguf");
}

void store_overrides(Options& options, std::string_view, std::string_view value) {
  try {
    model::check_overrides(value);
  } catch (const Error& error) {
    refuse(error.what());
  }
  options.model.overrides = value;
}

void check_inspect(const Options& options) {
  if (options.model.path.empty()) {
    refuse("inspect needs --model: a model's folder, its config.json or a .gguf file");
  }
  if (options.checksums && !options.load) {
    refuse("--checksums: are of weights that were loaded; pass --load, too");
  }
}

// The options of every command that takes a model.
constexpr OptionRow kModelRows[] = {
    {"--model", nullptr, "PATH",
     "a folder with config.json and weights, a config.json or a .gguf file", nullptr, store_model},
    {"--dtype", nullptr, "auto|bfloat16|float16|float32",
     "the type that weights get, and that is computed with; auto: the\n"
     "model's own, bfloat16 where that is float32",
     "auto", store_dtype},
    {"--load-format", nullptr, "auto|dummy|safetensors|gguf",
     "what the weights come from; auto: whatever is there;\n"
     "dummy: random values, the same in every run, of a config alone",
     "auto", store_load_format},
    {"--hf-overrides", nullptr, "JSON",
     "an object whose keys replace those of config.json;\n"
     "objects in it are merged: '{\"rope_scaling\": {\"factor\": 2}}'",
     nullptr, store_overrides},
};

// The options of every command that runs a worker group.
constexpr OptionRow kGroupRows[] = {
    {"--tp", "--tensor-parallel-size", "N",
     "how many ranks (worker processes): 1 to 8, on GPUs one for each",
     "every GPU (up to 8); 1 on the CPU", store_ranks},
    {"--device", nullptr, "auto|cpu|cuda",
     "where the ranks compute; auto: on GPUs where there are any", "auto", store_device},
    {"--step-timeout", nullptr, "SECONDS",
     "limit of every wait for a peer (fractions allowed); whoever exceeds\n"
     "it is named, and the run ends",
     "60", store_step_timeout},
    {"--collectives", nullptr, "auto|shm|peer|nccl",
     "how ranks reduce: shm on the CPU; peer or nccl on GPUs;\n"
     "auto: whatever measured best for each size",
     "auto", store_collectives},
    {"--log-level", nullptr, "LEVEL", "debug, info, warning, error or off", "info",
     store_log_level},
};

std::vector<OptionRow> with_model_rows(std::vector<OptionRow> own) {
  own.insert(own.begin(), std::begin(kModelRows), std::end(kModelRows));
  return own;
}

std::vector<OptionRow> with_group_rows(std::vector<OptionRow> own) {
  own.insert(own.begin(), std::begin(kGroupRows), std::end(kGroupRows));
  return own;
}

std::string general_help_hint(const std::string& command) {
  return command.empty() ? "nvllm-launch --help" : "nvllm-launch " + command + " --help";
}

[[noreturn]] void refuse_unknown(const char* kind, const std::string& given,
                                 const std::vector<std::string>& known,
                                 const std::string& command) {
  const std::string nearest = nearest_name(given, known);
  if (!nearest.empty()) refuse("unknown ", kind, " '", given, "'; did you mean '", nearest, "'?");
  refuse("unknown ", kind, " '", given, "'; see ", general_help_hint(command));
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> known;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    known.emplace_back(command.name);
  }
  refuse_unknown("command", name, known, "");
}

const OptionRow& find_row(const Command& command, const std::string& name) {
  std::vector<std::string> known = {"--help"};
  for (const OptionRow& row : command.rows) {
    if (row.name == name || (row.second_name != nullptr && row.second_name == name)) return row;
    known.emplace_back(row.name);
    if (row.second_name != nullptr) known.emplace_back(row.second_name);
  }
  refuse_unknown("option", name, known, command.name);
}

// "  --tp N, --tensor-parallel-size N", its help below and what holds without it.
std::string help_of(const OptionRow& row) {
  const std::string value = row.value != nullptr ? str(' ', row.value) : "";
  std::string text = str("  ", row.name, value);
  if (row.second_name != nullptr) text += str(", ", row.second_name, value);
  text += "\n      ";
  for (const char* c = row.help; *c != '\0'; ++c) {
    text += *c;
    if (*c == '\n') text += "      ";
  }
  if (row.fallback != nullptr) text += str("\n      default: ", row.fallback);
  return text + '\n';
}

void store_json(Options& options, std::string_view, std::string_view) {
  options.json = true;
}

constexpr const char* kExitCodeHelp =
    "Exit codes\n"
    "  0        fine\n"
    "  1        the run failed; the last line on standard error says why\n"
    "  2        wrong command line, or more than this machine has; nothing was started\n"
    "  3        a worker died\n"
    "  4        a worker was alive but stuck for longer than --step-timeout\n"
    "  128 + S  stopped by signal S: 130 for SIGINT, 143 for SIGTERM; a second SIGINT\n"
    "           does not wait for the workers to end by themselves\n";

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"selftest",
       "starts the workers, checks calls and collectives between them, and measures both",
       with_group_rows({
           {"--seconds", nullptr, "N",
            "then keeps calls and collectives going, all checked, for N seconds", "0",
            store_seconds},
           {"--json", nullptr, nullptr, "prints the result as JSON", nullptr, store_json},
           {"--memory-report", nullptr, nullptr,
            "adds what memory every rank has taken, and for what", nullptr,
            [](Options& options, std::string_view, std::string_view) {
              options.memory_report = true;
            }},
       })},
      {"inspect", "shows a model and which part of it every rank owns, and can load it",
       with_model_rows(with_group_rows({
           {"--load", nullptr, nullptr, "starts the workers, and every rank really loads its part",
            nullptr,
            [](Options& options, std::string_view, std::string_view) { options.load = true; }},
           {"--checksums", nullptr, nullptr,
            "with --load: adds a checksum of each rank's every parameter", nullptr,
            [](Options& options, std::string_view, std::string_view) { options.checksums = true; }},
           {"--json", nullptr, nullptr,
            "prints the result as JSON, with every slice of every parameter", nullptr, store_json},
       })),
       check_inspect},
  };
  return all;
}

Options parse_command_line(const std::vector<std::string>& arguments) {
  Options options;
  if (arguments.empty()) refuse("no command given; see nvllm-launch --help");
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") {
    options.text = help_text();
    return options;
  }
  if (first == "--version") {
    options.text = version_line();
    return options;
  }
  if (first.starts_with('-')) {
    refuse_unknown("option", first, {"--help", "--version"}, "");
  }
  const Command& command = find_command(first);
  options.command = command.name;

  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      Options help;
      help.text = help_text(command);
      return help;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (!name.starts_with('-'))
      refuse("'", argument, "': not an option; see ", general_help_hint(command.name));
    const OptionRow& row = find_row(command, name);
    if (row.value == nullptr) {
      if (equals != std::string::npos) refuse(name, " takes no value; pass it alone");
      row.store(options, name, "");
    } else if (equals != std::string::npos) {
      row.store(options, name, std::string_view(argument).substr(equals + 1));
    } else if (i + 1 < arguments.size()) {
      row.store(options, name, arguments[++i]);
    } else {
      refuse(name, " needs a value: ", name, ' ', row.value);
    }
  }
  if (command.check != nullptr) command.check(options);
  return options;
}

std::string version_line() {
  return str("nvllm ", kVersion, " (", NVLLM_BUILT_WITH, ")\n");
}

std::string help_text() {
  std::string text =
      "nvllm-launch starts one worker process per GPU, or per rank on the CPU, and watches over "
      "them.\n"
      "\n"
      "  nvllm-launch COMMAND [OPTIONS]\n"
      "  nvllm-launch COMMAND --help\n"
      "  nvllm-launch --version\n"
      "\n"
      "Commands\n";
  for (const Command& command : commands()) {
    const std::string name = command.name;
    text += str("  ", name, std::string(10 - name.size(), ' '), command.summary, '\n');
  }
  return text + "\n" + kExitCodeHelp;
}

std::string help_text(const Command& command) {
  std::string text = str("nvllm-launch ", command.name, " ", command.summary,
                         ".\n\nOptions (--name value or --name=value)\n");
  for (const OptionRow& row : command.rows) text += help_of(row);
  return text + "\n" + kExitCodeHelp;
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance =
      std::max<std::size_t>(2, word.size() / 3) + 1;  // farther is another word
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

}  // namespace nvllm::launcher
