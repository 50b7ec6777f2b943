// Readers of untrusted input take time and memory in proportion to its size: twice the input takes
// at most 2.3 times as much of both.
#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "base/bounded_json.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/safetensors.h"
#include "model/testing/gguf_builder.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/tokenizer.h"

namespace {

// Bytes allocated now, and the peak.
std::size_t allocated_now = 0, allocated_peak = 0;

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  allocated_now += ::malloc_usable_size(memory);
  allocated_peak = std::max(allocated_peak, allocated_now);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  allocated_now -= ::malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace nvllm {
namespace {

using jinja::Dict;
using jinja::Value;

struct Cost {
  double seconds = std::numeric_limits<double>::infinity();
  std::size_t bytes = std::numeric_limits<std::size_t>::max();
};

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Reads an input; everything it needs is created earlier.
using Reader = std::function<void()>;
// Creates the reader of an input of this size.
using MakeReader = std::function<Reader(std::size_t)>;

// Reads `times` times, since a single reading may be too short to measure.
void measure(const Reader& read, int times, Cost& min) {
  const std::size_t before = allocated_peak = allocated_now;
  const double start = cpu_seconds();
  for (int i = 0; i < times; ++i) read();
  min.seconds = std::min(min.seconds, cpu_seconds() - start);
  min.bytes = std::min(min.bytes, allocated_peak - before);
}

// The minimum of several runs, since other load only makes runs slower. Inputs and results are
// small enough for a core's own cache, half a megabyte on some: beyond it all costs grow.
void check_linear(const char* name, std::size_t size, const MakeReader& make) {
  CAPTURE(std::string(name));
  constexpr double kMaxTimes = 2.3, kEnough = 1e-3;
  constexpr std::size_t kFewBytes = 1 << 16, kMaxGrowth = 8;
  constexpr int kRuns = 3, kMaxRuns = 400;
  const std::size_t max_size = size * kMaxGrowth;
  Cost once, twice;
  int times = 1;
  for (;;) {
    once = {};
    measure(make(size), times, once);
    if (once.seconds > kEnough) break;
    size < max_size ? size *= 2 : times *= 2;
  }
  const Reader read_once = make(size), read_twice = make(2 * size);
  const auto too_much = [&] {
    return twice.seconds > kMaxTimes * once.seconds ||
           static_cast<double>(twice.bytes) >
               kMaxTimes * static_cast<double>(std::max(once.bytes, kFewBytes));
  };
  for (int run = 0; run < kRuns || (run < kMaxRuns && too_much()); ++run) {
    measure(read_once, times, once);
    measure(read_twice, times, twice);
  }
  CAPTURE(size);
  CHECK(twice.seconds <= kMaxTimes * once.seconds);
  CHECK(static_cast<double>(twice.bytes) <=
        kMaxTimes * static_cast<double>(std::max(once.bytes, kFewBytes)));
}

std::string repeated(std::string_view text, std::size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += text;
  return out;
}

constexpr jinja::Limits kNoLimits{
    .work = std::int64_t{1} << 50, .time = std::chrono::hours(1), .output = std::size_t{1} << 40};

// A template that applies one operation to s, a text of this size, and t, one of a tenth of it.
MakeReader operation(const std::string& source, const std::string& unit = "a") {
  const auto parsed = jinja::Template::parse(source);
  return [=](std::size_t size) {
    Dict context;
    context.set("s", repeated(unit, size));
    context.set("t", repeated(unit, size / 10) + "b");
    Value marked = jinja::from_outside(repeated(unit, size));
    context.set("m", marked);
    return [=] { (void)parsed.render(context, kNoLimits); };
  };
}

TEST_CASE("operations of templates on one text") {
  for (const char* source :
       {"{{ s.find(t) }}", "{{ s.rfind(t) }}", "{{ t in s }}", "{{ s.count(t) }}",
        "{{ s.replace(t, 'x') | length }}", "{{ s.split(t) | length }}",
        "{{ s.rsplit(t) | length }}", "{{ s.partition(t) | length }}", "{{ s[1:] | length }}",
        "{{ s[::-1] | length }}", "{{ s + t == s ~ t }}", "{{ s | upper | length }}",
        "{{ s | tojson | length }}", "{{ (s + ' ') | trim('ab') | length }}", "{{ '%s' % s }}",
        "{{ s | title | length }}", "{{ s[-1] ~ s[5000] }}"}) {
    check_linear(source, 1 << 13, operation(source));
  }
  // These create a value per few bytes, and so take much more memory than the text.
  for (const char* source :
       {"{{ s | list | join('-') | length }}", "{{ s | indent | length }}",
        "{{ s.splitlines() | length }}", "{{ s.split() | length }}", "{{ s | wordcount }}",
        "{{ m.replace('x', '<>') | trim | length }}", "{{ m.split('x') | join('x') | length }}"}) {
    check_linear(source, 1 << 9, operation(source, "\xc3\xbc x\n"));
  }
}

// As many items as the size says, as JSON.
std::string json_list(std::size_t size) {
  std::string text = "[0";
  for (std::size_t i = 1; i < size; ++i) text += "," + std::to_string(i * 7919 % size);
  return text + "]";
}
std::string json_object(std::size_t size) {
  std::string text = "{\"name\":0";
  for (std::size_t i = 1; i < size; ++i) text += ",\"n" + std::to_string(i) + "\":0";
  return text + "}";
}

TEST_CASE("operations of templates on many items") {
  for (const char* source :
       {"{{ l | length }}{% for x in l %}{{ x }}{% endfor %}", "{{ l | sort | length }}",
        "{{ l | map('string') | join(',') | length }}", "{{ l[1:] == l[:-1] }}",
        "{% for x in d.items() %}{{ d[x[0]] }}{% endfor %}", "{{ d | dictsort | length }}",
        "{{ dict(d, x=1) | tojson | length }}", "{{ d == dict(d) }}",
        "{% set n = namespace(d) %}{% for k in d %}{{ n[k] }}{% endfor %}",
        "{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}"}) {
    const auto parsed = jinja::Template::parse(source);
    check_linear(source, 200, [&](std::size_t size) {
      Dict context;
      context.set("l", jinja::from_json(json_list(size), "l"));
      context.set("d", jinja::from_json(json_object(size), "d"));
      return [=] { (void)parsed.render(context, kNoLimits); };
    });
  }
}

TEST_CASE("templates themselves") {
  const auto of_statements = [](const char* statement) {
    return [=](std::size_t size) {
      std::string source;
      for (std::size_t i = 0; i < size; ++i) source += str(statement, i, "=1%}");
      return [=] { (void)jinja::Template::parse(source).render({}, kNoLimits); };
    };
  };
  check_linear("set of many names", 100, of_statements("{%set n"));
  check_linear("set of many attributes", 100, [](std::size_t size) {
    std::string source = "{%set n=namespace()%}";
    for (std::size_t i = 0; i < size; ++i) source += str("{%set n.a", i, "=1%}");
    return [=] { (void)jinja::Template::parse(source).render({}, kNoLimits); };
  });
  check_linear("raw text", 1 << 14, [](std::size_t size) {
    const std::string source = repeated("{%raw%}{{x{%endraw%}", size);
    return [=] { (void)jinja::Template::parse(source).render({}, kNoLimits); };
  });
}

std::string tokenizer_json(const std::string& members) {
  return R"({"model":{"vocab":{"a":0,"b":1,"aa":2,"aaaa":3,"ab":4},
             "merges":["a a","aa aa","a b"]},
             "added_tokens":[{"content":"<|aaaaaaab|>","special":true},
                             {"content":"<|a|>","special":true}])" +
         members + "}";
}

// Encoding a text of this size.
MakeReader encoding(const std::string& members, const std::string& unit, bool marked = false) {
  const std::shared_ptr<tokenizer::Tokenizer> tokenizer =
      tokenizer::parse_tokenizer(tokenizer_json(members));
  return [=](std::size_t size) {
    tokenizer::MarkedText text;
    while (text.text.size() < size) {
      text.append(marked ? tokenizer::MarkedText::outside(unit) : tokenizer::MarkedText{unit});
      if (marked) text.append("b");
    }
    return [=] { (void)tokenizer->decode(tokenizer->encode(text, false), false); };
  };
}

TEST_CASE("tokenizers") {
  check_linear("a long word", 1 << 12, encoding("", "a"));
  check_linear("another long word", 1 << 12, encoding("", "aab"));
  check_linear("beginnings of added tokens", 1 << 12, encoding("", "<|aaaaaaa"));
  check_linear("marked added tokens", 1 << 12, encoding("", "<|a|>", true));
  check_linear("normalizers", 1 << 12,
               encoding(R"(,"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},
                 {"type":"Lowercase"},{"type":"StripAccents"},{"type":"Prepend","prepend":"b"},
                 {"type":"Replace","pattern":{"String":"\u0301"},"content":"a"},
                 {"type":"Replace","pattern":{"Regex":"a+x"},"content":"b"}]})",
                        "a\u0301\ufdfa"));
  check_linear("pre-tokenizers", 1 << 12,
               encoding(R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[
                 {"type":"Split","pattern":{"Regex":"(?:a|aa|a+)+c"},"behavior":"Isolated"},
                 {"type":"Digits"},{"type":"Punctuation"},
                 {"type":"ByteLevel","add_prefix_space":true}]})",
                        "aaa1! "));
  check_linear("a pattern", 1 << 10, [](std::size_t size) {
    const std::string text = repeated("a", size);
    return [=] {
      const tokenizer::RegexProgram program = tokenizer::compile_regex("(?:a|aa|a*)*b|a+?c");
      (void)tokenizer::RegexMatcher(program, text).next(0);
    };
  });
  check_linear("a vocabulary", 1 << 8, [](std::size_t size) {
    std::string vocabulary = "\"a\":0", added;
    for (std::size_t i = 1; i < size; ++i) vocabulary += str(",\"a", i, "\":", i);
    for (std::size_t i = 0; i < size; ++i)
      added += str(i == 0 ? "" : ",", R"({"content":"x)", i, "\"}");
    const std::string json = str(R"({"model":{"vocab":{)", vocabulary, R"(},"merges":[]},)",
                                 R"("added_tokens":[)", added, "]}");
    return [=] { (void)tokenizer::parse_tokenizer(json); };
  });
}

