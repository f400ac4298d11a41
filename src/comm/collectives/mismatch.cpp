// The vote on who called something else; mismatch.h has the rules.
#include "comm/collectives/mismatch.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/clock.h"

namespace cairn::comm {

CollectiveMismatch::CollectiveMismatch(const std::vector<int>& ranks, int me, const Envelope& ours) : ranks_(ranks), me_(me), ours_(ours) {
  hear(me, ours);
}

void CollectiveMismatch::hear(int rank, const Envelope& called) { called_.emplace(rank, called); }

std::set<int> CollectiveMismatch::silent(const std::function<bool(int)>& has_left) const {
  std::set<int> ranks;
  for (const int rank : ranks_) {
    if (!called_.contains(rank) && !has_left(rank)) ranks.insert(rank);
  }
  return ranks;
}

std::vector<std::set<int>> CollectiveMismatch::sides() const {
  std::vector<std::set<int>> sides(1);
  for (const auto& [rank, called] : called_) {
    if (called.signature == ours_.signature) {
      sides.front().insert(rank);
      continue;
    }
    const auto same = std::find_if(sides.begin() + 1, sides.end(),
                                   [&](const std::set<int>& side) { return called_.at(*side.begin()).signature == called.signature; });
    if (same == sides.end()) {
      sides.push_back({rank});
    } else {
      same->insert(rank);
    }
  }
  return sides;
}

Error CollectiveMismatch::between(int other) const {
  Error error = mismatch_error(other, called_.at(other), me_, ours_.signature, ours_.what);
  error.with(fmt::format("operation {} of ranks {}", sequence(), fmt::join(ranks_, " ")));
  return error;
}

std::optional<Error> CollectiveMismatch::decide(const std::function<bool(int)>& has_left) const {
  const std::vector<std::set<int>> all = sides();
  if (all.size() == 1) return std::nullopt;
  const auto most = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (2 * most->size() <= ranks_.size() && !silent(has_left).empty()) return std::nullopt;
  return most == all.begin() ? between(*all[1].begin()) : between(*most->begin()).about_peer(me_);
}

std::optional<Error> CollectiveMismatch::undecided(const std::function<bool(int)>& has_left, std::chrono::nanoseconds waited) const {
  const std::set<int> missing = silent(has_left);
  const std::vector<std::set<int>> all = sides();
  if (missing.empty() || all.size() == 1) return std::nullopt;
  const Error known = between(*all[1].begin());
  Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: silent for {:.1f} s, and who of the others is wrong cannot be told: {}",
                                                  fmt::join(missing, ", "), base::seconds(waited), known.sentence()));
  error.about_peer(*missing.begin()).with(known.context().front());
  return error;
}

Coroutine report_signature(Transport& transport, const std::vector<int>& ranks, Envelope called) {
  called.step = kSignatureReport;
  Completion moment = transport.timer(transport.clock().now());
  co_await moment;
  std::vector<Completion> told;
  for (const int rank : ranks) {
    if (rank != transport.rank()) told.push_back(transport.send(rank, called, Purpose::control, nullptr, 0));
  }
  for (Completion& one : told) {
    try {
      co_await one;
    } catch (const Error&) {  // the rank has left
    }
  }
}

}  // namespace cairn::comm
