#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "launcher/supervise/run_workers.h"
#include "launcher/testing/bad_command_lines.h"

namespace nvllm::launcher {
namespace {

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    parse_command_line(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

Options selftest(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "selftest");
  return parse_command_line(arguments);
}

Options inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "inspect");
  return parse_command_line(arguments);
}

// The error of plan_launch on a machine with these GPUs.
std::string plan_refusal(const std::vector<std::string>& arguments,
                         const std::vector<std::string>& gpus, bool cuda_built = true) {
  try {
    plan_launch(selftest(arguments).group, cuda_built, [&](std::string* why_none) {
      *why_none = "no NVIDIA driver is loaded";
      return gpus;
    });
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

LaunchPlan plan(const std::vector<std::string>& arguments, const std::vector<std::string>& gpus) {
  return plan_launch(selftest(arguments).group, true, [&](std::string*) { return gpus; });
}

}  // namespace

TEST_CASE("options are taken as two words or one, by either name") {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--tp", "3"},
                                                                 {"--tp=3"},
                                                                 {"--tensor-parallel-size", "3"},
                                                                 {"--tensor-parallel-size=3"}}) {
    CHECK(selftest(words).group.ranks == 3);
  }
  const Options options =
      selftest({"--device=cpu", "--step-timeout", "0.25", "--log-level=debug", "--collectives",
                "shm", "--seconds=1.5", "--json", "--memory-report"});
  CHECK(options.command == "selftest");
  CHECK(options.group.device == DeviceKind::cpu);
  CHECK(options.group.step_timeout == std::chrono::milliseconds(250));
  CHECK(options.group.log_level == LogLevel::debug);
  CHECK(options.group.collectives == "shm");
  CHECK(options.selftest_seconds == 1.5);
  CHECK(options.json);
  CHECK(options.memory_report);
}

TEST_CASE("inspect takes a model, how to load it, and what to tell") {
  const Options options =
      inspect({"--model", "models/a", "--tp=4", "--dtype", "float16", "--load-format=dummy",
               "--hf-overrides", R"({"vocab_size": 7})", "--load", "--checksums", "--json"});
  CHECK(options.command == "inspect");
  CHECK(options.model.path == "models/a");
  CHECK(options.group.ranks == 4);
  CHECK(options.model.dtype == DType::f16);
  CHECK(options.model.format == runtime::LoadFormat::dummy);
  CHECK(options.model.overrides == R"({"vocab_size": 7})");
  CHECK(options.inspect_load);
  CHECK(options.inspect_checksums);
  CHECK(options.json);
  const Options plain = inspect({"--model=a"});
  CHECK(plain.model.format == runtime::LoadFormat::automatic);
  CHECK_FALSE(plain.model.dtype.has_value());
  CHECK(plain.model.overrides == "");
  CHECK_FALSE(plain.inspect_load);
  CHECK_FALSE(plain.inspect_checksums);
  CHECK(inspect({"--model=a", "--dtype=float32", "--dtype=auto"}).model.dtype == std::nullopt);
}

TEST_CASE("words that are no options are texts; after -- all are") {
  const Options options =
      parse_command_line({"tokenize", "a b", "--model=m", "", "--", "--help", "--", "c"});
  CHECK(options.text.words == std::vector<std::string>{"a b", "", "--help", "--", "c"});
  CHECK(options.model.path == "m");
  CHECK(options.message == "");
}

TEST_CASE("without a command it is a chat, or a prompt to be answered") {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--tp", "2", "Tell me a story."},
                                                                 {"Tell me a story.", "--tp=2"}}) {
    const Options options = parse_command_line(words);
    CHECK(options.command == "chat");
    CHECK_FALSE(options.chat.command);
    CHECK(options.chat.prompt == "Tell me a story.");
    CHECK(options.group.ranks == 2);
  }
  CHECK(parse_command_line({"Hello!"}).chat.prompt == "Hello!");
  CHECK_FALSE(parse_command_line({}).chat.prompt.has_value());
  CHECK_FALSE(parse_command_line({"--tp=2"}).chat.command);
  CHECK(parse_command_line({"chat"}).chat.command);
}

TEST_CASE("without options there are defaults") {
  const Options options = selftest({});
  CHECK_FALSE(options.group.ranks.has_value());
  CHECK(options.group.device == std::nullopt);
  CHECK(options.group.step_timeout == std::chrono::seconds(60));
  CHECK(options.group.collectives == "auto");
  CHECK(options.selftest_seconds == 0);
  CHECK_FALSE(options.json);
}

