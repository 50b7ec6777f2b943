#!/usr/bin/env python3
"""Render small templates with Jinja itself, set up as Hugging Face transformers sets it up for chat templates.

    make_jinja_cases.py > jinja_cases.jsonl        (jinja2 3.1.6)

A line is {"template", "context", "text"}, or {"template", "context", "error": true} where Jinja fails.
"""
import json
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise TemplateError(message)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi <b>\"you\"</b> & 'me'"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [True, None, 1.5]}}}]},
    {"role": "user", "content": [{"type": "text", "text": "Größe 東京 🎉"}, {"type": "image"}]},
]
CONTEXT = {"messages": MESSAGES, "a": 3, "b": -7, "f": 2.5, "s": "Hello World", "u": "äß東🎉", "l": [3, 1, 2], "e": [], "n": None,
           "t": True, "d": {"k": "v", "items": 5, "z": [1, {"q": "r"}]}, "words": ["b", "A", "c", "a"], "bos_token": "<s>",
           "people": [{"name": "Ann", "age": 31, "team": "x"}, {"name": "bob", "age": 25, "team": "y"}, {"name": "Cy", "age": 40, "team": "x"}]}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 // -2, 7 % -2
7.5 // 2, -7.5 % 2, 2 ** 10, 2 ** -1, 2 ** 0.5, 2 ** 3 ** 2
-2 ** 2, +a, -b, - - a
1 / 3, 1e16, 1e15, 1e-5, 0.0001, 1.0, 100000000000000000000.0, 1_000
a ~ b ~ s ~ n ~ t ~ l ~ d
a == 3, a == 3.0, true == 1, "a" == 'a', [1] == [1], (1,) == [1], n == none, 1 != 2
1 < 2 < 3, 1 < 3 < 2, "a" < "b", [1, 2] < [1, 3], 2 >= 2.0
a in l, 4 in l, "k" in d, "ell" in s, "x" not in s, 1 in [1.0]
not t, not e, not (t and e), t and s, e or s, n or 0 or "last", t and not n
"yes" if t else "no", "yes" if n, "x" if n else ("y" if e else "z")
s[0], s[-1], s[1:4], s[::-1], s[:-3], s[-3:], s[10:100], s[::2], s[5:1:-1], s[:100], s[-100:3]
u[1], u[-1], u[::-1], u|length, u[1:3]
l[0], l[-1], l[1:], l[::-1], l[5:], l[-2:], l[:0]
messages[0].role, messages[0]["content"], messages[-1].content[0]["text"], d.k, d["items"], d.z[1].q
d.items() | list, d.keys() | list, d.values() | list, d.get("k"), d.get("x"), d.get("x", 9)
s.upper(), s.lower(), s.title(), "x y".title(), "ABC".capitalize()
"  a b  ".strip() ~ "|", "  a ".lstrip() ~ "|", "  a ".rstrip() ~ "|", "xxaxx".strip("x"), "abcba".strip("ab")
"a,b,,c".split(","), "a b  c".split(), "a b c".split(" ", 1), "a,b,c".rsplit(",", 1), "".split(","), "".split(), " a  b ".split(None, 1)
s.startswith("He"), s.endswith("ld"), s.startswith(("x", "H")), s.find("o"), s.rfind("o"), s.find("zz"), s.count("l"), s.index("W")
s.replace("l", "L"), s.replace("l", "L", 1), s.replace("", "-"), "-".join(["a", "b"]), "abc".replace("b", "")
"a\nb\r\nc".splitlines(), "a=b=c".partition("="), "a=b=c".rpartition("="), "x".partition("=")
"12".isdigit(), "1a".isdigit(), "ab".isalpha(), "a1".isalnum(), " ".isspace(), "ab".islower(), "AB".isupper(), "".isdigit()
"7".zfill(3), "-7".zfill(4), "ab".center(5, "*"), "ab".ljust(4, "."), "ab".rjust(4, "."), "abc".center(6, "*")
"prefix-x".removeprefix("prefix-"), "x.py".removesuffix(".py"), "x".removeprefix("y")
"{} and {}".format(1, "b"), "{1} {0}".format("a", "b"), "{x}".format(x=5), "{{}}".format(), "{:.2f}".format(3.14159)
"%s is %d" % ("a", 3), "%s" % "x", "%5.2f|%-5s|%05d|%x" % (3.14159, "ab", 42, 255), "%%" % (), "%r" % ["a"]
l | sort, l | sort(reverse=true), words | sort, words | sort(case_sensitive=true), people | sort(attribute="age") | map(attribute="name") | list
l | first, l | last, e | first is defined, l | length, s | count, l | sum, l | max, l | min, e | max is defined, people | sum(attribute="age")
l | join(","), l | join, people | join(", ", attribute="name"), ["a", 1, n] | join("-")
s | upper, s | lower, s | title, "aB" | capitalize, s | replace("o", "0"), s | replace("o", "0", 1), " x " | trim, "xxyxx" | trim("x")
s | list, d | list, "ab" | reverse, l | reverse | list, l | unique | list, [1, 1.0, "a", "A", true] | unique | list
3.7 | int, "12" | int, "x" | int, "x" | int(5), "3.9" | int, "2.5" | float, "x" | float, 3 | float, 2.5 | round, 3.5 | round, 2.567 | round(2), 2.1 | round(0, "ceil"), -3 | abs
x | default("d"), n | default("d"), n | default("d", true), "" | default("d", true), s | d("z")
l | map("string") | list, words | map("upper") | list, people | map(attribute="name") | list, people | map(attribute="zip", default="?") | list
l | select("odd") | list, l | reject("odd") | list, l | select("gt", 1) | list, l | select | list, [0, 1, "", "a"] | select | list
people | selectattr("team", "equalto", "x") | map(attribute="name") | list, people | rejectattr("age", "lt", 30) | map(attribute="name") | list, messages | selectattr("tool_calls", "defined") | list | length, messages | selectattr("content") | list | length
people | groupby("team") | length, d | dictsort, {"b": 1, "A": 2} | dictsort, {"b": 1, "a": 2} | dictsort(by="value")
l | batch(2) | list, l | batch(2, 0) | list, d | items | list
d | tojson, messages[2] | tojson, messages[3].content | tojson, d | tojson(indent=2), e | tojson(indent=2), {} | tojson, "é\n\t\"\\/" | tojson, u | tojson(ensure_ascii=true), {"b": 1, "a": [1, 2]} | tojson(sort_keys=true, separators=(",", ":")), 1.0 | tojson, 1e20 | tojson
"<a href='x'>\"&" | e | upper | length, "a b/c?d=é" | urlencode, "one two  three" | wordcount
"line\nline2\n\nline4" | indent, "line\nline2" | indent(2, true), "a\n\nb" | indent(2, blank=true), "a\nb" | indent("> ")
"the quick brown fox jumps" | truncate(12), "the quick brown fox jumps" | truncate(12, true), "abc" | truncate(5), "foo bar baz qux" | truncate(9, true, "..", 0)
"%s-%s" | format("a", 1), s | attr("upper") is defined, d | string, t | string, n | string, 1.50 | string
a is odd, a is even, a is divisibleby 3, a is divisibleby(2), n is none, n is not none, x is defined, x is undefined, s is string, l is string
l is sequence, s is sequence, d is sequence, d is mapping, l is mapping, a is number, f is number, t is number, f is float, a is float, a is integer, t is integer, t is boolean, t is true, t is false, a is true, n is iterable, l is iterable, a is iterable
"abc" is lower, "ABC" is upper, a is eq 3, a is ne(3), a is gt 2, a is lt 2, a is ge 3, a is le 2, a is in [1, 3], 1 is sameas 1, "upper" is filter, "nope" is filter, "odd" is test, range is callable
-a | abs, (a, b) | max, not a is odd, a is odd and b is odd, a + b | abs, (a + b) | abs, s ~ "!" | upper
[1, 2] + [3], (1, 2) + (3,), [0] * 3, "ab" * 2, 2 * "ab", [] , (), {}, (1,), [[1, [2]], {"a": (1, 2)}]
{"a": 1, "b": [1, 2]}.b[1], {"x": {"y": "z"}}.x.y, {1: "one"}[1], {"a": 1, "a": 2}
range(5) | list, range(2, 8, 3) | list, range(5, 0, -2) | list, range(0) | list
dict(a=1, b=2), dict(d, c=1), namespace(a=1).a
"a" "b" 'c', "tab\tnew\\n\x41\u00e9", 'it''s', "q\"q", 'a\'b', "\101"
["it's", 'say "hi"', "both ' and \"", "new\nline", "tab\t", "\\", "é", "\x00\x7f"]
[true, false, none, 1.0, 1e100, -0.0, 12345678901234567890.0]
x, x ~ "y", x | length, x | list, x == y, x is defined, [x], x | join, x in [1], 1 in x, not x
messages | length - 1, messages[messages|length - 1].role, messages[::-1] | map(attribute="role") | join(" ")
messages[0].content.strip().upper().lower().split()[0], ("a" ~ 1).upper(), [1,2,3][1:][0], "a-b"|replace("-", "_")|upper
[1, 2, 3].index(2), [1, 2, 1].count(1), (1, 2).count(2), d.copy() == d
1 if 0 else 2 if 0 else 3, (1 if t), [1 if n], [0 or 1, 0 and 1]
loop is defined, caller is defined, true, True, none, None, false
"a" is in "abc", "x" is not in "abc", 3 is not odd
l.0, l.1, "abc".0
[1, 2] < [1, 2, 3], [1, 2, 3] < [1, 2], [1, 2] <= [1, 2], [1, 2] < [1, 2], [2] > [1, 9], [[1, 2], 3] < [[1, 3], 1], ["a", 2] < ["b", 1], [] < [0]
"ĺżӂčźƵ".upper(), "ҋґѡәāŋḁẁạỿĩķ".upper(), "αωςаяђёӎ".upper(), "ĹŻӁǍ".upper(), "ÿµßé÷þ".upper(), "×~`{".upper(), "ĺ x ҋb".title()
"ab".center(7), "abc".center(8), "a".center(4), "ab".center(5), "ab".rjust(5, "-"), "ab".ljust(2)
"a\r\n\nb\r".splitlines(), "a\n".splitlines(true), "\x1f\x20\x7e\x7f", "\7\18\377", "\x1f \x7f~" | tojson
"{x:5.1f}|{y}".format(x=2.25, y=1), "{:s}".format("q")
{"a": [1, {"b": []}]} | tojson(indent=0), [1, 2] | tojson(separators=(", ", ": ")), [1, [2]] | tojson(indent=1, separators=(" ,", ":"))
"line\nmore" | indent(0), "a b  c".split(none, 0), "a b c".split(none, 1), 1.5e3, 1e+2, 2E-1, 10 - 4 - 3
[1, 2, 3, 4][::2], [1, 2, 3, 4][::-2], 5 in [[5], 5], [5] in [[5], 5], "" in "abc", "abc" in "ab"
"""

TEMPLATES = [
    "plain", "", "\n", "a\n", "a\n\n", "a\r\nb", "{# comment #}x", "a {#- c -#} b", "{# c #}\nx", "  {# c #}\nx",
    "{{ 'a' }}\n{{ 'b' }}\n", "{%- if t -%}  x  {%- endif -%}  y", "  {% if t %}\n  x\n  {% endif %}\ny", "a {% if t %} b {% endif %} c",
    "  {%+ if t %}\nx{% endif %}\n", "{% if t +%}\nx{% endif %}", "{{- ' a ' -}}\n  b", "x  \n  {{- 'y' }}", "{{ '<a>&' | e }}{{ '<b>' | safe }}", "a\rb\r\n{% if t %}\r\nc{% endif %}\r\n", "{{ s.swapcase() }}", "{%- set x = 1 %}\n\n{{ x }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}!", "{% raw -%}  a  {%- endraw %}!", "{{ '}}' }}{{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{ {x} } {%raw%}{{{%endraw%}",
    "{% raw %}\nX{% endraw %}\nb", "  {% raw %}\n X\n  {% endraw %}\nb", "{% raw -%}\n X{% endraw %}", "{%- raw %}\n{{ x }}{%- endraw -%}\n b", "{% raw %}a \n {%+ endraw +%}\nb",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {{ m.role }}\n{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% endfor %}", "{% for x in e %}x{% else %}none{% endfor %}",
    "{% for x in undefined_thing %}x{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for c in u %}[{{ c }}]{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for a, (b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}.{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = i %}{% endfor %}{{ ns.x }}",
    "{% if t %}{% set x = 5 %}{% endif %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x %}a {{ s }}{% endset %}[{{ x }}]", "{% set x | upper | replace('A', 'b') %}aa{% endset %}{{ x }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}-{{ varargs }}-{{ kwargs }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(b=5, a=4) }}|{{ m(1, 2, 3) }}|{{ m(1, z=3) }}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}", "{% set y = 1 %}{% macro m() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m() }}|{{ m(none) }}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}",
    "{% with x = 1, y = 2 %}{{ x }}{{ y }}{% endwith %}{{ x }}", "{% generation %}g{% endgeneration %}", "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% elif n %}x{% else %}y{% endif %}", "{% if n %}a{% elif e %}b{% else %}c{% endif %}",
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message.content is string %}{{ message.content }}{% elif message.content is none %}-{% else %}{% for part in message.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif %}\n{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endif %}{% endfor %}",
    "{%- set loop_messages = messages[1:] if messages[0]['role'] == 'system' else messages -%}{{ loop_messages | length }}", "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}x{% endif %}{% endfor %}",
    "{{ people | map(attribute='name') | map('upper') | join('/') }}", "{% for t, g in people | groupby('team') %}{{ t }}:{{ g | map(attribute='name') | join(',') }};{% endfor %}",
    "{% for i in range(3) -%} {{ i }} {%- endfor %}", "{{ 1 }}{{ 2 }} {{- 3 }}\n\n{{ 4 -}}\n5", "   {% for x in l %}   \n  {{ x }}\n  {% endfor %}   \nend", "a{% if t %}\n\nb{% endif %}\n\nc\n",
    "\t{% if t %}\tx{% endif %}", "{% if t %}{{ 'x' }}\n{% endif %}\n{{ 'y' }}",
    "{{ 'a' }}{% if t +%}\n b{% endif %}", "{% macro m(a, b='x' ~ a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(a=2) }}{{ m(3, b=n) }}",
    # What must fail.
    "{% raw +%}\nX{% endraw %}", "{% raw x %}{% endraw %}",
    "{{ [1][::0] }}", "{{ 'a' < ['a'] }}", "{{ [1, 'a'] < [1, 2] }}", "{{ 1 +}}", "{{ '{:d}'.format('x') }}", "{{ '{0!q}'.format(1) }}",
    "{{ x.y }}", "{{ x + 1 }}", "{{ x[0] }}", "{{ x() }}", "{{ s() }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ 'a' < 1 }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ n + 1 }}", "{{ n.x.y }}",
    "{{ raise_exception('no') }}", "{{ s | nope }}", "{{ s is nope }}", "{{ s | replace('a') }}", "{{ s.nope() }}", "{{ l.append(1) }}", "{% set d.x = 1 %}", "{% for x in 5 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% if %}{% endif %}", "{% if t %}", "{% endif %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1 ) }}", "{% for x l %}{% endfor %}", "{% nope %}", "{{ 'abc }}", "{{ 1 2 }}", "{% set %}", "{# open", "{{ open",
    "{{ 5 | length }}", "{{ range(1, 2, 0) }}", "{{ range(1000000) | length }}", "{{ [1, 'a'] | sort }}", "{{ {}|tojson(foo=1) }}", "{{ '%d' % 'x' }}", "{{ '%s %s' % 'x' }}", "{{ 'x'.index('y') }}", "{{ x | tojson }}", "{% break %}",
]


def main():
    cases = ["{{ [" + line + "] }}" for line in EXPRESSIONS.strip().splitlines()]
    for template in cases + TEMPLATES:
        case = {"template": template}
        try:
            case["text"] = ENV.from_string(template).render(**CONTEXT)
        except Exception as error:  # whatever Jinja or Python throws: the template fails
            if template in cases:
                print(f"an expression fails: {template}: {error}", file=sys.stderr)
            case["error"] = True
        print(json.dumps(case, ensure_ascii=True))
    # The context is the same everywhere: the last line.
    print(json.dumps({"context": CONTEXT}, ensure_ascii=True))


if __name__ == "__main__":
    main()
