#include <memory>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/operations.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/jinja/text.h"

namespace nvllm::jinja {
namespace {

constexpr std::int64_t kLongestRange = 100000;

Value range(Interpreter& interpreter, Arguments& arguments) {
  ArgumentReader reader("range", arguments);
  std::int64_t from = 0;
  std::int64_t to = reader.take_integer("stop", 0);
  if (reader.next_is_given("end")) {
    from = to;
    to = reader.take_integer("end", 0);
  }
  const std::int64_t step = reader.take_integer("step", 1);
  reader.finish();
  if (step == 0) fail("range: the step is 0");
  List list;
  while (step > 0 ? from < to : from > to) {
    if (static_cast<std::int64_t>(list.items.size()) == kLongestRange) {
      fail("range: more than ", kLongestRange, " numbers");
    }
    list.items.emplace_back(from);
    if (__builtin_add_overflow(from, step, &from)) break;
  }
  interpreter.reserve(list.items.size() * sizeof(Value));
  return list;
}

Dict named_values(Interpreter& interpreter, std::string_view function, Arguments& arguments) {
  Dict values;
  if (arguments.positional.size() > 1) fail(function, ": too many arguments");
  if (arguments.positional.size() == 1) {
    const Dict* dict = arguments.positional[0].dict();
    if (dict == nullptr) fail(function, " takes a dict, not ", arguments.positional[0].type_name());
    interpreter.charge(arguments.positional[0].weight());
    values = *dict;
  }
  for (auto& [name, value] : arguments.named) values.set(name, std::move(value));
  return values;
}

Value joiner(Interpreter&, Arguments& arguments) {
  ArgumentReader reader("joiner", arguments);
  const std::string separator = reader.take_text("sep", ", ");
  reader.finish();
  return Callable{
      .name = "joiner",
      .call = [separator, used = std::make_shared<bool>(false)](Interpreter&, Arguments&) {
        return Value(std::exchange(*used, true) ? separator : std::string());
      }};
}

Value raise(Interpreter&, Arguments& arguments) {
  ArgumentReader reader("raise_exception", arguments);
  const std::string message = reader.take_text("message", "");
  throw TemplateRaised(message);
}

Value now(Interpreter&, Arguments& arguments) {
  ArgumentReader reader("strftime_now", arguments);
  const std::string format = reader.take_text("format");
  reader.finish();
  return time_text(format);
}

}  // namespace

Dict global_functions() {
  Dict globals;
  globals.set("range", Callable{.name = "range", .call = range});
  globals.set("dict",
              Callable{.name = "dict", .call = [](Interpreter& interpreter, Arguments& arguments) {
                         return Value(named_values(interpreter, "dict", arguments));
                       }});
  globals.set("namespace", Callable{.name = "namespace",
                                    .call = [](Interpreter& interpreter, Arguments& arguments) {
                                      return interpreter.make_namespace(
                                          named_values(interpreter, "namespace", arguments));
                                    }});
  globals.set("joiner", Callable{.name = "joiner", .call = joiner});
  globals.set("raise_exception", Callable{.name = "raise_exception", .call = raise});
  globals.set("strftime_now", Callable{.name = "strftime_now", .call = now});
  return globals;
}

}  // namespace nvllm::jinja
