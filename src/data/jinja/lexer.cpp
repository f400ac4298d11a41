#include <algorithm>

#include <utf8proc.h>

#include "data/jinja/parsing.h"
#include "data/jinja/python_text.h"
#include "data/tokenizer/characters.h"

namespace cairn::data::jinja {
namespace {

constexpr std::string_view kSigns = "+-*/%~[](){}<>=.:|,;";

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string with_plain_line_ends(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      plain += text[i];
      continue;
    }
    plain += '\n';
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  if (plain.ends_with('\n')) plain.pop_back();
  return plain;
}

class Lexer {
 public:
  Lexer(std::string_view text, TemplateBudget& budget) : text_(text), budget_(budget) {}

  std::vector<Token> cut() {
    while (at_ < text_.size()) cut_text_and_tag();
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  void add(Kind kind, std::string value) { tokens_.push_back({kind, std::move(value), line_}); }

  void advance(size_t count) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    budget_.at_line(line_);
  }

  bool sees(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  // One run of text, and the tag that follows it.
  void cut_text_and_tag() {
    size_t begin = at_;
    while (true) {
      begin = text_.find('{', begin);
      if (begin == std::string_view::npos || begin + 1 >= text_.size()) break;
      if (const char next = text_[begin + 1]; next == '{' || next == '%' || next == '#') break;
      ++begin;
    }
    if (begin == std::string_view::npos || begin + 1 >= text_.size()) {
      add_text(text_.substr(at_));
      advance(text_.size() - at_);
      return;
    }
    const char opener = text_[begin + 1];
    const char mark = begin + 2 < text_.size() ? text_[begin + 2] : ' ';
    add_text(text_before(begin, opener, mark));
    advance(begin - at_ + 2 + (mark == '-' || mark == '+'));
    if (opener == '#') {
      cut_comment();
    } else if (opener == '%' && !cut_raw()) {
      add(Kind::tag_begin, "");
      cut_inside("%}", Kind::tag_end);
    } else if (opener == '{') {
      add(Kind::output_begin, "");
      cut_inside("}}", Kind::output_end);
    }
  }

  // The text kept before a tag: "{%-" strips all whitespace; a tag alone at the start of its line strips its indentation (lstrip_blocks).
  std::string_view text_before(size_t begin, char opener, char mark) const {
    const std::string_view text = text_.substr(at_, begin - at_);
    if (mark == '-') return strip(text, {.left = false, .right = true});
    if (mark == '+' || opener == '{') return text;
    const size_t line_break = text.rfind('\n');
    if (line_break == std::string_view::npos && !line_starts_) return text;
    const size_t line_start = line_break == std::string_view::npos ? 0 : line_break + 1;
    return strip(text.substr(line_start)).empty() ? text.substr(0, line_start) : text;
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(Kind::text, std::string(text));
  }

  // After a tag: "-%}" strips all whitespace, "%}" strips one line break (trim_blocks); "}}" and "+%}" strip nothing.
  void after_end(bool strips, bool trims) {
    const size_t from = at_;
    if (strips) {
      const std::string_view rest = text_.substr(at_);
      advance(rest.size() - strip(rest, {.left = true, .right = false}).size());
    } else if (trims && sees("\n")) {
      advance(1);
    }
    line_starts_ = at_ > from && text_[at_ - 1] == '\n';
  }

  void cut_comment() {
    const int line = line_;
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) {
      budget_.at_line(line);
      budget_.fail("a comment begins with {{# and has no #}}");
    }
    const char mark = end > at_ ? text_[end - 1] : ' ';
    advance(end + 2 - at_);
    after_end(mark == '-', mark != '+');
  }

  void skip_space() {
    const std::string_view rest = text_.substr(at_);
    advance(rest.size() - strip(rest, {.left = true, .right = false}).size());
  }

  bool takes_end_of_tag(bool trims) {
    const bool strips = sees("-%}");
    const bool keeps = sees("+%}");
    if (!strips && !keeps && !sees("%}")) return false;
    advance(strips || keeps ? 3 : 2);
    after_end(strips, trims && !keeps);
    return true;
  }

  // {% raw %} ... {% endraw %}: literal text. Consumes nothing if this is another tag.
  bool cut_raw() {
    const size_t before = at_;
    const int line = line_;
    skip_space();
    if (sees("raw")) {
      advance(3);
      skip_space();
      if (takes_end_of_tag(false)) {
        cut_raw_text(line);
        return true;
      }
    }
    at_ = before;
    line_ = line;
    return false;
  }

  void cut_raw_text(int line) {
    const size_t from = at_;
    const int from_line = line_;
    // Candidates are examined without consuming; only the matching one is consumed, which counts lines.
    for (size_t begin = text_.find("{%", at_); begin != std::string_view::npos; begin = text_.find("{%", begin + 2)) {
      const char mark = begin + 2 < text_.size() ? text_[begin + 2] : ' ';
      const size_t inside = begin + 2 + (mark == '-' || mark == '+');
      at_ = inside;
      skip_space();
      if (!sees("endraw")) continue;
      advance(6);
      skip_space();
      if (!sees("%}") && !sees("-%}") && !sees("+%}")) continue;
      const size_t end = at_;
      at_ = from;
      line_ = from_line;
      const std::string_view kept = text_before(begin, '%', mark);
      advance(end - from);
      takes_end_of_tag(true);
      tokens_.push_back({Kind::text, std::string(kept), line});
      return;
    }
    budget_.at_line(line);
    budget_.fail("{{% raw %}} has no {{% endraw %}}");
  }

