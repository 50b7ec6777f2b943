// Any template is rejected with an Error, or rendered within its limits; and marks do not change
// its text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja/template.h"

namespace {

using namespace nvllm::jinja;

void require(bool condition) {
  if (!condition) std::abort();
}

std::optional<MarkedText> rendered(const Template& parsed, const Dict& context) {
  try {
    return parsed.render_marked(context, {.work = 1 << 20, .output = 1 << 16, .depth = 20});
  } catch (const nvllm::Error& error) {
    // The text of raise_exception is the template's own.
    if (dynamic_cast<const TemplateRaised*>(&error) == nullptr) {
      require(std::string_view(error.what()).size() <= 300);
    }
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  Dict context;
  context.set("messages", List{.items = {Dict(), "text", 1, 2.5, true, Value()}});
  context.set("s", "Größe 東京");
  Dict marked;
  for (const auto& [name, value] : context.items()) marked.set(name, from_outside(value));
  try {
    const Template parsed = Template::parse(source);
    const auto plain = rendered(parsed, context), with_marks = rendered(parsed, marked);
    if (plain) require(plain->marks.empty());
    if (with_marks) {
      std::size_t end = 0;
      for (const auto& range : with_marks->marks.ranges()) {
        require(range.begin >= end && range.begin < range.end);
        end = range.end;
      }
      require(end <= with_marks->text.size());
    }
    // One of them may exceed the work limit, or both print the time.
    const bool has_time = source.find("strftime_now") != std::string_view::npos;
    if (plain && with_marks && !has_time) require(plain->text == with_marks->text);
  } catch (const nvllm::Error& error) {
    require(std::string_view(error.what()).size() <= 300);
  }
  return 0;
}
