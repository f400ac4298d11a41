#include "elastic/diagnosis/monitor.h"

#include <utility>

#include "elastic/diagnosis/hang.h"
#include "elastic/diagnosis/slow_links.h"
#include "elastic/diagnosis/straggler.h"

namespace cairn::elastic {
namespace {

constexpr int kLooksUntilForgotten = 60;

}  // namespace

std::vector<Finding> diagnose(std::span<const RankView> ranks, const DiagnosisOptions& options) {
  std::vector<Finding> found = find_hang(ranks, options);
  if (!found.empty()) return found;  // nothing else counts, and the last windows are not usual ones
  found = find_slow_links(ranks, options);
  for (Finding& one : find_stragglers(ranks, options)) found.push_back(std::move(one));
  return found;
}

std::vector<Finding> Monitor::look(std::span<const RankView> ranks) {
  for (auto at = absent_.begin(); at != absent_.end();) at = ++at->second > kLooksUntilForgotten ? absent_.erase(at) : std::next(at);
  std::vector<Finding> fresh;
  for (Finding& one : diagnose(ranks, options_)) {
    const auto [at, first] = absent_.insert_or_assign({one.cause, one.rank, one.peer}, 0);
    if (first) fresh.push_back(std::move(one));
  }
  return fresh;
}

}  // namespace cairn::elastic
