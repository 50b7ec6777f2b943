// --config FILE: options in JSON or YAML.
#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "model/testing/test_folder.h"

namespace nvllm::launcher {
namespace {

using Words = std::vector<std::string>;

// Parses the command (its first word, or empty) with a configuration file of that text as the first
// option.
Options with_config(const std::string& text, Words words = {"generate", "--prompt=a"}) {
  const model::TestFolder folder;
  folder.write("c.json", text);
  const auto behind_command = words.begin() + (words.front().starts_with("-") ? 0 : 1);
  words.insert(behind_command, "--config=" + folder.path("c.json"));
  return parse_command_line(words);
}

runtime::SamplingParams sampling(const Options& options) {
  runtime::SamplingParams params;
  apply_sampling(options.sampling, params);
  return params;
}

// The error for the file, without its name; "--config FILE" is abbreviated to "C".
std::string refusal(const std::string& text, Words words = {"generate", "--prompt=a"}) {
  try {
    with_config(text, std::move(words));
  } catch (const UsageError& error) {
    std::string message = error.what();
    const std::size_t end = message.find("c.json");
    if (message.starts_with("--config ") && end != std::string::npos) {
      message.replace(0, end + 6, "C");
    }
    return message;
  }
  return "accepted";
}

}  // namespace

TEST_CASE("the file's model leaves the words after --served-model-name to be names") {
  const Options options = with_config("model: m", {"serve", "--served-model-name", "a", "b"});
  CHECK(options.model.path == "m");
  CHECK(options.serve.served_model_names == Words{"a", "b"});
}

TEST_CASE("a blank file has no options, and a byte order mark is none") {
  for (const char* const text : {"", " \n\t\r\n", "# nothing\n", "\xEF\xBB\xBF", "{}"}) {
    CHECK_MESSAGE(with_config(text).group.ranks == std::nullopt, text);
  }
  CHECK(with_config("\xEF\xBB\xBFtp: 2\n").group.ranks == 2);
  CHECK(with_config("\xEF\xBB\xBF{\"tp\": 2}").group.ranks == 2);
}

TEST_CASE("keys are options with dashes or underscores, by either name; values are natural JSON") {
  const Options options = with_config(R"({
    "model": "m", "tensor_parallel_size": 2, "device": "cpu", "step-timeout": 0.5,
    "max_model_len": "32k", "max-num-seqs": 8, "enforce_eager": true,
    "enable-prefix-caching": false,
    "no_async_scheduling": true, "temperature": 0, "max_tokens": "none", "stop_token_ids": [7, 8],
    "hf_overrides": {"vocab_size": 7}, "stop": ["a", "b"]})");
  CHECK(options.model.path == "m");
  CHECK(options.group.ranks == 2);
  CHECK(options.group.device == DeviceKind::cpu);
  CHECK(options.group.step_timeout == std::chrono::milliseconds(500));
  CHECK(options.engine.max_model_len == 32000);
  CHECK(options.engine.max_num_seqs == 8);
  CHECK_FALSE(options.engine.graphs);
  CHECK_FALSE(options.engine.prefix_caching);
  CHECK_FALSE(options.engine.async_scheduling);
  CHECK(sampling(options).temperature == 0);
  CHECK_FALSE(sampling(options).max_tokens.has_value());
  CHECK(sampling(options).stop_token_ids == std::vector<std::int32_t>{7, 8});
  CHECK(options.model.overrides == R"({"vocab_size":7})");
  CHECK(options.generate.stop == Words{"a", "b"});
}

TEST_CASE("of an option that comes repeatedly, a list holds the values") {
  const auto prompts = [](const std::string& json) {
    return with_config(json, {"generate"}).generate.prompts;
  };
  using Ids = std::vector<std::vector<std::int32_t>>;
  CHECK(prompts(R"({"prompt-ids": [1, 2]})") == Ids{{1, 2}});
  CHECK(prompts(R"({"prompt-ids": [[1, 2], [3]]})") == Ids{{1, 2}, {3}});
  CHECK(prompts(R"({"prompt-ids": ["1,2", 3]})") == Ids{{1, 2}, {3}});
  CHECK(prompts(R"({"prompt-ids": 4})") == Ids{{4}});
}

