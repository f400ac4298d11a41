#include "base/did_you_mean.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace cairn::base {
namespace {

std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

int64_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: two before (a swap reaches back two), one before, this one.
  std::vector<int64_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 200;  // nobody mistypes a word this long; keeps hostile input cheap
  if (word.empty() || word.size() > kLongest) return std::nullopt;
  const std::string wanted = folded(word);
  std::optional<std::string> best;
  int64_t best_distance = 1 + static_cast<int64_t>(wanted.size()) / 3;  // "adamv" may be off by 2, "lr" by 1
  for (const std::string& candidate : known) {
    const int64_t distance = edit_distance(wanted, folded(candidate));
    if (distance > best_distance || (best && distance == best_distance)) continue;
    if (distance >= static_cast<int64_t>(std::max(wanted.size(), candidate.size()))) continue;  // nothing in common
    best = candidate;
    best_distance = distance;
  }
  return best;
}

void fail_unknown(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  const std::optional<std::string> meant = nearest(name, known);
  const std::string advice = meant           ? fmt::format("did you mean \"{}\"?", *meant)
                             : known.empty() ? std::string("none is known")
                                             : fmt::format("known are {}", fmt::join(known, ", "));
  throw Error(Error::Kind::bad_input, fmt::format("unknown {} \"{}\": {}", what, name, advice));
}

}  // namespace cairn::base
