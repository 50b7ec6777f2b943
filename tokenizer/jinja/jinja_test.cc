// Templates against what Jinja itself made of them (testdata/make_jinja_cases.py), errors with
// their places, and templates that want too much.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja/template.h"

namespace nvllm::jinja {
namespace {

std::string render(std::string_view source, const Dict& context = {}, const Limits& limits = {}) {
  return Template::parse(source).render(context, limits);
}

std::string error_of(std::string_view source, const Limits& limits = {}) {
  try {
    return "no error, but: " + render(source, {}, limits).substr(0, 100);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("Templates give what Jinja gives, and fail where it fails") {
  std::ifstream file("tokenizer/testdata/jinja_cases.jsonl");
  REQUIRE(file);
  std::vector<Value> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(from_json(line, "the cases"));
  REQUIRE(cases.size() > 150);
  const Value last = cases.back();
  const Dict& context = *last.dict()->get("context")->dict();
  cases.pop_back();
  for (const Value& one : cases) {
    const std::string source = *one.dict()->get("template")->string();
    CAPTURE(source);
    const Value* text = one.dict()->get("text");
    if (text == nullptr) {
      CHECK_THROWS_AS(render(source, context), Error);
      continue;
    }
    std::string got;
    CHECK_NOTHROW(got = render(source, context));
    CHECK(got == *text->string());
  }
}

TEST_CASE("Errors name the line and the column") {
  CHECK(error_of("a\n  {{ x.y }}") == "line 2, column 3: variable 'x' is undefined");
  CHECK(error_of("{% if true %}\n{% for x in y.z %}{% endfor %}{% endif %}") ==
        "line 2, column 1: variable 'y' is undefined");
  CHECK(error_of("{% if true %}") == "line 1, column 14: this block has no {% endif %}");
  CHECK(error_of("é{{ 1 + }}") == "line 1, column 9: expected a value, found }}");
  CHECK(error_of("{% include 'x' %}") ==
        "line 1, column 4: 'include' is not supported in chat templates");
  CHECK(error_of("{{ 1 | shout }}") == "line 1, column 1: there is no filter 'shout'");
  CHECK(error_of("{{ {}.a.b }}") ==
        "line 1, column 1: 'dict object' has no attribute 'a', which is undefined");
}

TEST_CASE("What raise_exception says arrives as it is") {
  CHECK_THROWS_WITH_AS(render("{{ raise_exception('roles must alternate') }}"),
                       "roles must alternate", TemplateRaised);
}

TEST_CASE("strftime_now gives the time in the format asked for") {
  const std::string year = render("{{ strftime_now('%Y') }}");
  CHECK(year.size() == 4);
  CHECK(year >= "2024");
}

// Each would take hours, the machine's memory, or the stack.
TEST_CASE("Templates that want too much are stopped") {
  for (const char* source : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor "
           "%}",
           "{{ 'a' * 1000000000000 }}",
           "{{ [1] * 1000000000000 }}",
           "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s ~ "
           "ns.s %}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(1000) %}{% set ns.l = [ns.l, ns.l] "
           "%}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% "
           "endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = ns.l.index "
           "%}{% endfor %}",
           "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% for x in [ns.l, 1] %}{% "
           "set ns.l = loop %}{% endfor %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% for x in [[[1]]] recursive %}{{ loop([[1]]) }}{% endfor %}",
           "{{ range(100000) | list | join('x' * 100000) }}",
           "{{ 'a' | indent(1000) | replace('', 'b' * 1000000) | replace('b', 'c' * 1000) }}",
           "{{ '%300d' % 1 * 100000000 }}",
           "{{ 2 ** 2 ** 100 }}",
           "{{ 'a'.ljust(4611686018427387904, '') }}",
           "{{ 'a'.ljust(4611686018427387905, 'xxxx') }}",
       }) {
    CAPTURE(std::string(source));
    CHECK(error_of(source, {.work = 1 << 25}).starts_with("line 1"));
  }
}

TEST_CASE("Nested syntax is refused before it overflows the stack") {
  const auto repeated = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeated("(", 100000), "{{ " + repeated("[", 100000),
        "{{ " + repeated("not ", 100000) + "1 }}", "{{ " + repeated("-", 100000) + "1 }}",
        "{{ 1" + repeated(" + 1", 100000) + " }}", "{{ a" + repeated(".a", 100000) + " }}",
        "{{ a" + repeated("|e", 100000) + " }}", "{{ a" + repeated(" if a else a", 100000) + " }}",
        repeated("{% if 1 %}", 100000), repeated("{{ ((1)+", 60000)}) {
    CAPTURE(source.substr(0, 40));
    CHECK(error_of(source).starts_with("line 1"));
  }
}

TEST_CASE("What refers to itself is freed") {  // seen by the address sanitizer
  CHECK(render("{% set ns = namespace() %}{% set ns.me = [ns] %}{% macro m() %}{{ ns.me is defined "
               "}}{% endmacro %}{% set ns.m = m %}{{ m() }}{% for x in [1] %}{{ loop.changed(loop) "
               "}}{% endfor %}") == "TrueTrue");
}

TEST_CASE("JSON that is nested too deep, or no JSON, is refused") {
  CHECK_THROWS_WITH_AS(from_json(std::string(100000, '['), "messages"),
                       "messages: nested more than 200 deep", Error);
  CHECK_THROWS_AS(from_json("{'a': 1}", "messages"), Error);
  CHECK(to_json(from_json(R"({"b": [1, 2.0, "\u00e9"], "a": null})", "x"), {}) ==
        R"({"b": [1, 2.0, "é"], "a": null})");
}

}  // namespace
}  // namespace nvllm::jinja
