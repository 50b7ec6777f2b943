#include <array>

#include "base/bounded_json.h"
#include "base/error.h"
#include "tokenizer/jinja/syntax.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    // A single newline at the very end is not part of the template.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) outside();
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  // Text up to the next bracket, and the bracket's content.
  void outside() {
    const std::size_t open = next_bracket();
    const std::string_view text = source_.substr(at_, open - at_);
    if (open == source_.size()) {
      add_text(text);
      move_to(open);
      return;
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    add_text(text_before(text, sign, open, kind != '{'));
    move_to(open);
    const Position begin = position_;
    move_to(open + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') return comment(begin);
    if (kind == '%' && raw(begin)) return;
    add(kind == '{' ? Token::Kind::print_begin : Token::Kind::block_begin, "", begin);
    inside(kind == '{' ? '}' : '%', begin);
  }

  std::size_t next_bracket() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  // The text before an opening bracket that is followed by `sign`: - strips trailing white space.
  std::string_view text_before(std::string_view text, char sign, std::size_t open,
                               bool trim_indent) const {
    if (sign != '-') return trim_indent && sign != '+' ? without_indent(text, open) : text;
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
  }

  // lstrip_blocks: removes white space between the start of a line and a block.
  std::string_view without_indent(std::string_view text, std::size_t open) const {
    std::size_t from = open;
    while (from > at_ && (source_[from - 1] == ' ' || source_[from - 1] == '\t')) --from;
    const bool whole_line = from == 0 || source_[from - 1] == '\n';
    return whole_line ? text.substr(0, from - at_) : text;
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(Token::Kind::text, std::string(text));
  }

  // After a closing bracket. `sign`: the character before it.
  void after_closing(char sign, bool trim_newline) {
    if (sign == '-') {
      std::size_t to = at_;
      while (to < source_.size() && is_space(source_[to])) ++to;
      move_to(to);
    } else if (trim_newline && sign != '+') {
      if (source_.substr(at_, 1) == "\n") move_to(at_ + 1);
    }
  }

  void comment(Position begin) {
    const std::size_t close = source_.find("#}", at_);
    if (close == std::string_view::npos) fail_at(begin, "this comment has no end, #}");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    move_to(close + 2);
    after_closing(sign, true);
  }

  // {% raw %} ... {% endraw %}: text. False: another block.
  bool raw(Position begin) {
    std::size_t i = skip_space(at_);
    if (source_.substr(i, 3) != "raw") return false;
    i = skip_space(i + 3);
    char sign = '\0';
    if (i < source_.size() && source_[i] == '-') sign = source_[i++];
    if (source_.substr(i, 2) != "%}") return false;
    move_to(i + 2);
    after_closing(sign, false);  // trim_blocks does not apply to {% raw %}
    for (std::size_t open = source_.find("{%", at_); open != std::string_view::npos;
         open = source_.find("{%", open + 2)) {
      std::size_t j = open + 2;
      const char before = j < source_.size() ? source_[j] : '\0';
      if (before == '-' || before == '+') ++j;
      j = skip_space(j);
      if (source_.substr(j, 6) != "endraw") continue;
      j = skip_space(j + 6);
      char after = '\0';
      if (j < source_.size() && (source_[j] == '-' || source_[j] == '+')) after = source_[j++];
      if (source_.substr(j, 2) != "%}") continue;
      add_text(text_before(source_.substr(at_, open - at_), before, open, true));
      move_to(j + 2);
      after_closing(after, true);
      return true;
    }
    fail_at(begin, "this raw block has no {% endraw %}");
  }

  // Tokens up to }} or %}.
  void inside(char closing, Position begin) {
    std::string brackets;  // open brackets
    while (true) {
      move_to(skip_space(at_));
      if (at_ == source_.size()) {
        fail_at(begin, closing == '}' ? "this {{ has no }}" : "this {% has no %}");
      }
      if (brackets.empty() && close_here(closing)) return;
      const char c = source_[at_];
      if (starts_name(c)) {
        name();
      } else if (is_digit(c)) {
        number();
      } else if (c == '"' || c == '\'') {
        string();
      } else {
        symbol(brackets);
      }
    }
  }

  bool close_here(char closing) {
    const char sign = source_[at_];
    const bool signed_end = sign == '-' || sign == '+';
    const std::size_t at = at_ + (signed_end ? 1 : 0);
    if (at + 1 >= source_.size() || source_[at] != closing || source_[at + 1] != '}') return false;
    if (closing == '}' && sign == '+') return false;
    add(closing == '}' ? Token::Kind::print_end : Token::Kind::block_end, "");
    move_to(at + 2);
    after_closing(signed_end ? sign : '\0', closing == '%');
    return true;
  }

  void name() {
    std::size_t end = at_;
    while (end < source_.size() && (starts_name(source_[end]) || is_digit(source_[end]))) ++end;
    take(Token::Kind::name, end);
  }

  void number() {
    std::size_t end = at_;
    bool real = false;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        real = true;
        end = exponent;
        digits();
      }
    }
    take(real ? Token::Kind::real : Token::Kind::integer, end);
    std::erase(tokens_.back().text, '_');
  }

  void string() {
    const Position begin = position_;
    const char quote = source_[at_];
    std::string text;
    std::size_t i = at_ + 1;
    while (true) {
      if (i >= source_.size()) fail_at(begin, "this string has no end");
      const char c = source_[i++];
      if (c == quote) break;
      if (c == '\\') {
        i = escape(i, text, begin);
      } else {
        text += c;
      }
    }
    add(Token::Kind::string, std::move(text));
    move_to(i);
  }

  // Parses an escape after the backslash. Returns the index after it.
  std::size_t escape(std::size_t i, std::string& text, Position begin) const {
    if (i >= source_.size()) fail_at(begin, "this string has no end");
    const char c = source_[i++];
    switch (c) {
      case 'n': text += '\n'; return i;
      case 't': text += '\t'; return i;
      case 'r': text += '\r'; return i;
      case 'b': text += '\b'; return i;
      case 'f': text += '\f'; return i;
      case 'v': text += '\v'; return i;
      case 'a': text += '\a'; return i;
      case '\\':
      case '\'':
      case '"': text += c; return i;
      case '\n': return i;
      case 'x': return hex(i, 2, text, begin);
      case 'u': return hex(i, 4, text, begin);
      case 'U': return hex(i, 8, text, begin);
      default: break;
    }
    if (c >= '0' && c <= '7') {
      unsigned code = static_cast<unsigned>(c - '0');
      for (int more = 0; more < 2 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7';
           ++more) {
        code = code * 8 + static_cast<unsigned>(source_[i++] - '0');
      }
      tokenizer::append_utf8(text, code);
      return i;
    }
    text += '\\';
    text += c;
    return i;
  }

  std::size_t hex(std::size_t i, int digits, std::string& text, Position begin) const {
    char32_t code = 0;
    for (int d = 0; d < digits; ++d, ++i) {
      const char c = i < source_.size() ? source_[i] : '\0';
      const int value = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (value < 0) fail_at(begin, "this string has an escape that is too short");
      code = code * 16 + static_cast<char32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_at(begin, "this string has an escape that is no character");
    }
    tokenizer::append_utf8(text, code);
    return i;
  }

  void symbol(std::string& brackets) {
    constexpr std::array<std::string_view, 6> kLong = {"**", "//", "==", "!=", "<=", ">="};
    for (const std::string_view symbol : kLong) {
      if (source_.substr(at_, 2) == symbol) return take(Token::Kind::symbol, at_ + 2);
    }
    const char c = source_[at_];
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos) {
      fail_at(position_, str("'", c, "' means nothing here"));
    }
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c)
        fail_at(position_, str("'", c, "' closes nothing"));
      brackets.pop_back();
    }
    take(Token::Kind::symbol, at_ + 1);
  }

  std::size_t skip_space(std::size_t i) const {
    while (i < source_.size() && is_space(source_[i])) ++i;
    return i;
  }
  void take(Token::Kind kind, std::size_t end) {
    add(kind, std::string(source_.substr(at_, end - at_)));
    move_to(end);
  }
  void add(Token::Kind kind, std::string text) { add(kind, std::move(text), position_); }
  void add(Token::Kind kind, std::string text, Position at) {
    if (tokens_.size() == Template::kMaxTokens) {
      fail_at(at, str("the template has more than ", Template::kMaxTokens, " words and symbols"));
    }
    tokens_.push_back({kind, std::move(text), at});
  }

  // Columns count characters.
  void move_to(std::size_t at) {
    for (; at_ < at; ++at_) {
      if (source_[at_] == '\n') {
        ++position_.line;
        position_.column = 1;
      } else if ((static_cast<unsigned char>(source_[at_]) & 0xC0) != 0x80) {
        ++position_.column;
      }
    }
  }

  std::string_view source_;
  std::size_t at_ = 0;
  Position position_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  // Converts all line ends to \n.
  std::string lines;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool pair = source.substr(i, 2) == "\r\n";
    if (!pair) lines += source[i] == '\r' ? '\n' : source[i];
  }
  return Lexer(lines).run();
}

std::string placed(Position at, std::string_view what) {
  constexpr std::size_t kMaxWhat = 200;
  return str("line ", at.line, ", column ", at.column, ": ", shown_text(what, kMaxWhat));
}

void fail_at(Position at, const std::string& what) {
  fail(placed(at, what));
}

}  // namespace nvllm::jinja