TEST_CASE("what cannot be followed is refused in one line that names the fix") {
  for (const testing::BadCommandLine& line : testing::bad_command_lines()) {
    CHECK(refusal(line.words) == line.message);
  }
}

TEST_CASE("a lone word is no prompt, unless it has signs that no name has") {
  for (const char* const word :
       {"cheat?", "help!", "what's up", "a b", "\u4f60\u597d", "1+1", "/\\"}) {
    CHECK_MESSAGE(parse_command_line({word}).chat.prompt == word, word);
  }
  for (const char* const word : {"What", "that", "dogs", "CHAT", "a/b/c", "1/2", "a"}) {
    CHECK(refusal({word}) == std::string("unknown command '") + word +
                                 "'; see nvllm-launch --help. As a prompt: nvllm-launch -- " +
                                 word);
    CHECK_MESSAGE(parse_command_line({"--", word}).chat.prompt == word, word);
    CHECK_MESSAGE(parse_command_line({"chat", word}).chat.prompt == word, word);
  }
  for (const char* const word :
       {"caht", "hcat", "chta", "cht", "chatt", "generte", "genrate", "geenrate", "inpsect",
        "slftest", "docter", "tokenise", "compeltion"}) {
    CHECK_MESSAGE(refusal({word}).starts_with("unknown command "), word);
    CHECK_MESSAGE(refusal({word}).ends_with(std::string("nvllm-launch -- ") + word), word);
    CHECK_MESSAGE(parse_command_line({"--", word}).chat.prompt == word, word);
  }
  CHECK(parse_command_line({"caht with me"}).chat.prompt == "caht with me");
  // The rule holds after options, too.
  CHECK(refusal({"--tp", "2", "sevre"}) ==
        "unknown command 'sevre'; did you mean 'serve'? As a prompt: nvllm-launch -- sevre");
  CHECK(refusal({"--device=cpu", "hello", "--tp=2"}) ==
        "unknown command 'hello'; see nvllm-launch --help. As a prompt: nvllm-launch -- hello");
  CHECK(parse_command_line({"--tp", "2", "--", "hello"}).chat.prompt == "hello");
  CHECK(parse_command_line({"--tp", "2", "-"}).chat.prompt == "-");
  CHECK(parse_command_line({"-p", "hello", "--tp=2"}).chat.prompt == "hello");
}

TEST_CASE("a model is no prompt, wherever it stands") {
  const std::string folder = std::filesystem::temp_directory_path();
  for (const std::string& model : std::vector<std::string>{
           "Qwen/Qwen3-0.6B", "01-ai/Yi-6B@main", "org/name:Q4_K_M", "/nowhere/M.gguf", folder}) {
    const std::string fix = str("'", model, "': looks like a model; pass --model ", model,
                                ". As a prompt: nvllm-launch ");
    CHECK(refusal({model}) == str(fix, "-- ", model));
    CHECK(refusal({"--device", "cpu", "-n", "3", model}) == str(fix, "-- ", model));
    CHECK(refusal({"chat", model, "-n", "3"}) == str(fix, "chat -- ", model));
    CHECK(parse_command_line({"chat", "--", model}).chat.prompt == model);
    CHECK(parse_command_line({"chat", "--prompt", model}).chat.prompt == model);
  }
  CHECK(parse_command_line({"chat", "What is Qwen/Qwen3-0.6B?"}).chat.command);
}

TEST_CASE("the machine decides what the defaults are") {
  const LaunchPlan on_cpu = plan({}, {});
  CHECK(on_cpu.device == DeviceKind::cpu);
  CHECK(on_cpu.ranks == 1);
  const LaunchPlan on_gpus = plan({}, {"4", "GPU-1f"});
  CHECK(on_gpus.device == DeviceKind::cuda);
  CHECK(on_gpus.ranks == 2);
  CHECK(on_gpus.gpus == std::vector<std::string>{"4", "GPU-1f"});
  CHECK(plan({}, std::vector<std::string>(16, "0")).ranks == 8);
  CHECK(plan({"--tp", "1"}, {"4", "5"}).gpus == std::vector<std::string>{"4"});
  CHECK(plan({"--device", "cpu", "--tp", "3"}, {"0"}).ranks == 3);
}