TEST_CASE("JSON and configurations") {
  check_linear("a list", 1 << 8, [](std::size_t size) {
    const std::string text = json_list(size);
    return [=] { (void)read_bounded_json(text, {}); };
  });
  check_linear("an object", 1 << 8, [](std::size_t size) {
    const std::string text = json_object(size);
    return [=] { (void)read_bounded_json(text, {.max_keys = size}); };
  });
  check_linear("a template's values", 1 << 8, [](std::size_t size) {
    const std::string text = json_object(size);
    return [=] { (void)jinja::from_json(text, "x"); };
  });
  check_linear("many objects in a configuration", 1 << 8, [](std::size_t size) {
    std::string text = "{\"a\":{}";
    for (std::size_t i = 0; i < size; ++i) text += str(",\"b", i, "\":{}");
    return [text = text + "}"] { (void)parse_nested_json(text, "x"); };
  });
}

TEST_CASE("headers of checkpoints") {
  check_linear("tensors of size zero", 1 << 6, [](std::size_t size) {
    std::string json = "{\"__metadata__\":{}";
    for (std::size_t i = 0; i < size; ++i) {
      json += str(",\"t", i, R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
    }
    json += "}";
    const std::uint64_t length = json.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
    file += json;
    return [=] {
      (void)model::parse_safetensors(std::as_bytes(std::span(file)), file.size(), "FILE");
    };
  });
  check_linear("an index", 1 << 6, [](std::size_t size) {
    std::string json = R"({"weight_map":{"t":"a.safetensors")";
    for (std::size_t i = 0; i < size; ++i) json += str(",\"t", i, R"(":"a.safetensors")");
    return [json = json + "}}"] { (void)model::parse_safetensors_index(json, "FILE"); };
  });
  check_linear("metadata of GGUF", 1 << 6, [](std::size_t size) {
    model::GgufBuilder builder;
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < size; ++i) {
      builder.u32(str("key", i), 1);
      texts.push_back(str("token", i));
    }
    builder.texts("texts", texts);
    const std::string file = builder.file();
    return [=] {
      (void)model::parse_gguf(std::as_bytes(std::span(file)), file.size(), "FILE",
                              model::GgufArrays::kept);
    };
  });
}

}  // namespace
}  // namespace nvllm