TEST_CASE("the command line wins, wherever it names the file") {
  const std::string file = R"({"tp": 4, "temperature": 0.5, "top_k": 3, "stop": ["a", "b"],
                               "enforce_eager": true, "hf_overrides": {"vocab_size": 7}})";
  const Options options =
      with_config(file, {"generate", "--prompt=a", "--tensor-parallel-size=2", "--temperature=1",
                         "--stop=c", "--no-enforce-eager", "--hf-overrides={}"});
  CHECK(options.group.ranks == 2);
  CHECK(sampling(options).temperature == 1);
  CHECK(sampling(options).top_k == 3);
  CHECK(options.generate.stop == Words{"c"});
  CHECK(options.engine.graphs);
  CHECK(options.model.overrides == "{}");
}

TEST_CASE("a switch that has no opposite is off with false") {
  CHECK_FALSE(with_config(R"({"json": false})", {"selftest"}).json);
  CHECK(with_config(R"({"json": true})", {"selftest"}).json);
}

TEST_CASE("every command takes one, also none at all") {
  CHECK_FALSE(with_config(R"({"tp": 3})", {"--tp=1"}).chat.command);
  for (const Command& command : commands()) {
    const std::string name = command.name;
    if (name == "completion" || name.find(' ') != name.npos) continue;
    Words words = {name};
    if (name == "generate") words.emplace_back("--prompt=a");
    if (command.positional != nullptr) words.emplace_back("1");
    CHECK_MESSAGE(refusal("{}", words) == "accepted", name);
  }
}

TEST_CASE("what goes together is looked at when file and command line are one") {
  CHECK(refusal(R"({"input": "a"})") == "--prompt with --input a: pass one of them");
  CHECK(
      refusal(R"({"max-num-seqs": 8})", {"generate", "--prompt=a", "--max-num-batched-tokens=4"}) ==
      "--max-num-batched-tokens 4: less than --max-num-seqs 8, and every running sequence takes "
      "one token of a step; pass 8 or more, or a smaller --max-num-seqs");
}

TEST_CASE("help comes before a file that is not there") {
  CHECK(parse_command_line({"selftest", "--config", "/nowhere", "--help"})
            .message.find("--config FILE") != std::string::npos);
}

