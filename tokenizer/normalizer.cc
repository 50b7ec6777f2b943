#include "tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

class StepRunner {
 public:
  explicit StepRunner(NormalizedText& in) : in_(in) {}

  void operator()(NormalForm form) { in_.text = normalize_unicode(in_.text, form); }

  void operator()(Lowercase) {
    std::string out;
    out.reserve(in_.text.size());
    for_each_char(in_.text, [&](char32_t c, std::string_view) {
      if (c < 128) {
        out += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
        return;
      }
      append_lower_case(out, c);
    });
    in_.text = std::move(out);
  }

  void operator()(StripAccents) {
    std::string out;
    out.reserve(in_.text.size());
    for_each_char(in_.text, [&](char32_t c, std::string_view bytes) {
      if (!char_record(c).has(kMark)) {
        out += bytes;
      } else if (out.empty()) {
        in_.keeps_start = false;
      }
    });
    in_.text = std::move(out);
  }

  void operator()(const Prepend& prepend) {
    if (!in_.text.empty()) in_.text.insert(0, prepend.text);
  }

  void operator()(const StripSpace& strip) {
    const std::string_view text = in_.text;
    const std::size_t begin = strip.left ? skip_white_space(text, 0) : 0;
    const std::size_t end =
        strip.right ? std::max(begin, skip_white_space_before(text, text.size())) : text.size();
    if (begin > 0) in_.keeps_start = false;
    in_.text = std::string(text.substr(begin, end - begin));
  }

  void operator()(const Replacement& replacement) { in_.text = replacement.apply(in_.text); }

 private:
  NormalizedText& in_;
};

}  // namespace

Replacement Replacement::of_literal(std::string_view pattern, std::string content) {
  return {std::string(pattern), literal_regex(pattern), std::move(content)};
}

Replacement Replacement::of_regex(std::string_view pattern, std::string content) {
  return {"", compile_regex(pattern), std::move(content)};
}

bool Replacement::is_of_one_char() const {
  return !literal_.empty() && literal_.size() == utf8_size(literal_[0]);
}

std::string Replacement::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  const auto replace = [&](std::size_t begin, std::size_t end) {
    out.append(text.substr(done, begin - done)).append(content_);
    done = end;
  };
  if (!literal_.empty()) {
    for (std::size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos;) {
      replace(at, at + literal_.size());
      at = done;
    }
  } else if (!text.empty()) {
    RegexMatcher matcher(program_, text);
    while (const auto match = matcher.next(done)) replace(match->begin, match->end);
  }
  out.append(text.substr(done));
  return out;
}

NormalizedText Normalizer::apply(std::string_view text) const {
  NormalizedText result{std::string(text)};
  StepRunner runner(result);
  for (const NormalizerStep& step : steps_) std::visit(runner, step);
  return result;
}

}  // namespace nvllm::tokenizer
