// Encoding in MB/s, loading in ms, decoding in tokens per second; the last number of a name is the
// text's size in MB or the tokens in thousands: operations that take linear time have the same
// speed at any size. Reads files that `bazel run` provides.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/stream.h"

namespace nvllm::tokenizer {
namespace {

constexpr const char* kFolder = "tests/data/qwen3-tokenizer";

// A megabyte of words built from syllables, with Zipf-distributed frequencies: the word cache
// misses about as often as with English text.
std::string like_english() {
  static constexpr const char* kSyllables[] = {
      "the", "of",  "an", "in",  "to", "re", "con", "ti", "er", "light", "house",
      "sta", "men", "al", "ing", "or", "is", "pro", "ed", "ly", "a",     "un"};
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::string> words;
  for (int i = 0; i < 20'000; ++i) {
    std::string word;
    for (int n = 0; n < 1 + i % 4; ++n) word += kSyllables[random() % std::size(kSyllables)];
    words.push_back(word);
  }
  std::string text;
  while (text.size() < 1'000'000) {
    const double rank = std::pow(static_cast<double>(words.size()), uniform(random));
    text += words[static_cast<std::size_t>(rank) - 1];
    text += uniform(random) < 0.1 ? ", " : " ";
  }
  return text;
}

// Real English text, with tables and commands from manuals.
std::string manuals() {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator("docs")) {
    if (entry.path().extension() != ".md") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

std::string repeated(const char* part, std::int64_t megabytes) {
  std::string text;
  while (text.size() < static_cast<std::size_t>(megabytes) * 1'000'000) text += part;
  return text;
}

bool skip_without_data(benchmark::State& state) {
  if (std::filesystem::exists(kFolder)) return false;
  state.SkipWithError("no tests/data/qwen3-tokenizer here: use bazel run");
  return true;
}

void load_qwen3(benchmark::State& state) {
  if (skip_without_data(state)) return;
  for (auto _ : state) benchmark::DoNotOptimize(load_tokenizer(kFolder));
}
BENCHMARK(load_qwen3)->Unit(benchmark::kMillisecond);

void encode(benchmark::State& state, const std::string& text) {
  if (skip_without_data(state)) return;
  const auto tokenizer = load_tokenizer(kFolder).tokenizer;
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->encode(text, false));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
}
BENCHMARK_CAPTURE(encode, like_english, like_english());

// Each time with a new tokenizer: no word is cached from an earlier round.
void encode_manuals(benchmark::State& state) {
  if (skip_without_data(state)) return;
  const std::string text = manuals();
  for (auto _ : state) {
    state.PauseTiming();
    const auto tokenizer = load_tokenizer(kFolder).tokenizer;
    state.ResumeTiming();
    benchmark::DoNotOptimize(tokenizer->encode(text, false));
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
}
BENCHMARK(encode_manuals)->Iterations(2);  // reloads it each time

void encode_repeated(benchmark::State& state, const char* part) {
  encode(state, repeated(part, state.range(0)));
}
BENCHMARK_CAPTURE(encode_repeated, equal_letters, "a")->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(encode_repeated, combining_marks, "\u0301")->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(encode_repeated, chinese, "灯塔看守人在暴风雨的夜晚点亮了灯。")->Arg(1);

void stream(benchmark::State& state) {
  if (skip_without_data(state)) return;
  const auto tokenizer = load_tokenizer(kFolder).tokenizer;
  auto ids = tokenizer->encode(like_english(), false);
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(state.range(0)) * 1000));
  for (auto _ : state) {
    StreamDetokenizer detokenizer(*tokenizer, {.stop_strings = {"<|im_end|>", "\n\nUser:"}});
    for (const TokenId id : ids) benchmark::DoNotOptimize(detokenizer.push(id));
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * ids.size()));
}
BENCHMARK(stream)->Arg(10)->Arg(100);

}  // namespace
}  // namespace nvllm::tokenizer
