#include "launcher/chat/chat_settings.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using testing::error_of;
using testing::has;

struct Fixture {
  runtime::SamplingParams sampling;
  std::vector<std::string> stops;
  ChatSettings settings{sampling, stops};
};

TEST_CASE_FIXTURE(Fixture, "all settings are shown with their values") {
  sampling.temperature = 0.8;
  sampling.max_tokens.reset();
  stops = {"###", "\n\n"};
  const std::string all = settings.show();
  CHECK(has(all, "temperature         0.8\n"));
  CHECK(has(all, "max-tokens          off\n"));
  CHECK(has(all, "seed                off\n"));
  CHECK(all.ends_with("stop                \"###\", \"\\n\\n\""));
  for (const std::string& name : ChatSettings::names()) CHECK(has(all, name));
  CHECK(settings.show("top_p") == "top-p is 1");
}

TEST_CASE_FIXTURE(Fixture, "settings are set as on the command line") {
  CHECK(settings.set("temperature", "0.7") == "temperature is 0.7");
  CHECK(settings.set("top_k", "5") == "top-k is 5");
  CHECK(settings.set("max-tokens", "20") == "max-tokens is 20");
  CHECK(settings.set("ignore-eos", "on") == "ignore-eos is on");
  CHECK(settings.set("stop-token-ids", "1,2") == "stop-token-ids is 1,2");
  CHECK(sampling.temperature == 0.7);
  CHECK(sampling.top_k == 5);
  CHECK(sampling.max_tokens == 20);
  CHECK(sampling.ignore_eos);
  CHECK(settings.set("max-tokens", "off") == "max-tokens is off");
  CHECK(settings.set("ignore-eos", "off") == "ignore-eos is off");
  CHECK(settings.set("stop-token-ids", "off") == "stop-token-ids is off");
  CHECK_FALSE(sampling.max_tokens);
  CHECK_FALSE(sampling.ignore_eos);
}

TEST_CASE_FIXTURE(Fixture, "a seed is set and taken away") {
  CHECK(settings.set("seed", "42") == "seed is 42");
  CHECK(sampling.seed == 42);
  CHECK(settings.set("seed", "off") == "seed is off");
  CHECK_FALSE(sampling.seed);
  CHECK(has(error_of([&] { settings.set("seed", "-1"); }), "--seed -1"));
}

TEST_CASE_FIXTURE(Fixture, "stop strings: as they stand, or as JSON") {
  using Texts = std::vector<std::string>;
  settings.set("stop", "The End");
  CHECK(stops == Texts{"The End"});
  settings.set("stop", "\"\\n\\n\"");
  CHECK(stops == Texts{"\n\n"});
  settings.set("stop", "[\"a\", \"b\"]");
  CHECK(stops == Texts{"a", "b"});
  for (const char* const wrong : {"[1]", "\"", "[\"\"]"}) {
    CHECK(has(error_of([&] { settings.set("stop", wrong); }), "neither a text nor a list"));
  }
  CHECK(stops == Texts{"a", "b"});
  CHECK(settings.set("stop", "off") == "stop is off");
  CHECK(stops.empty());
}

TEST_CASE_FIXTURE(Fixture, "what is wrong is named, and changes nothing") {
  CHECK(has(error_of([&] { settings.set("temprature", "1"); }), "did you mean temperature?"));
  CHECK(has(error_of([&] { settings.set("xyz", "1"); }), "/set alone shows all"));
  CHECK(has(error_of([&] { settings.set("top-p", "7"); }), "--top-p 7: out of range"));
  CHECK(has(error_of([&] { settings.set("ignore-eos", "maybe"); }), "pass on or off"));
  CHECK(has(error_of([&] { settings.set("min-tokens", "5000"), settings.set("max-tokens", "4"); }),
            "min_tokens"));
  CHECK(sampling.top_p == 1.0);
}

}  // namespace
}  // namespace nvllm::launcher