TEST_CASE("pipeline stages have so many ranks each") {
  const auto planned = [](std::vector<std::string> arguments, std::vector<std::string> gpus) {
    arguments.insert(arguments.begin(), {"generate", "--model=m", "--prompt-ids=1"});
    const GroupOptions options = parse_command_line(arguments).group;
    return plan_launch(options, true, [&](std::string*) { return gpus; });
  };
  CHECK(planned({"--pp=3"}, {}).ranks == 3);
  CHECK(planned({"--pipeline-parallel-size=2", "--tp=4"}, {}).ranks == 8);
  CHECK(planned({"--pp=2", "--device=cpu"}, {"0", "1"}).ranks == 2);
  CHECK(planned({"--pp=2", "--device=cpu"}, {"0", "1"}).gpus.empty());
  CHECK(planned({"--pp=2", "--tp=1"}, {"4", "5", "6"}).gpus == std::vector<std::string>{"4", "5"});
  CHECK_THROWS_WITH_AS(planned({"--pp=3", "--tp=3"}, {}),
                       "--pp 3: so many stages of 3 ranks (--tp) are 9 ranks, and there can be 8; "
                       "pass --pp 2 or less, or a smaller --tp",
                       UsageError);
  CHECK_THROWS_WITH_AS(planned({"--pp=2"}, {"0"}),
                       "--pp 2: so many stages of 1 rank (--tp) are 2 GPUs, and this machine has 1 "
                       "available; pass a smaller --pp, or --device cpu",
                       UsageError);
  CHECK_THROWS_WITH_AS(planned({"--pp=2", "--tp=2"}, {"0", "1"}),
                       "--pp 2: so many stages of 2 ranks (--tp) are 4 GPUs, and this machine has "
                       "2 available; pass a smaller --pp or --tp, or --device cpu",
                       UsageError);
}

TEST_CASE("over several boxes pipeline stages fill them in order") {
  const auto planned = [](std::vector<std::string> arguments, int boxes) {
    arguments.insert(arguments.begin(), {"generate", "--model=m", "--prompt-ids=1"});
    GroupOptions options = parse_command_line(arguments).group;
    options.task = {.boxes = boxes, .box = 1, .starter = "mpirun"};
    return plan_launch(options, false, nullptr).box_ranks;
  };
  CHECK(planned({"--pp=2"}, 2) == std::vector<int>{1, 1});
  CHECK(planned({"--pp=3", "--tp=2"}, 2) == std::vector<int>{4, 2});
  // Without --tp, there are enough ranks that each box has at least one.
  CHECK(planned({"--pp=2"}, 4) == std::vector<int>{1, 1, 1, 1});
  CHECK(planned({"--pp=2"}, 3) == std::vector<int>{2, 1, 1});
  CHECK_THROWS_AS(planned({"--pp=2", "--tp=1"}, 3), UsageError);
}

TEST_CASE("without --tp all GPUs are divided among the pipeline stages") {
  const auto ranks = [](const char* stages, std::size_t gpus) {
    const GroupOptions options =
        parse_command_line({"generate", "--model=m", "--prompt-ids=1", stages}).group;
    const auto found = [&](std::string*) { return std::vector<std::string>(gpus, "0"); };
    return plan_launch(options, true, found).ranks;
  };
  CHECK(ranks("--pp=2", 4) == 4);
  CHECK(ranks("--pp=2", 5) == 4);
  CHECK(ranks("--pp=4", 4) == 4);
  CHECK(ranks("--pp=3", 16) == 6);
}

TEST_CASE("a CPU run does not ask for GPUs") {
  bool looked = false;
  plan_launch(selftest({"--device", "cpu"}).group, true, [&](std::string*) {
    looked = true;
    return std::vector<std::string>{"0"};
  });
  CHECK_FALSE(looked);
}

namespace {

// The plan of the second of two boxes with these GPUs.
LaunchPlan planned_on_box_1(std::vector<std::string> arguments, std::vector<std::string> gpus,
                            bool shares_machine = false) {
  GroupOptions options = selftest(std::move(arguments)).group;
  options.task = {.boxes = 2, .box = 1, .starter = "mpirun", .shares_machine = shares_machine};
  return plan_launch(options, true, [&](std::string*) { return gpus; });
}

}  // namespace