TEST_CASE("what the file has wrong is told in one line, with its place") {
  struct Case {
    std::string text, message;
  };
  const std::vector<Case> cases = {
      {"{\n  \"tp\": 2,\n  dtype\n}", "C: no valid JSON at line 3, column 3"},
      {"{\"tp\": 2", "C: no valid JSON at line 1, column 9"},
      {"{\"tp\": 2} x", "C: no valid JSON at line 1, column 11"},
      {"{\"tp\": 1e999}", "C: holds a number that is too large"},
      {"[2]", "C: holds array, not an object such as {\"tp\": 2}"},
      {"\"tp\"", "C: holds string, not an object such as {\"tp\": 2}"},
      {"{\n\t\"ttp\": 2}", "C, line 2, column 2: unknown key 'ttp'; did you mean 'tp'?"},
      {"{\"--tp\": 2}", "C, line 1, column 2: unknown key '--tp'; did you mean 'tp'?"},
      {"{\"max_modle_len\": 2}",
       "C, line 1, column 2: unknown key 'max_modle_len'; did you mean 'max-model-len'?"},
      {"{\"frobnicate\": 2}",
       "C, line 1, column 2: unknown key 'frobnicate'; see nvllm-launch generate --help"},
      {"{\"json\": true}",
       "C, line 1, column 2: unknown key 'json'; see nvllm-launch generate --help"},
      {"{\"config\": \"d\"}", "C, line 1, column 2: config: a file cannot name another one"},
      {"{\"tp\": 2,\n \"tp\": 2}",
       "C, line 2, column 2: tp again: line 1, column 2 has tp; leave one of them out"},
      {"{\"tp\": 2,\n \"tensor_parallel_size\": 2}",
       "C, line 2, column 2: tensor_parallel_size again: line 1, column 2 has tp; leave one of "
       "them out"},
      {"{\"enforce-eager\": true, \"no-enforce-eager\": true}",
       "C, line 1, column 25: no-enforce-eager again: line 1, column 2 has enforce-eager; leave "
       "one of them out"},
      {"{\"tp\": true}", "C, line 1, column 2: tp is true; give a number"},
      {"{\"tp\": null}", "C, line 1, column 2: tp is null; give a number"},
      {"{\"tp\": [2]}", "C, line 1, column 2: tp is a list; give a number"},
      {"{\"tp\": 9}", "C, line 1, column 2: --tp 9: out of range; pass 1 to 8"},
      {"{\"tp\": 2.5}", "C, line 1, column 2: --tp '2.5': not a whole number; pass 1 to 8"},
      {"{\"tp\": \"two\"}", "C, line 1, column 2: --tp 'two': not a whole number; pass 1 to 8"},
      {"{\"enforce_eager\": 1}", "C, line 1, column 2: enforce_eager is 1; give true or false"},
      {"{\"resume\": \"yes\"}", "C, line 1, column 2: resume is \"yes\"; give true or false"},
      {"{\"device\": 1}", "C, line 1, column 2: device is 1; give a text"},
      {"{\"device\": \"gpu\"}",
       "C, line 1, column 2: --device 'gpu': no such kind of device; pass auto, cpu or cuda"},
      {"{\"model\": {\"path\": \"m\"}}", "C, line 1, column 2: model is an object; give a text"},
      {"{\"stop\": 3}", "C, line 1, column 2: stop is 3; give a text, or a list of texts"},
      {"{\"stop\": []}", "C, line 1, column 2: stop is a list; give a text, or a list of texts"},
      {"{\"stop\": [\"a\", 3]}", "C, line 1, column 2: stop is 3; give a text, or a list of texts"},
      {"{\"stop_token_ids\": [1, \"2\"]}",
       "C, line 1, column 2: stop_token_ids is a list; give a list of numbers"},
      {"{\"stop_token_ids\": [-1]}",
       "C, line 1, column 2: --stop-token-ids '-1': '-1' is no token id; pass ids such as 1,2,3"},
      {"{\"hf_overrides\": [1]}", "C, line 1, column 2: hf_overrides is a list; give an object"},
      {"{\"a\\\"b\": {\"tp\": 1, \"x\": \"}\"}}",
       "C, line 1, column 2: unknown key 'a\"b'; see nvllm-launch generate --help"},
      {"{\"hf_overrides\": {\"tp\": [\"{\"]}, \"tp\": 0}",
       "C, line 1, column 33: --tp 0: out of range; pass 1 to 8"},
      {"{\"hf_overrides\": " + std::string(40, '[') + std::string(40, ']') + "}",
       "C: nested deeper than 32 levels"},
      {"{\"model\": \"" + std::string(1 << 20, 'm') + "\"}",
       "C: is larger than 1 MiB; pass a file of options, as YAML or JSON"},
  };
  for (const Case& each : cases) CHECK(refusal(each.text) == each.message);
}

TEST_CASE("YAML as vLLM has it says the same as JSON") {
  const Options options = with_config(R"(---
# a server's options
model: m                      # with a comment
tensor-parallel-size: 2
device: cpu	# after a tab
step_timeout: 0.5
"max-model-len": 32k
enforce_eager: true
enable-prefix-caching: False
kv-offload: off
temperature: 0

stop_token_ids: [7, 8]
hf_overrides: {"vocab_size": 7}
stop:
  - "###"                     # double quotes
  - "a\nb"
  - 'it''s # no comment'
  - plain
)");
  CHECK(options.model.path == "m");
  CHECK(options.group.ranks == 2);
  CHECK(options.group.device == DeviceKind::cpu);
  CHECK(options.group.step_timeout == std::chrono::milliseconds(500));
  CHECK(options.engine.max_model_len == 32000);
  CHECK_FALSE(options.engine.graphs);
  CHECK_FALSE(options.engine.prefix_caching);
  CHECK(options.engine.kv_offload == runtime::KvOffload::off);
  CHECK(sampling(options).temperature == 0);
  CHECK(sampling(options).stop_token_ids == std::vector<std::int32_t>{7, 8});
  CHECK(options.model.overrides == R"({"vocab_size":7})");
  CHECK(options.generate.stop == Words{"###", "a\nb", "it's # no comment", "plain"});
}

