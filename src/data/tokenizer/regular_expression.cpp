#include "data/tokenizer/regular_expression.h"

#include <algorithm>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"

namespace cairn::data {
namespace {

// Bounds on one search: a pattern such as (a+)+b would otherwise run for years, or eat all memory.
constexpr uint32_t kTriesMax = 10'000'000, kTriesAtLeast = 20'000, kTriesPerByte = 16;
constexpr uint32_t kHeapKilobytes = 64 << 10;
constexpr size_t kPatternBytes = 64 << 10;

// \s and \S spelled as the property that they stand for: PCRE2's own \s has U+180E, which is no space any more.
std::string with_unicode_spaces(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' || escaped == 'S')
      out += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else
      out += {'\\', escaped};
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

}  // namespace

struct RegularExpression::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Compiled() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

RegularExpression::RegularExpression(const std::string& pattern, const std::string& name) : name_(name) {
  if (pattern.size() > kPatternBytes)
    base::fail_input("{}: a pattern of {} bytes, and at most {} are read", name, pattern.size(), kPatternBytes);
  const std::string text = with_unicode_spaces(pattern);
  auto compiled = std::make_unique<Compiled>();
  int error = 0;
  PCRE2_SIZE place = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr);
  if (!compiled->code) base::fail_input("{}: the pattern \"{}\" does not compile: {}", name, pattern, message_of(error));
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // where JIT is not available, matching is slower and gives the same result
  compiled->context = pcre2_match_context_create(nullptr);
  CAIRN_CHECK(compiled->context, "no memory for a match context");
  pcre2_set_heap_limit(compiled->context, kHeapKilobytes);
  compiled_ = std::move(compiled);
}

RegularExpression::~RegularExpression() = default;
RegularExpression::RegularExpression(RegularExpression&&) noexcept = default;

std::optional<RegularExpression::Match> RegularExpression::find(std::string_view text, size_t from) const {
  const MatchData data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const MatchContext context(pcre2_match_context_copy(compiled_->context), &pcre2_match_context_free);
  CAIRN_CHECK(data && context, "no memory for a match");
  // The bound grows with the text: honest patterns need tries in proportion to it. A hostile pattern may be cheap at each position and
  // expensive in total.
  const size_t tries = std::min<size_t>(kTriesMax, kTriesAtLeast + kTriesPerByte * (text.size() - std::min(from, text.size())));
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(tries));
  const auto match = [&](uint32_t options) {
    return pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options, data.get(), context.get());
  };
  int found = match(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) base::fail_input("{}: the pattern could not be tried on a text of {} bytes: {}", name_, text.size(), message_of(found));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  return Match{ends[0], std::max(ends[0], ends[1])};
}

}  // namespace cairn::data
