#include "tokenizer/decoder.h"

#include <charconv>
#include <optional>
#include <utility>

#include "base/error.h"
#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

// The byte of a token <0x41>. Like the reference, it also accepts a + and one hexadecimal digit.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const char* digits = token.data() + 3;
  const char* const end = token.data() + 5;
  if (*digits == '+') ++digits;
  unsigned value = 0;
  const auto [next, error] = std::from_chars(digits, end, value, 16);
  if (error != std::errc{} || next != end) return std::nullopt;
  return static_cast<char>(value);
}

// Removes at most `limit` copies of a character from the front (or the back), and returns their
// number.
std::size_t strip_front(std::string_view& text, std::string_view c, std::size_t limit) {
  std::size_t count = 0;
  for (; count < limit && text.starts_with(c); ++count) text.remove_prefix(c.size());
  return count;
}
std::size_t strip_back(std::string_view& text, std::string_view c, std::size_t limit) {
  std::size_t count = 0;
  for (; count < limit && text.ends_with(c); ++count) text.remove_suffix(c.size());
  return count;
}

bool fuses(const DecoderStep& step) {
  return std::holds_alternative<Fuse>(step) || std::holds_alternative<FromByteChars>(step);
}

}  // namespace

void Decoder::add(DecoderStep step) {
  if (steps_.size() == kMaxSteps) fail("decoder: it has more than ", kMaxSteps, " steps");
  if (const auto* replacement = std::get_if<Replacement>(&step))
    growth_.add("decoder", *replacement);
  steps_.push_back(std::move(step));
}

// Runs one step on one token (or, if tokens are fused, on a fragment of the only one).
class DecoderStream::StepRunner {
 public:
  StepRunner(DecoderStream& stream, std::size_t step, std::string& out)
      : stream_(stream), state_(stream.states_[step]), step_(step), out_(out) {}

  void push(std::string_view token) {
    token_ = token;
    std::visit(*this, stream_.decoder_.steps()[step_]);
  }

  void finish() {
    finishing_ = true;
    token_ = {};
    std::visit(*this, stream_.decoder_.steps()[step_]);
  }

  void operator()(const FromByteChars&) {
    if (state_.fused && !collected()) return;
    std::string bytes = std::exchange(state_.held, {});
    append_token_bytes(bytes, token_);
    std::string text;
    std::string_view rest = bytes;
    for (;;) {
      const std::size_t valid = valid_utf8_prefix(rest);
      text.append(rest.substr(0, valid));
      rest.remove_prefix(valid);
      if (rest.empty()) break;
      const Utf8Part part = first_utf8_part(rest);
      if (part.kind == Utf8Part::kTruncated && !finishing_) break;
      text += kReplacementCharacter;
      rest.remove_prefix(part.size);
    }
    state_.held = rest;
    emit_fragment(text);
  }

  void operator()(const ByteFallback&) {
    if (state_.fused && !collected()) return;
    const std::optional<char> byte = fallback_byte(token_);
    if (byte) state_.held += *byte;
    if (byte && !state_.fused) return;
    emit_bytes(std::exchange(state_.held, {}));
    if (!byte && (state_.fused || !finishing_)) emit(token_);
  }

  void operator()(const Fuse&) { emit_fragment(token_); }

  void operator()(const FromMetaspace& metaspace) {
    if (finishing_) return;
    const bool drop =
        metaspace.drops_first && (state_.fused || !std::exchange(state_.started, true));
    std::string text;
    for_each_char(token_, [&](char32_t, std::string_view c) {
      if (c != metaspace.replacement) {
        text += c;
      } else if (!drop) {
        text += ' ';
      }
    });
    emit(text);
  }

  void operator()(const StripChar& strip) {
    if (finishing_) return;  // what is held would be dropped at the end
    if (!state_.fused) {
      std::string_view text = token_;
      strip_front(text, strip.c, strip.start);
      strip_back(text, strip.c, strip.stop);
      return emit(text);
    }
    std::string_view fragment = token_;
    if (!state_.started) {
      state_.stripped += strip_front(fragment, strip.c, strip.start - state_.stripped);
      if (fragment.empty()) return;
    }
    state_.started = true;
    const std::string text = std::exchange(state_.held, {}).append(fragment);
    std::string_view kept = text;
    strip_back(kept, strip.c, strip.stop);
    state_.held = text.substr(kept.size());
    emit_fragment(kept);
  }

  void operator()(const Replacement& replacement) {
    if (state_.fused && !replacement.is_of_one_char()) {
      if (!collected()) return;
    } else if (finishing_) {
      return;
    }
    emit(replacement.apply(token_));
  }

 private:
  // For steps that need a complete fused token: collects fragments, and provides it at the end.
  bool collected() {
    if (!finishing_) {
      state_.held += token_;
      return false;
    }
    whole_ = std::exchange(state_.held, {});
    token_ = whole_;
    return true;
  }

  // Emits a run of bytes: as text if they are UTF-8, otherwise as one U+FFFD per byte.
  void emit_bytes(const std::string& bytes) {
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      emit_fragment(bytes);
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) emit(kReplacementCharacter);
    }
  }

  void emit(std::string_view token) { stream_.feed(step_ + 1, token, out_); }
  void emit_fragment(std::string_view text) {
    if (!text.empty()) emit(text);
  }

  DecoderStream& stream_;
  State& state_;
  std::size_t step_;
  std::string& out_;
  std::string_view token_;
  std::string whole_;
  bool finishing_ = false;
};

DecoderStream::DecoderStream(const Decoder& decoder)
    : decoder_(decoder), states_(decoder.steps().size()) {
  bool fused = false;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i].fused = fused;
    fused = fused || fuses(decoder.steps()[i]);
  }
}

void DecoderStream::feed(std::size_t step, std::string_view token, std::string& out) {
  if (step == states_.size()) {
    out += token;
  } else {
    StepRunner(*this, step, out).push(token);
  }
}

void DecoderStream::push(std::string_view token, std::string& out) {
  if (states_.empty() && !std::exchange(first_, false)) out += ' ';
  feed(0, token, out);
}

void DecoderStream::finish(std::string& out) {
  for (std::size_t step = 0; step < states_.size(); ++step) StepRunner(*this, step, out).finish();
}

}  // namespace nvllm::tokenizer
