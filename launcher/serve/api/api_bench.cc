// The cost of a streamed token between the engine's update and the event's bytes, and the memory of
// an open stream. Run it in the workspace.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kChat =
    R"({"messages":[{"role":"user","content":"who"}],"stream":true,"ignore_eos":true})";
constexpr const char* kCompletion = R"({"prompt":"who","stream":true,"stop":["The End"]})";

bool is_elsewhere(benchmark::State& state) {
  if (std::filesystem::exists("tokenizer/testdata/qwen.json")) return false;
  state.SkipWithError("run in the workspace, where tokenizer/testdata is");
  return true;
}

void apply_token(benchmark::State& state, ParseCall parse, const char* body) {
  if (is_elsewhere(state)) return;
  ApiFixture fixture;
  const auto call = fixture.call(parse, body);
  std::vector<runtime::Update> updates;
  for (const std::int32_t id : fixture.ids("The night was as the lighthouse keeper had been")) {
    updates.push_back(ApiFixture::update({id}));
  }
  std::string out;
  call->begin(out);
  std::size_t bytes = 0;
  std::size_t next = 0;
  for ([[maybe_unused]] auto _ : state) {
    out.clear();
    call->apply(0, updates[next], out);
    bytes += out.size();
    next = next + 1 < updates.size() ? next + 1 : 0;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()));
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
}

void chat_token(benchmark::State& state) {
  apply_token(state, parse_chat_completion, kChat);
}
void completion_token(benchmark::State& state) {
  apply_token(state, parse_completion, kCompletion);
}
BENCHMARK(chat_token);
BENCHMARK(completion_token);

// A chat of some 200 tokens: JSON, template, tokenizing.
void parse_chat(benchmark::State& state) {
  if (is_elsewhere(state)) return;
  ApiFixture fixture;
  std::string text;
  while (fixture.ids(text).size() < 200)
    text += "The night was as the lighthouse keeper had been. ";
  const std::string body =
      R"({"messages":[{"role":"user","content":")" + text + R"("}],"stream":true})";
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(fixture.call(parse_chat_completion, body));
  }
}
BENCHMARK(parse_chat);

// bytes_per_stream: after the prompt was submitted and some tokens were sent.
void open_streams(benchmark::State& state) {
  if (is_elsewhere(state)) return;
  ApiFixture fixture;
  const auto streams = static_cast<std::size_t>(state.range(0));
  const auto ids = fixture.ids("The night was as the lighthouse keeper had been");
  double bytes = 0;
  for ([[maybe_unused]] auto _ : state) {
    const auto before = ::mallinfo2().uordblks;
    std::vector<std::unique_ptr<ApiCall>> calls;
    std::string out;
    for (std::size_t i = 0; i < streams; ++i) {
      calls.push_back(fixture.call(parse_chat_completion, kChat));
      calls.back()->begin(out);
      for (const std::int32_t id : ids) {
        out.clear();
        calls.back()->apply(0, ApiFixture::update({id}), out);
      }
    }
    bytes = static_cast<double>(::mallinfo2().uordblks - before) / static_cast<double>(streams);
  }
  state.counters["bytes_per_stream"] = bytes;
}
BENCHMARK(open_streams)->Arg(8000)->Iterations(1);

}  // namespace
}  // namespace nvllm::launcher
