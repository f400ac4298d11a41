#include "comm/local/fault.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"

namespace cairn::comm {
namespace {

using Kind = Fault::Kind;

std::string_view word(Kind kind) {
  constexpr std::array<std::string_view, 8> words{"kill", "freeze", "slow", "drop", "delay", "reorder", "partition", "corrupt"};
  return words.at(static_cast<size_t>(kind));
}

std::string when(const Fault& fault) {
  if (fault.before_collective >= 0) return fmt::format("before collective {} of rank {}", fault.before_collective, fault.rank);
  if (fault.at.count() >= 0) return fmt::format("at {:.6f} s", base::seconds(fault.at));
  return fmt::format("with message {} of {}>{}", fault.message, fault.from, fault.to);
}

}  // namespace

bool strikes_a_message(Kind kind) { return kind == Kind::drop || kind == Kind::delay || kind == Kind::reorder || kind == Kind::corrupt; }

std::string describe(const Fault& fault) {
  std::string text(word(fault.kind));
  if (fault.kind == Kind::partition) {
    text += fmt::format(" {} {} {}", fmt::join(fault.these, ","), fault.one_way ? "not heard by" : "from", fmt::join(fault.those, ","));
  } else if (strikes_a_message(fault.kind)) {
    text += fmt::format(" {}>{}", fault.from, fault.to);
  } else {
    text += fmt::format(" rank {}", fault.rank);
  }
  if (fault.lasts.count() > 0) text += fmt::format(" for {:.6f} s", base::seconds(fault.lasts));
  if (fault.by.count() > 0) text += fmt::format(" by {:.6f} s", base::seconds(fault.by));
  if (fault.kind == Kind::slow && fault.factor != 1) text += fmt::format(", links {} times", fault.factor);
  if (fault.kind == Kind::corrupt) text += fmt::format(" bit {}", fault.bit);
  return text + ' ' + when(fault);
}

void check(const Fault& fault, int ranks) {
  const auto known = [ranks](int rank) { return rank >= 0 && rank < ranks; };
  const bool by_message = fault.message >= 0;
  const int whens = (fault.before_collective >= 0 ? 1 : 0) + (fault.at.count() >= 0 ? 1 : 0) + (by_message ? 1 : 0);
  CAIRN_CHECK(whens == 1, "{}: a fault has one of before_collective, at and message", describe(fault));
  CAIRN_CHECK(fault.before_collective < 0 || known(fault.rank), "{}: no such rank among {}", describe(fault), ranks);
  if (by_message || strikes_a_message(fault.kind)) {
    CAIRN_CHECK(known(fault.from) && known(fault.to) && fault.from != fault.to, "{}: no such pair among {} ranks", describe(fault), ranks);
  }
  if (fault.kind == Kind::kill || fault.kind == Kind::freeze || fault.kind == Kind::slow) {
    CAIRN_CHECK(known(fault.rank), "{}: no such rank among {}", describe(fault), ranks);
  }
  if (fault.kind == Kind::partition) {
    CAIRN_CHECK(std::all_of(fault.these.begin(), fault.these.end(), known) && std::all_of(fault.those.begin(), fault.those.end(), known),
                "{}: no such ranks among {}", describe(fault), ranks);
  }
  CAIRN_CHECK(fault.lasts.count() >= 0 && fault.by.count() >= 0 && fault.bit >= 0, "{}: a negative length", describe(fault));
  CAIRN_CHECK(fault.factor >= 1, "{}: a factor of {}, must be at least 1", describe(fault), fault.factor);
}

}  // namespace cairn::comm