  // The tokens of one tag. Inside brackets the end of the tag is not recognised: {{ {'a': {}} }}.
  void cut_inside(std::string_view end, Kind end_kind) {
    const int line = line_;
    std::string open;
    while (true) {
      skip_space();
      if (at_ >= text_.size()) {
        budget_.at_line(line);
        budget_.fail("a tag begins here and has no {}", end);
      }
      const bool marked = (sees("-") || (sees("+") && end == "%}")) && text_.substr(at_ + 1).starts_with(end);
      if (open.empty() && (marked || sees(end))) {
        const bool strips = marked && sees("-");
        advance(end.size() + marked);
        add(end_kind, "");
        after_end(strips, !marked && end == "%}");
        return;
      }
      cut_one(open);
    }
  }

  void cut_one(std::string& open) {
    const char c = text_[at_];
    if (is_name_start(c)) {
      size_t length = 1;
      while (at_ + length < text_.size() && (is_name_start(text_[at_ + length]) || is_digit(text_[at_ + length]))) ++length;
      add(Kind::name, std::string(text_.substr(at_, length)));
      advance(length);
    } else if (is_digit(c)) {
      cut_number();
    } else if (c == '\'' || c == '"') {
      cut_string(c);
    } else {
      cut_sign(open);
    }
  }

  void cut_number() {
    size_t length = 0;
    const auto digits = [&] {
      while (at_ + length < text_.size() && (is_digit(text_[at_ + length]) || text_[at_ + length] == '_')) ++length;
    };
    const auto at = [&](size_t offset) { return at_ + offset < text_.size() ? text_[at_ + offset] : ' '; };
    digits();
    bool whole = true;
    const bool after_dot = !tokens_.empty() && tokens_.back().is(Kind::sign, ".");
    if (!after_dot && at(length) == '.' && is_digit(at(length + 1))) {
      ++length;
      digits();
      whole = false;
    }
    if (const size_t sign = length + 1 + (at(length + 1) == '+' || at(length + 1) == '-'); at(length) == 'e' && is_digit(at(sign))) {
      length = sign;
      digits();
      whole = false;
    }
    std::string value(text_.substr(at_, length));
    std::erase(value, '_');
    if (is_name_start(at(length))) budget_.fail("\"{}{}\" is neither a number nor a name", value, at(length));
    add(whole ? Kind::integer : Kind::number, std::move(value));
    advance(length);
  }

  void cut_string(char quote) {
    std::string value;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] == '\\' && at + 1 < text_.size()) {
        at += 1 + escape(at + 1, value);
      } else {
        value += text_[at++];
      }
    }
    if (at >= text_.size()) budget_.fail("a string begins with {} and does not end", quote);
    add(Kind::string, std::move(value));
    advance(at + 1 - at_);
  }

  // Python's escapes; unknown ones stay as written. Returns the bytes read after the backslash.
  size_t escape(size_t at, std::string& into) {
    static constexpr std::string_view kLetters = "ntr\\'\"abfv";
    static constexpr std::string_view kMeanings = "\n\t\r\\'\"\a\b\f\v";
    const char c = text_[at];
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      into += kMeanings[known];
      return 1;
    }
    if (c == '\n') return 1;
    if (c >= '0' && c <= '7') {
      size_t length = 1;
      while (length < 3 && at + length < text_.size() && text_[at + length] >= '0' && text_[at + length] <= '7') ++length;
      append_code(into, std::stoul(std::string(text_.substr(at, length)), nullptr, 8));
      return length;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      into += {'\\', c};
      return 1;
    }
    const std::string_view hexadecimal = text_.substr(at + 1, digits);
    if (hexadecimal.size() < digits || hexadecimal.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      budget_.fail("a string holds \\{} without {} hexadecimal digits after it", c, digits);
    append_code(into, std::stoul(std::string(hexadecimal), nullptr, 16));
    return 1 + digits;
  }

  void append_code(std::string& into, unsigned long code) {
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) budget_.fail("a string names U+{:04X}, which is no character", code);
    utf8proc_uint8_t bytes[4];
    const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
    into.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
  }

  void cut_sign(std::string& open) {
    const char c = text_[at_];
    for (const std::string_view sign : {"**", "//", "==", "!=", "<=", ">="}) {
      if (!sees(sign)) continue;
      add(Kind::sign, std::string(sign));
      return advance(2);
    }
    if (kSigns.find(c) == std::string_view::npos) {
      const size_t bytes = character_at(text_, at_).bytes;
      budget_.fail("\"{}\" has no meaning in a tag", text_.substr(at_, bytes));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) budget_.fail("\"{}\" closes nothing", c);
      if (open.back() != c) budget_.fail("found \"{}\" where \"{}\" is still open", c, open.back());
      open.pop_back();
    }
    add(Kind::sign, std::string(1, c));
    advance(1);
  }

  std::string_view text_;
  TemplateBudget& budget_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

std::vector<Token> lex_template(std::string_view text, TemplateBudget& budget) {
  if (text.size() > static_cast<size_t>(kTemplateBytes))
    budget.fail("{} bytes, and a template has at most {}", text.size(), kTemplateBytes);
  const std::string plain = with_plain_line_ends(text);
  return Lexer(plain, budget).cut();
}

}  // namespace cairn::data::jinja
