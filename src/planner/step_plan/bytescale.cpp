#include "planner/step_plan/bytescale.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn::planner {
namespace {

using parallel::PlannedSequence;

constexpr double kPackWork[] = {1.1, 0.75, 0.5, 0.35, 0.25};  // how much work closes a pack, of a whole or a mean one
constexpr double kLeastGain = 0.01;                           // a step must end so much sooner to be worth more messages

struct Unit {
  std::vector<PlannedSequence> sequences;
  int degree = 1;
  double seconds = 0;
};

struct Placed {
  size_t unit = 0;
  double start = 0;
  std::vector<int> ranks;
};

struct Schedule {
  std::vector<Placed> placed;  // in the order of placing
  double end = 0;
};

// When each rank is busy.
class Timetable {
 public:
  Timetable(const SequencePool& pool, double slack) : pool_(pool), slack_(slack), busy_(static_cast<size_t>(pool.ranks)) {}

  // After all that these ranks do already: on the neighbours that are free soonest, or, within the slack, on those on fewest nodes.
  Placed wide(size_t unit, int degree, double seconds) {
    struct Choice {
      double start = 0;
      int nodes = 1;
      double idle = 0;
      std::vector<int> ranks;
    };
    std::vector<Choice> choices;
    const auto add = [&](std::vector<int> ranks) {
      Choice one{.start = 0, .nodes = pool_.nodes_of(ranks), .idle = 0, .ranks = std::move(ranks)};
      for (const int rank : one.ranks) one.start = std::max(one.start, end_of(rank));
      for (const int rank : one.ranks) one.idle += one.start - end_of(rank);
      choices.push_back(std::move(one));
    };
    for (int first = 0; first + degree <= pool_.ranks; ++first) {
      std::vector<int> ranks(static_cast<size_t>(degree));
      std::iota(ranks.begin(), ranks.end(), first);
      add(std::move(ranks));
    }
    std::vector<int> soonest(static_cast<size_t>(pool_.ranks));
    std::iota(soonest.begin(), soonest.end(), 0);
    std::stable_sort(soonest.begin(), soonest.end(), [&](int a, int b) { return end_of(a) < end_of(b); });
    soonest.resize(static_cast<size_t>(degree));
    std::sort(soonest.begin(), soonest.end());
    add(std::move(soonest));
    double earliest = choices.front().start;
    for (const Choice& one : choices) earliest = std::min(earliest, one.start);
    const double latest = earliest + slack_ * (earliest + seconds);
    const Choice* best = nullptr;
    for (const Choice& one : choices) {
      if (one.start > latest) continue;
      if (!best || std::tie(one.nodes, one.start, one.idle) < std::tie(best->nodes, best->start, best->idle)) best = &one;
    }
    for (const int rank : best->ranks) busy_[static_cast<size_t>(rank)].emplace_back(best->start, best->start + seconds);
    return {unit, best->start, best->ranks};
  }

  // Where it ends first: in a gap that holds it, or after the last unit of a rank.
  Placed narrow(size_t unit, double seconds) {
    int best = 0;
    double start = end_of(0);
    for (int rank = 0; rank < pool_.ranks; ++rank) {
      double from = 0;
      for (const auto& [begin, end] : busy_[static_cast<size_t>(rank)]) {
        if (begin - from >= seconds) break;
        from = end;
      }
      if (from < start) best = rank, start = from;
    }
    auto& busy = busy_[static_cast<size_t>(best)];
    const std::pair<double, double> slot{start, start + seconds};
    busy.insert(std::upper_bound(busy.begin(), busy.end(), slot), slot);
    return {unit, start, {best}};
  }

 private:
  double end_of(int rank) const {
    const auto& busy = busy_[static_cast<size_t>(rank)];
    return busy.empty() ? 0 : busy.back().second;
  }

  const SequencePool& pool_;
  double slack_;
  std::vector<std::vector<std::pair<double, double>>> busy_;  // by rank, in order of time
};

Schedule schedule(const std::vector<Unit>& units, const SequencePool& pool, double slack) {
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::make_tuple(-units[a].degree, -units[a].seconds) < std::make_tuple(-units[b].degree, -units[b].seconds);
  });
  Timetable table(pool, slack);
  Schedule all;
  for (const size_t u : order) {
    all.placed.push_back(units[u].degree > 1 ? table.wide(u, units[u].degree, units[u].seconds) : table.narrow(u, units[u].seconds));
    all.end = std::max(all.end, all.placed.back().start + units[u].seconds);
  }
  return all;
}