TEST_CASE("over several boxes ranks are dealt to them") {
  const auto planned = [](std::vector<std::string> arguments, std::vector<std::string> gpus) {
    return planned_on_box_1(std::move(arguments), std::move(gpus));
  };
  CHECK(planned({}, {}).box_ranks == std::vector<int>{1, 1});
  CHECK(planned({"--tp", "3"}, {}).box_ranks == std::vector<int>{2, 1});
  CHECK(planned({"--device", "cpu"}, {"0"}).ranks == 2);
  CHECK_THROWS_WITH_AS(planned({"--tp", "1"}, {}),
                       "--tp 1: is less than one rank for each of 2 boxes; pass --tp 2 or more, "
                       "or start fewer tasks",
                       UsageError);
}

TEST_CASE("over several boxes each rank has a GPU of its own box") {
  using Strings = std::vector<std::string>;
  CHECK(planned_on_box_1({"--tp", "2"}, {"3", "5"}).gpus == Strings{"", "3"});
  CHECK(planned_on_box_1({"--tp", "4"}, {"3", "5"}).gpus == Strings{"", "", "3", "5"});
  CHECK(planned_on_box_1({"--tp", "3"}, {"3", "5"}).gpus == Strings{"", "", "3"});
  // Without --tp each box is assumed to have as many GPUs as this one.
  CHECK(planned_on_box_1({}, {"3", "5"}).gpus == Strings{"", "", "3", "5"});
  CHECK(planned_on_box_1({}, Strings(8, "0")).box_ranks == std::vector<int>{4, 4});
  CHECK_THROWS_WITH_AS(
      planned_on_box_1({"--tp", "4"}, {"0"}),
      "--tp 4: box 1 gets 2 of all 4 ranks, and has 1 GPU available; pass a smaller "
      "--tp or --pp, start more boxes, or pass --device cpu",
      UsageError);
  CHECK_THROWS_WITH_AS(planned_on_box_1({"--collectives", "peer"}, {"0"}),
                       "--collectives peer: GPUs of other boxes have no access to the memory of "
                       "this one's; pass auto or nccl",
                       UsageError);
}

