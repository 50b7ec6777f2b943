// Templates against the output of Jinja itself (testdata/make_jinja_cases.py), errors with their
// positions, and templates that exceed limits.
#include <doctest/doctest.h>

#include <chrono>
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

TEST_CASE("Escapes give any character, and nothing beyond the last one") {
  CHECK(render(R"({{ '\x41\u00e9\U0010FFFF' }})") == "A\u00e9\U0010FFFF");
  for (const char* const none :
       {R"({{ '\U00110000' }})", R"({{ '\ud800' }})", R"({{ '\udfff' }})"}) {
    CHECK(error_of(none).ends_with("this string has an escape that is no character"));
  }
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

// Each would take hours, all memory, or the stack.
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

// One operation on the texts s and t costs more than a step, so a loop of them must be charged for
// what they read and create.
TEST_CASE("Operations are charged by what they read and make") {
  const std::string many(1 << 18, 'a');
  Dict context;
  context.set("s", many);
  context.set("t", many.substr(many.size() / 2) + "b");
  context.set("e", "\xc3\xa9" + many);
  List list;
  for (int i = 0; i < 20000; ++i) list.items.emplace_back(i);
  context.set("l", std::move(list));
  for (const char* operation : {"s.find(t)",
                                "s.rfind(t)",
                                "t in s",
                                "s.count(t)",
                                "s.index('b', 1)",
                                "s.replace(t, t)",
                                "s.split(t)",
                                "s.rsplit(t)",
                                "s.partition(t)",
                                "e[200000]",
                                "e[-200000]",
                                "s[1:]",
                                "s[::-1]",
                                "s == t ~ ''",
                                "s ~ t",
                                "s + t",
                                "s * 2",
                                "'%s' % s",
                                "'{}'.format(s)",
                                "s | upper",
                                "s | tojson",
                                "s | trim",
                                "s.strip(t)",
                                "'a'.replace(s, t)",
                                "s is upper",
                                "s | length",
                                "s | list",
                                "s | e",
                                "s | urlencode",
                                "s | truncate(9)",
                                "s | wordcount",
                                "s | indent",
                                "s.title()",
                                "s.isalpha()",
                                "s.startswith(s)",
                                "[s] | join(s)",
                                "l | join(s)",
                                "l | sort | length",
                                "l | unique | length",
                                "l | sum",
                                "l == l[:]",
                                "[l, l, l] | tojson(separators=(s, s))",
                                "l | tojson(indent=100)",
                                "-1 in l",
                                "l.count(1)",
                                "l | map('string') | list",
                                "l | reverse | list",
                                "l + l",
                                "dict(a=s) == dict(a=s)",
                                "s | int",
                                "s | batch(2) | list",
                                "s.ljust(300000, s)",
                                "{s: 1}[s]",
                                "s | format(1)"}) {
    CAPTURE(std::string(operation));
    const std::string source =
        str("{% for i in range(50000) %}{% set x = ", operation, " %}{% endfor %}");
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(render(source, context, {.work = 1 << 23}), Error);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  }
}

TEST_CASE("What does not read a long text is not charged for it") {
  List messages;
  for (int i = 0; i < 1000; ++i) {
    Dict message;
    message.set("role", i % 2 == 0 ? "user" : "assistant");
    message.set("content", std::string(2000, 'x'));
    messages.items.emplace_back(std::move(message));
  }
  Dict context;
  context.set("messages", std::move(messages));
  const std::string text = render(
      "{% for m in messages[::-1] %}{% set i = (messages | length - 1) - loop.index0 %}"
      "{% if messages is sequence and m.content is string and messages[i] is mapping and "
      "messages | first is defined and (messages | last).role %}{{ m.content }}{% endif %}"
      "{% endfor %}",
      context, {.work = 1 << 25});
  CHECK(text.size() == 2000000);
}

TEST_CASE("A rendering ends in time") {
  CHECK(error_of("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
                 {.work = std::int64_t{1} << 50, .time = std::chrono::milliseconds(50)})
            .ends_with(": this takes more than 50.0 ms"));
}

TEST_CASE("The size of a template is bounded") {
  CHECK(error_of(std::string(Template::kMaxBytes + 1, 'x')) ==
        "the template has 1048577 bytes; at most 1048576 are read");
  std::string source;
  for (int i = 0; i < 30000; ++i) source += "{{a}}";
  CHECK(error_of(source).ends_with("the template has more than 65536 words and symbols"));
}

TEST_CASE("Errors are short, whatever they show") {
  const std::string name(100000, 'n');
  for (const std::string& source :
       {"{{ " + name + ".x }}", "{{ {}['" + name + "'].x }}", "{{ 1 | " + name + " }}",
        str("{{ '", name, "' | truncate(1, end='", name, "') }}"), "{{ 1 + + " + name + "( }}",
        "{{ 1 " + name + " }}", "{% " + name + " %}"}) {
    CHECK(error_of(source).size() < 300);
  }
}

// Renders with brackets around the marked parts.
std::string marked(std::string_view source, const Dict& context) {
  const MarkedText rendered = Template::parse(source).render_marked(context);
  const std::string plain = Template::parse(source).render(context);
  CHECK(rendered.text == plain);
  std::string out;
  std::size_t done = 0;
  for (const auto& [begin, end] : rendered.marks.ranges()) {
    out += rendered.text.substr(done, begin - done) + "[" +
           rendered.text.substr(begin, end - begin) + "]";
    done = end;
  }
  return out + rendered.text.substr(done);
}

TEST_CASE("Text from outside is marked, whatever is done to it") {
  Dict context;
  context.set("m", from_outside(from_json(R"({"role": "user", "content": " a<x>b ", "n": 5,
      "list": ["p", "q"], "<k>": 1})",
                                          "m")));
  const std::pair<const char*, const char*> cases[] = {
      {"<x>{{ m.content }}<x>", "<x>[ a<x>b ]<x>"},
      {"{{ '<x>' + m.content + '<x>' }}", "<x>[ a<x>b ]<x>"},
      {"{{ '<x>' ~ m.content ~ m.n }}", "<x>[ a<x>b ]5"},
      {"{{ '<x>' ~ m.content | trim ~ '<x>' }}", "<x>[a<x>b]<x>"},
      {"{{ (' <x>' ~ m.content).strip() }}", "<x>[ a<x>b]"},
      {"{{ m.content.replace('<x>', '<y>') }}", "[ a]<y>[b ]"},
      {"{{ ('-' ~ m.content).replace('', '+') }}", "+-+[ ]+[a]+[<]+[x]+[>]+[b]+[ ]+"},
      {"{{ '<x>-'.replace('-', m.role) }}", "<x>[user]"},
      {"{{ m.content.split('<x>') | join('<x>') }}", "[ a]<x>[b ]"},
      {"{{ m.content.split('a')[-1] }}", "[<x>b ]"},
      {"{{ m.content.partition('<x>') | join('') }}", "[ a<x>b ]"},
      {"{{ ('<' ~ m.content)[0:4] }}", "<[ a<]"},
      {"{{ ('<' ~ m.content)[1] ~ m.content[-2] }}", "[ b]"},
      {"{{ ('<x>' ~ m.content) | upper }}", "[<X> A<X>B ]"},
      {"{{ m | tojson }}", R"([{"role": "user", "content": " a<x>b ", "n": 5, )"
                           R"("list": ["p", "q"], "<k>": 1}])"},
      {"{{ m.list }}{{ [1] }}", "[['p', 'q']][1]"},
      {"{{ m.list | join('<x>') }}", "[p]<x>[q]"},
      {"{{ '<x>'.join(m.list) }}", "[p]<x>[q]"},
      {"{{ m.role.join(['<', '>']) }}", "<[user]>"},
      {"{% for k in m %}{{ k }},{% endfor %}", "[role],[content],[n],[list],[<k>],"},
      {"{% for k, v in m.items() %}{{ k if v == 1 }}{% endfor %}", "[<k>]"},
      {"{% for c in m.role %}{{ c }}.{% endfor %}", "[u].[s].[e].[r]."},
      {"{% set x %}<x>{{ m.role }}{% endset %}{{ x }}<x>", "<x>[user]<x>"},
      {"{% macro f(x) %}<x>{{ x }}{% endmacro %}{{ f(m.role) ~ f('y') }}", "<x>[user]<x>y"},
      {"{% filter trim %} <x>{{ m.content }}{% endfilter %}", "<x>[ a<x>b]"},
      {"{% filter indent(1) %}<x>\n{{ m.role }}\n<y>{% endfilter %}", "<x>\n [user]\n <y>"},
      {"{{ '<%s>%d<x>' % (m.role, m.n) }}", "<[user]>5<x>"},
      {"{{ '<x>{}{{}}'.format(m.role) }}", "<x>[user]{}"},
      {"{{ m.role | default('<x>') ~ (m.none | default('<x>')) }}", "[user]<x>"},
      {"{{ m.role.ljust(6, '<') }}{{ 'u' | replace('u', '<x>') }}", "[user]<<<x>"},
      {"{{ m.list | first ~ m.list | last ~ m.list[0] * 2 }}", "[pqpp]"},
      {"{{ ('<x> ' ~ m.role ~ ' y') | truncate(9, True, '<y>', 0) }}", "<x> [us]<y>"},
      {"{% set n = namespace(t='') %}{% set n.t = n.t ~ '<x>' ~ m.role %}{{ n.t }}", "<x>[user]"},
      {"{{ m.role if m.role == 'user' and m.role in ['user'] else '<x>' }}", "[user]"},
      {"{{ {m.role: '<x>'}['user'] }}", "<x>"},
      {"{% set j = joiner(m.role) %}{{ j() }}{{ j() }}", "[user]"},
      {"{{ m.list | map('upper') | join('-') }}", "[P]-[Q]"},
      {"{{ strftime_now(m.role) }}", "[user]"},
  };
  for (const auto& each : cases) {
    CAPTURE(std::string(each.first));
    CHECK(marked(each.first, context) == each.second);
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
        "{{ a" + repeated("|e", 100000) + " }}", "{{ a" + repeated(" if a else a", 50000) + " }}",
        repeated("{% if 1 %}", 100000), repeated("{{ ((1)+", 60000)}) {
    CAPTURE(source.substr(0, 40));
    CHECK(error_of(source).starts_with("line 1"));
  }
  // A sign is one level, a bracket two.
  const auto nested = [&](const std::string& signs, int brackets) {
    return error_of("{{ " + signs + repeated("(", brackets) + "1" + repeated(")", brackets) +
                    " }}");
  };
  CHECK(nested("-", 48) == "no error, but: -1");
  CHECK(nested("--", 48).find("nested too deep") != std::string::npos);
  CHECK(nested("", 49).find("nested too deep") != std::string::npos);
}

TEST_CASE("What refers to itself is freed") {  // checked by AddressSanitizer
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