TEST_CASE("YAML: other ways to write the same") {
  CHECK(with_config("stop:\n- a\n- b\ntp: 2").generate.stop == Words{"a", "b"});
  CHECK(with_config("stop: [a, 'b, c', \"]\"]\r\ntp: 2\r\n").generate.stop ==
        Words{"a", "b, c", "]"});
  CHECK(with_config("stop: one#two").generate.stop == Words{"one#two"});
  CHECK(with_config("enforce-eager: yes").engine.graphs == false);
  CHECK(with_config("enforce-eager: off").engine.graphs == true);
  CHECK(with_config("model: 007").model.path == "007");
  CHECK(with_config("model: 3").model.path == "3");
  CHECK(with_config("model: C:/x:y").model.path == "C:/x:y");
  CHECK(with_config("# nothing\n").group.ranks == std::nullopt);
  using Ids = std::vector<std::vector<std::int32_t>>;
  CHECK(with_config("prompt-ids: [[1, 2], [3]]", {"generate"}).generate.prompts ==
        Ids{{1, 2}, {3}});
}

TEST_CASE("YAML: the command line wins") {
  const Options options = with_config("tp: 4\nstop: [a]\n", {"generate", "--prompt=a", "--tp=2"});
  CHECK(options.group.ranks == 2);
  CHECK(options.generate.stop == Words{"a"});
}

TEST_CASE("YAML: what is wrong is told with its line") {
  const std::pair<const char*, const char*> cases[] = {
      {"tp: 2\n\nmodel:\n  path: m\n", "C, line 4: a key below a key; options have no parts"},
      {"model: path: m\n", "C, line 1: a key below a key"},
      {"tp: 2\n  dtype: auto\n", "C, line 2: a key below a key"},
      {"tp\n", "C, line 1: 'tp' is no option; write KEY: VALUE"},
      {"- tp\n", "C, line 1: an item of no list"},
      {"stop:\n  - a\n    - b\n", "C, line 3: an item of no list"},
      {"tp: 2\n- a\n", "C, line 2: an item of no list"},
      {"tp: \"2\n", "C, line 1: a text in quotes does not end in its line"},
      {"stop: [a,\n  b]\n", "C, line 1: a list does not end in its line"},
      {"stop: [a 'b']\n# x", "accepted"},
      {"stop: 'a' b\n", "C, line 1: 'b' behind the value; put texts in quotes"},
      {"stop: |\n  a\n", "C, line 1: '|' begins what is not understood here"},
      {"tp: *other\n", "C, line 1: '*' begins what is not understood here"},
      {"tp: 2\n\tdtype: auto", "C, line 2: begins with a tab; use spaces"},
      {"hf_overrides: {a: 1}\n", "C, line 1: {a: 1} is no valid JSON"},
      {"tp: 2\ntp: 3\n", "C, line 2, column 1: tp again: line 1, column 1 has tp"},
      {"ttp: 2\n", "C, line 1, column 1: unknown key 'ttp'; did you mean 'tp'?"},
      {"# c\ntp: two\n", "C, line 2, column 1: --tp 'two': not a whole number; pass 1 to 8"},
      {"tp:\n", "C, line 1, column 1: tp is null; give a number"},
      {"resume: 'yes'\n", "C, line 1, column 1: resume is \"yes\"; give true or false"},
      {"trust-remote-code: true\n", "C, line 1, column 1: trust-remote-code: no code of a model"},
      {"tp: 2\n---\ndtype: auto\n", "C, line 2: '---' is no option"},
  };
  for (const auto& [text, message] : cases) {
    const std::string given(text), got = refusal(text);
    CAPTURE(given);
    CAPTURE(got);
    CHECK(got.starts_with(message));
    CHECK(got.size() <= 300);
  }
  CHECK(refusal("stop: " + std::string(40, '[') + std::string(40, ']')) ==
        "C, line 1: nested deeper than 32 levels");
  std::string object = "1";
  for (int i = 0; i < 40; ++i) object.insert(0, R"({"a":)").push_back('}');
  CHECK(refusal("hf_overrides: " + object) == "C, line 1: nested deeper than 32 levels");
}

TEST_CASE("a file that cannot be read is refused, and so are two") {
  const auto refused = [](Words words) {
    try {
      parse_command_line(words);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refused({"selftest", "--config=/nowhere"}) ==
        "--config /nowhere: No such file or directory (ENOENT); pass a file of options, as "
        "YAML or JSON");
  CHECK(refused({"selftest", "--config=/"}).starts_with("--config /: "));
  CHECK(refused({"selftest", "--config="}) ==
        "--config '': pass a file of options, as YAML or JSON");
  CHECK(refused({"selftest", "--config=a", "--config=b"}) ==
        "--config a, --config b: pass one of them");
  CHECK(refused({"selftest", "--config"}) == "--config needs a value: --config FILE");
}

}  // namespace nvllm::launcher