TEST_CASE("collectives in two levels are for boxes with equally many ranks of a stage") {
  using Strings = std::vector<std::string>;
  const auto refusal = [](Strings arguments, std::size_t gpus) {
    arguments.insert(arguments.end(), {"--collectives", "two-level"});
    try {
      planned_on_box_1(arguments, Strings(gpus, "0"));
      return std::string("accepted");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  CHECK(refusal({"--tp", "4"}, 2) == "accepted");
  CHECK(refusal({"--tp", "2"}, 1) ==
        "--collectives two-level: no box has two ranks of a stage; pass auto or nccl");
  CHECK(refusal({"--tp", "3"}, 2) ==
        "--collectives two-level: boxes have different numbers of a stage's ranks, such as 2 and "
        "1; pass auto or nccl");
  CHECK(plan_refusal({"--collectives", "two-level"}, {"0", "1"}) ==
        "--collectives two-level: all ranks are on one box; pass auto or peer");
  CHECK(plan_refusal({"--collectives", "two-level"}, {}) ==
        "--collectives two-level: needs GPUs, and this run is on the CPU; pass auto or shm");
}

TEST_CASE("several tasks on one machine are for GPUs") {
  CHECK(planned_on_box_1({"--tp", "2"}, {"1"}, true).ranks == 2);
  CHECK_THROWS_WITH_AS(planned_on_box_1({"--device", "cpu"}, {"1"}, true),
                       "mpirun has started several tasks on one machine, which is of use for GPUs, "
                       "and this run is on the CPU; start one task on each (mpirun --map-by "
                       "ppr:1:node, srun --ntasks-per-node=1)",
                       UsageError);
}

TEST_CASE("who only looks may plan for more than the machine has") {
  const auto ranks = [](std::vector<std::string> arguments, std::vector<std::string> gpus) {
    arguments.insert(arguments.begin(), {"--model", "a"});
    return plan_ranks(inspect(arguments).group, true, [&](std::string*) { return gpus; });
  };
  CHECK(ranks({}, {}) == 1);
  CHECK(ranks({}, {"0", "1"}) == 2);
  CHECK(ranks({"--device=cpu"}, {"0", "1"}) == 1);
  CHECK(ranks({"--device=cuda", "--tp=8"}, {}) == 8);
}

TEST_CASE("more than the machine has is refused") {
  const std::vector<std::string> two = {"0", "1"};
  CHECK(plan_refusal({"--tp", "4"}, two) ==
        "--tp 4: this machine has 2 GPUs available; pass --tp 2 or less, or --device cpu");
  CHECK(plan_refusal({"--tp", "2"}, {"0"}) ==
        "--tp 2: this machine has 1 GPU available; pass --tp 1, or --device cpu");
  CHECK(plan_refusal({"--device", "cuda"}, {}) ==
        "--device cuda: no GPU here: no NVIDIA driver is loaded; pass --device cpu");
  CHECK(plan_refusal({"--device", "cuda"}, two, false) ==
        "--device cuda: this program was built without CUDA; pass --device cpu, or build it where "
        "the CUDA toolkit "
        "and NCCL are");
  CHECK(plan_refusal({"--collectives", "nccl"}, {}) ==
        "--collectives nccl: needs GPUs, and this run is on the CPU; pass auto or shm");
  CHECK(plan_refusal({"--collectives", "shm"}, two) ==
        "--collectives shm: is for the CPU, and this run is on GPUs; pass auto, peer or nccl");
  CHECK(plan_refusal({"--collectives", "peer"}, two) == "accepted");
}

TEST_CASE("origins are separated by commas, or a JSON list") {
  const auto origins = [](const std::string& value) {
    return parse_command_line({"serve", "--model=m", "--allowed-origins", value})
        .serve.allowed_origins;
  };
  using Origins = std::vector<std::string>;
  CHECK(origins("*") == Origins{"*"});
  CHECK(origins("http://a.example,http://b.example") ==
        Origins{"http://a.example", "http://b.example"});
  CHECK(origins(R"(["*"])") == Origins{"*"});
  CHECK(origins(R"(["http://a.example", "http://b.example"])") ==
        Origins{"http://a.example", "http://b.example"});
  for (const std::string bad : {"[", "[1]", R"(["a"] b)"}) {
    CHECK_THROWS_WITH_AS(origins(bad),
                         str("--allowed-origins '", bad, "': not a JSON list of texts; pass ",
                             "origins with commas between them, or *")
                             .c_str(),
                         UsageError);
  }
}

TEST_CASE("the version is one line") {
  const std::string text = parse_command_line({"--version"}).message;
  CHECK(text.starts_with("nvllm 0.2.0 ("));
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("every command has a page for man, with all of its options") {
  const std::string page = parse_command_line({"--help=man"}).message;
  CHECK(page.starts_with(".TH nvllm\\-launch 1"));
  CHECK(page.find(".SH EXIT CODES\n") != std::string::npos);
  for (const Command& command : commands()) {
    CAPTURE(command.name);
    std::vector<std::string> words(1, command.name);
    if (const std::size_t space = words[0].find(' '); space != std::string::npos) {
      words = {words[0].substr(0, space), words[0].substr(space + 1)};
    }
    CHECK(page.find(std::string(".TP\n\\fB") + command.name) != std::string::npos);
    words.emplace_back("--help=man");
    const std::string of_command = parse_command_line(words).message;
    CHECK(of_command.starts_with(".TH nvllm\\-launch\\-"));
    for (const OptionRow& row : command.rows) {
      std::string name = "\\fB";
      for (const char c : std::string_view(row.name)) name += c == '-' ? "\\-" : std::string(1, c);
      CHECK(of_command.find(".TP\n" + name + "\\fR") != std::string::npos);
    }
  }
}

TEST_CASE("the help names every option, and the manual holds the help word for word") {
  std::ifstream file("docs/command-line.md");
  const std::string manual{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(manual.empty());
  const std::string generated = manual_text();
  CHECK(manual.find(generated) != std::string::npos);
  CHECK(parse_command_line({"--help=markdown"}).message == generated);
  CHECK(generated.find(help_text()) != std::string::npos);
  for (const Command& command : commands()) {
    const std::string help = parse_command_line({command.name, "--help"}).message;
    for (const OptionRow& row : command.rows) {
      const std::string line = std::string("\n  ") + row.name;
      CHECK(help.find(line) != std::string::npos);
      CHECK(generated.find(line) != std::string::npos);
    }
  }
}

}  // namespace nvllm::launcher
