#include "data/tokenizer/normalizer.h"

#include <cstdlib>
#include <memory>

#include <utf8proc.h>

#include "base/check.h"
#include "data/tokenizer/characters.h"

namespace cairn::data {
namespace {

utf8proc_option_t options_of(NormalizerStep::Kind kind) {
  const int composed = UTF8PROC_STABLE | UTF8PROC_COMPOSE, taken_apart = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  switch (kind) {
    case NormalizerStep::Kind::nfc:
      return static_cast<utf8proc_option_t>(composed);
    case NormalizerStep::Kind::nfd:
      return static_cast<utf8proc_option_t>(taken_apart);
    case NormalizerStep::Kind::nfkc:
      return static_cast<utf8proc_option_t>(composed | UTF8PROC_COMPAT);
    default:
      return static_cast<utf8proc_option_t>(taken_apart | UTF8PROC_COMPAT);
  }
}

// A bound against hostile files: ten steps that each make a text ten times as long would fill any memory. Unicode's own normal forms grow
// a text at most 18 times.
constexpr size_t kGrowthMax = 64, kGrowthBytes = 4096;

[[noreturn]] void fail_growth(size_t bytes) {
  base::fail_input("the tokenizer's normalizer or decoder makes a text of {1} bytes more than {0} times as long: it cannot be right",
                   kGrowthMax, bytes);
}

// `text` is well-formed UTF-8.
void append_normal(std::string_view text, NormalizerStep::Kind kind, std::string& into) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &made, options_of(kind));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  CAIRN_CHECK(bytes >= 0, "normalising {} bytes: {}", text.size(), utf8proc_errmsg(bytes));
  into.append(reinterpret_cast<const char*>(made), static_cast<size_t>(bytes));
}

// NFC changes only what lies between two stable characters. Most text is stable throughout and is copied.
bool is_stable(NormalizerStep::Kind kind, const Character& c) {
  return kind == NormalizerStep::Kind::nfc ? !(c.kinds & Kind::nfc_unstable) : c.code < 0x80;
}

// Appends the normal form of `text`. Unstable runs are normalized together with the stable character before them, which may combine.
void append_text(std::string_view text, NormalizerStep::Kind kind, std::string& into) {
  size_t copied = 0, last = 0;  // all before `copied` is in `into`; `last` is where the last stable character begins
  for (size_t at = 0; at < text.size();) {
    Character c = character_at(text, at);
    if (c.code == kNoCharacter || is_stable(kind, c)) {
      last = at;
      at += c.bytes;
      continue;
    }
    // A run from the stable character before it to the next stable one.
    const bool stray = last < at && character_at(text, last).code == kNoCharacter;
    const size_t begin = stray || last < copied ? at : last;
    size_t end = at;
    while (end < text.size()) {
      c = character_at(text, end);
      if (c.code == kNoCharacter || is_stable(kind, c)) break;
      end += c.bytes;
    }
    into += text.substr(copied, begin - copied);
    append_normal(text.substr(begin, end - begin), kind, into);
    copied = last = at = end;
  }
  into += text.substr(copied);
}

bool changes_nothing(std::string_view text, NormalizerStep::Kind kind) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < (kind == NormalizerStep::Kind::nfc ? 0xcc : 0x80)) {  // below U+0300 NFC changes nothing
      ++at;
      continue;
    }
    const Character c = character_at(text, at);
    if (c.code != kNoCharacter && !is_stable(kind, c)) return false;
    at += c.bytes;
  }
  return true;
}

void replace_all(std::string& text, const std::string& from, const std::string& to, size_t bytes_max) {
  std::string out;
  size_t copied = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, copied)) {
    out.append(text, copied, at - copied);
    out += to;
    if (out.size() > bytes_max) fail_growth(text.size());
    copied = at + from.size();
  }
  if (copied == 0) return;
  out.append(text, copied);
  text = std::move(out);
}

}  // namespace

std::string_view apply_normalizers(std::string_view text, std::span<const NormalizerStep> normalizers, std::string& scratch) {
  const size_t bytes_max = kGrowthMax * text.size() + kGrowthBytes;
  bool same = true;
  const auto own = [&] {
    if (same) scratch = text;
    same = false;
  };
  for (const NormalizerStep& step : normalizers) {
    const std::string_view now = same ? text : std::string_view(scratch);
    switch (step.kind) {
      case NormalizerStep::Kind::prepend:
        if (now.empty()) break;
        own();
        scratch.insert(0, step.to);
        break;
      case NormalizerStep::Kind::replace:
        if (now.find(step.from) == std::string_view::npos) break;
        own();
        replace_all(scratch, step.from, step.to, bytes_max);
        break;
      default:
        if (changes_nothing(now, step.kind)) break;
        std::string out;
        out.reserve(now.size() + now.size() / 8);
        append_text(now, step.kind, out);
        scratch = std::move(out);
        same = false;
    }
    if (!same && scratch.size() > bytes_max) fail_growth(text.size());
  }
  return same ? text : std::string_view(scratch);
}

std::string to_nfc(std::string_view text) {
  const NormalizerStep nfc{NormalizerStep::Kind::nfc};
  std::string scratch;
  return std::string(apply_normalizers(text, std::span(&nfc, 1), scratch));
}

}  // namespace cairn::data
