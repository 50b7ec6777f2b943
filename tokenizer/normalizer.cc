#include "tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
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

std::size_t Replacement::growth() const {
  // A pattern may match the empty string, and so between any two characters.
  const std::size_t grown = literal_.empty()
                                ? content_.size() + 1
                                : (content_.size() + literal_.size() - 1) / literal_.size();
  return std::max<std::size_t>(grown, 1);
}

void ReplaceGrowth::add(const char* owner, const Replacement& replacement) {
  const std::size_t growth = replacement.growth();
  if (growth > kMaxReplaceGrowth || times_ * growth > kMaxReplaceGrowth) {
    fail(owner, ": its Replace steps make a text up to ", times_, " times ", growth,
         " times as long; at most ", kMaxReplaceGrowth, " times is allowed");
  }
  times_ *= growth;
}

void Normalizer::add(NormalizerStep step) {
  if (steps_.size() == kMaxSteps) fail("normalizer: it has more than ", kMaxSteps, " steps");
  if (const auto* replacement = std::get_if<Replacement>(&step)) {
    growth_.add("normalizer", *replacement);
    prepended_ *= replacement->growth();
  }
  if (const auto* prepend = std::get_if<Prepend>(&step)) prepended_ += prepend->text.size();
  if (prepended_ > kMaxPrependedBytes) {
    fail("normalizer: its Prepend steps add ", prepended_, " bytes to each text; at most ",
         kMaxPrependedBytes, " are allowed");
  }
  steps_.push_back(std::move(step));
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

namespace {

std::string apply_step(const NormalizerStep& step, std::string_view text) {
  NormalizedText result{std::string(text)};
  StepRunner runner(result);
  std::visit(runner, step);
  return std::move(result.text);
}

// The text after a step, with the marks of its source.
MarkedText marked_step(const NormalizerStep& step, const MarkedText& text) {
  std::string whole = apply_step(step, text.text);
  if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (text.text.empty()) return text;
    MarkedText out{prepend->text};
    out.append(text);
    return out;
  }
  if (const auto* strip = std::get_if<StripSpace>(&step)) {
    const std::size_t begin =
        strip->left ? std::min(skip_white_space(text.text, 0), text.text.size() - whole.size()) : 0;
    return text.part(begin, begin + whole.size());
  }
  MarkedText parts = map_parts(text, [&](std::string_view part) { return apply_step(step, part); });
  return parts.text == whole ? std::move(parts) : MarkedText::outside(std::move(whole));
}

}  // namespace

Marks Normalizer::marks_of(const MarkedText& text, const NormalizedText& normalized) const {
  MarkedText now = text;
  for (const NormalizerStep& step : steps_) now = marked_step(step, now);
  NVLLM_CHECK_EQ(now.text.size(), normalized.text.size());
  return std::move(now.marks);
}

}  // namespace nvllm::tokenizer