// Short sequences, the longest first, each into the fullest pack that has room for its tokens and its work.
std::vector<Unit> packs_of(std::span<const PlannedSequence> sorted, const SequencePool& pool, double work_share) {
  int64_t tokens = 0;
  double work = 0;
  for (const PlannedSequence& one : sorted) tokens += one.length, work += pool.costs.compute_s(one.length);
  const auto fewest = static_cast<double>((tokens + pool.tokens_per_rank - 1) / pool.tokens_per_rank);
  const double most = work_share * std::max(pool.costs.compute_s(pool.tokens_per_rank) / 2, fewest > 0 ? work / fewest : 0);
  struct Pack {
    Unit unit;
    double work = 0;
  };
  std::vector<Pack> packs;
  std::multimap<int64_t, size_t> by_room;
  for (const PlannedSequence& one : sorted) {
    const double own = pool.costs.compute_s(one.length);
    auto at = by_room.lower_bound(one.length);
    while (at != by_room.end() && packs[at->second].work + own > most) ++at;
    int64_t room = pool.tokens_per_rank;
    size_t pack = packs.size();
    if (at == by_room.end()) {
      packs.emplace_back();
    } else {
      std::tie(room, pack) = *at;
      by_room.erase(at);
    }
    packs[pack].unit.sequences.push_back(one);
    packs[pack].work += own;
    if (room > one.length && packs[pack].work < most) by_room.emplace(room - one.length, pack);
  }
  std::vector<Unit> units;
  for (Pack& pack : packs) units.push_back(std::move(pack.unit));
  return units;
}

// Gives ranks to the unit that ends last, one at a time, while the step ends sooner.
Schedule widen(std::vector<Unit>& units, const SequencePool& pool, const BytescaleRules& rules) {
  Schedule best = schedule(units, pool, rules.slack);
  for (int64_t i = 0; i < rules.widenings; ++i) {
    size_t last = units.size();
    for (const Placed& one : best.placed)
      if (one.start + units[one.unit].seconds >= best.end * (1 - 1e-12) && units[one.unit].sequences.size() == 1) last = one.unit;
    if (last == units.size() || units[last].degree == pool.ranks) break;
    const Unit before = units[last];
    // One more rank may not be enough to change which ranks are left over: look a few further.
    bool better = false;
    for (int degree = before.degree + 1; degree <= std::min(pool.ranks, before.degree + 3) && !better; ++degree) {
      units[last].degree = degree;
      units[last].seconds = unit_s(pool.costs, units[last].sequences, degree);
      Schedule next = schedule(units, pool, rules.slack);
      if (next.end >= best.end * (1 - kLeastGain)) continue;
      best = std::move(next);
      better = true;
    }
    if (better) continue;
    units[last] = before;
    break;
  }
  return best;
}

}  // namespace

parallel::StepPlan plan_bytescale(int64_t step, std::span<const PlannedSequence> sequences, const SequencePool& pool,
                                  const BytescaleRules& rules) {
  check(pool, sequences);
  const std::vector<PlannedSequence> sorted = longest_first(sequences);
  const auto first_short = static_cast<size_t>(
      std::find_if(sorted.begin(), sorted.end(), [&](const PlannedSequence& one) { return one.length <= pool.tokens_per_rank; }) -
      sorted.begin());
  std::vector<Unit> best_units;
  Schedule best;
  bool found = false;
  for (const double work_share : kPackWork) {
    std::vector<Unit> units = packs_of(std::span(sorted).subspan(first_short), pool, work_share);
    for (size_t k = 0; k < first_short; ++k)
      units.push_back({.sequences = {sorted[k]}, .degree = static_cast<int>(pool.ranks_for(sorted[k].length)), .seconds = 0});
    for (Unit& unit : units) unit.seconds = unit_s(pool.costs, unit.sequences, unit.degree);
    Schedule one = widen(units, pool, rules);
    if (found && one.end >= best.end * (1 - kLeastGain)) continue;
    best_units = std::move(units), best = std::move(one), found = true;
  }
  std::stable_sort(best.placed.begin(), best.placed.end(), [](const Placed& a, const Placed& b) { return a.start < b.start; });
  parallel::StepPlan plan{.step = step, .ranks = pool.ranks, .micro_batches = 0, .units = {}};
  for (const Placed& one : best.placed)
    plan.units.push_back(
        {.ranks = one.ranks, .sequences = best_units[one.unit].sequences, .micro_batch = 0, .predicted_s = best_units[one.unit].seconds});
  return plan;
}

}  // namespace cairn::planner
