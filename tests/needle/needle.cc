// needle: hides needles at several depths of a long prompt, asks nvllm-launch for them, and reports
// which it found. Unknown options are passed on to nvllm-launch generate:
//
//   needle --input-len 32768 --max-model-len 40960 --depth 0,0.5,1 --device cpu --tp 2
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "tests/needle/asker.h"
#include "tests/needle/haystack.h"
#include "tests/needle/needle_model.h"

namespace nvllm::needle {
namespace {

constexpr const char* kHelp = R"(needle hides needles in a long prompt, and tells whether a model of
written-down weights finds them.

  needle [OPTIONS] [OPTIONS of nvllm-launch generate]

  --input-len N      tokens of a prompt; default: 32768
  --depth D,D...     where the needles are, 0 to 1; default: 0,0.1,...,1
  --values N         tokens of a needle's value; default: 3
  --hops N           lines that refer to the next before one has the value; default: 0
  --density X        share of the text that are other lines; default: 0.02
  --seed N           what all is drawn from; default: 1
  --head-dim 64|128  of the model: 64 for contexts up to 256K, 128 up to 1M; default: 128
  --heads N, --kv-heads N
                     of the model; default: 4 and 2
  --separate         every depth has a text of its own, and no other needle is in it
  --model-only DIR   writes the model there, and ends

NVLLM_LAUNCH is the path of nvllm-launch; default: beside this program, or among what Bazel built.
Exit codes: 0: all were found; 1: not all, or the run failed; 2: wrong command line.
)";

struct Arguments {
  HaystackPlan plan{.tokens = 32768, .depths = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}};
  NeedleShape shape{.head_dim = 128, .heads = 4, .kv_heads = 2};
  bool separate = false, help = false;
  std::string model_only;
  std::vector<std::string> handed_on;
};

class WrongArguments : public Error {
 public:
  using Error::Error;
};

double number(const std::string& name, const std::string& text, double min, double max) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= min && value <= max)) {
    const auto shown = [](double limit) {
      const auto whole = static_cast<std::int64_t>(limit);
      return whole == limit ? str(whole) : str(limit);  // 1048576 and not 1.04858e+06
    };
    throw WrongArguments(
        str(name, ' ', text, ": pass a number from ", shown(min), " to ", shown(max)));
  }
  return value;
}

std::vector<double> depths_of(const std::string& text) {
  std::vector<double> depths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    depths.push_back(number("--depth", text.substr(begin, end - begin), 0, 1));
    begin = end + 1;
  }
  return depths;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  const auto whole = [](auto& to, const char* name, double min, double max) {
    return [&to, name, min, max](const std::string& text) {
      to = static_cast<std::remove_reference_t<decltype(to)>>(number(name, text, min, max));
    };
  };
  HaystackPlan& plan = arguments.plan;
  const std::map<std::string, std::function<void(const std::string&)>> own = {
      {"--input-len", whole(plan.tokens, "--input-len", 16, 1 << 20)},
      {"--depth", [&](const std::string& text) { plan.depths = depths_of(text); }},
      {"--values", whole(plan.value_tokens, "--values", 1, 64)},
      {"--hops", whole(plan.hops, "--hops", 0, 64)},
      {"--density", whole(plan.density, "--density", 0, 1)},
      {"--seed", whole(plan.seed, "--seed", 0, 1e15)},
      {"--head-dim", whole(arguments.shape.head_dim, "--head-dim", 64, 128)},
      {"--heads", whole(arguments.shape.heads, "--heads", 1, 9)},
      {"--kv-heads", whole(arguments.shape.kv_heads, "--kv-heads", 1, 9)},
      {"--model-only", [&](const std::string& text) { arguments.model_only = text; }},
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    if (name == "--separate") {
      arguments.separate = true;
    } else if (name == "--help") {
      arguments.help = true;
    } else if (const auto option = own.find(name); option == own.end()) {
      arguments.handed_on.push_back(words[i]);
    } else if (equals != std::string::npos) {
      option->second(words[i].substr(equals + 1));
    } else if (++i < words.size()) {
      option->second(words[i]);
    } else {
      throw WrongArguments(name + ": needs a value");
    }
  }
  return arguments;
}

// A temporary folder.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "needle_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) fail_errno(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<Question> questions_of(const NeedleModel& model, const Arguments& arguments) {
  if (!arguments.separate) return ask_for_needles(model, arguments.plan);
  std::vector<Question> all;
  for (const double depth : arguments.plan.depths) {
    HaystackPlan plan = arguments.plan;
    plan.depths = {depth};
    plan.seed += all.size();
    all.push_back(ask_for_needles(model, plan).front());
  }
  return all;
}

std::string ids_of(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += str(text.empty() ? "" : " ", id);
  return text;
}

int run(const Arguments& arguments) {
  const NeedleModel model(arguments.shape);
  if (!arguments.model_only.empty()) {
    std::filesystem::create_directories(arguments.model_only);
    model.write(arguments.model_only);
    return 0;
  }
  const Folder folder;
  model.write(folder.path());
  const std::vector<Question> questions = questions_of(model, arguments);
  const std::int64_t begin = now_ns();
  const std::vector<Found> answers = ask(folder.path(), questions, arguments.handed_on);
  const double seconds = seconds_since(begin);
  std::size_t right = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Found& found = answers[i];
    right += found.right ? 1 : 0;
    std::cout << "depth " << questions[i].depth << ": " << (found.right ? "found" : "not found");
    if (!found.right) {
      std::cout << ": " << ids_of(found.tokens) << " instead of " << ids_of(questions[i].answer);
    }
    std::cout << '\n';
  }
  const std::string& mode = answers.front().kv_mode;
  std::cout << right << " of " << answers.size() << " found in " << arguments.plan.tokens
            << " tokens" << (mode.empty() ? "" : ", kv_mode " + mode) << ", "
            << format_duration(seconds) << " with the start\n";
  return right == answers.size() ? 0 : 1;
}

}  // namespace
}  // namespace nvllm::needle

int main(int argc, char** argv) {
  using namespace nvllm::needle;
  try {
    const Arguments arguments = parse({argv + 1, argv + argc});
    if (arguments.help) {
      std::cout << kHelp;
      return 0;
    }
    return run(arguments);
  } catch (const WrongArguments& error) {
    std::cerr << "needle: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "needle: " << error.what() << '\n';
    return 1;
  }
}
