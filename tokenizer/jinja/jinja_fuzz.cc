// Any template is refused with an Error, or rendered within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nvllm::jinja;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  Dict context;
  context.set("messages", List{.items = {Dict(), "text", 1, 2.5, true, Value()}});
  context.set("s", "Größe 東京");
  try {
    (void)Template::parse(source).render(context,
                                         {.work = 1 << 20, .output = 1 << 16, .depth = 20});
  } catch (const nvllm::Error&) {
  }
  return 0;
}
