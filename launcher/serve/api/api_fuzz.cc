// Any bytes as a request body: rejected with a short ApiError, or answered with JSON. The first
// byte selects the endpoint and the server's settings.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Two updates of each answer, then the response.
void answer(ApiCall& call) {
  constexpr std::size_t kMaxAnswers = 64;
  std::vector<std::int32_t> n;
  for (const runtime::Request& request : call.requests()) {
    require(!request.prompt.empty());
    runtime::check_sampling_params(request.sampling);
    n.push_back(request.sampling.n);
  }
  if (n.size() * static_cast<std::size_t>(n[0]) > kMaxAnswers) return;
  std::string out;
  call.begin(out);
  for (std::size_t i = 0; i < n.size(); ++i) {
    for (std::int32_t at = 0; at < n[i]; ++at) {
      runtime::Update update = ApiFixture::update({276, 160, 704, 90});
      update.index = at;
      update.logprobs.resize(update.tokens.size());
      call.apply(i, update, out);
      update.finish = runtime::FinishReason::length;
      call.apply(i, update, out);
    }
  }
  require(call.done());
  call.finish(out);
  if (call.stream()) {
    (void)events_of(out);
  } else {
    (void)parse_json(out);
  }
}

void run(ApiFixture& fixture, std::uint8_t choice, std::string_view body) {
  constexpr std::size_t kMaxErrorBytes = 4096;  // escapes make a character up to six bytes
  fixture.context().reasoning_parser = (choice & 2) != 0 ? "qwen3" : "";
  fixture.context().tool_call_parser = (choice & 4) != 0 ? "hermes" : "";
  fixture.context().auto_tool_choice = (choice & 4) != 0;
  try {
    answer(*fixture.call((choice & 1) != 0 ? parse_chat_completion : parse_completion, body));
  } catch (const ApiError& error) {
    require(error.status() == 400 || error.status() == 404);
    require(error_body(error.status(), error.what(), error.param()).size() < kMaxErrorBytes);
  }
}

}  // namespace
}  // namespace nvllm::launcher

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static nvllm::launcher::ApiFixture fixture;
  if (size == 0) return 0;
  const std::string body(data + 1, data + size);
  nvllm::launcher::run(fixture, data[0], body);
  return 0;
}
