#include "planner/step_plan/sequence_groups.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace cairn::planner {
namespace {

using parallel::PlannedSequence;
using Layout = std::vector<int>;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kKept = 8;   // layouts that are improved
constexpr size_t kBeam = 64;  // layouts that a beam search goes on from
constexpr int kBeamRounds = 64;

// Groups that are being filled: of sequence k, group_of[k]; of group p, its seconds without the pass itself, and its tokens.
struct Filling {
  Layout layout;
  std::vector<int> group_of;
  std::vector<double> seconds;
  std::vector<int64_t> tokens;

  double slowest() const { return *std::max_element(seconds.begin(), seconds.end()); }
};

class Search {
 public:
  Search(std::vector<PlannedSequence> sequences, const SequencePool& pool) : sequences_(std::move(sequences)), pool_(pool) {}

  // The longest first, each to the group that would be done soonest; none: one does not fit.
  std::optional<Filling> longest_first_fill(const Layout& layout) {
    Filling filling = empty(layout);
    std::vector<const double*> costs;  // of each group
    for (const int degree : layout) costs.push_back(taus(degree).data());
    for (size_t k = 0; k < sequences_.size(); ++k) {
      int best = -1;
      double soonest = kNever;
      for (size_t p = 0; p < layout.size(); ++p) {
        if (!fits(filling, k, p)) continue;
        const double done = filling.seconds[p] + costs[p][k];
        if (done < soonest) best = static_cast<int>(p), soonest = done;
      }
      if (best < 0) return std::nullopt;
      put(filling, k, static_cast<size_t>(best));
    }
    return filling;
  }

  // Moves one sequence out of the slowest group, or swaps a pair, while the slower of the two groups gets faster than it was.
  void improve(Filling& filling) {
    for (int64_t changes = 0; changes < kChanges; ++changes) {
      const auto slow = static_cast<size_t>(std::max_element(filling.seconds.begin(), filling.seconds.end()) - filling.seconds.begin());
      double best = filling.seconds[slow] * (1 - 1e-12);
      size_t moved = 0, to = slow;
      constexpr size_t kNone = std::numeric_limits<size_t>::max();
      size_t other = kNone;  // that goes the other way
      for (size_t k = 0; k < sequences_.size(); ++k) {
        if (filling.group_of[k] != static_cast<int>(slow)) continue;
        const double without = filling.seconds[slow] - tau(k, filling.layout[slow]);
        for (size_t p = 0; p < filling.layout.size(); ++p) {
          if (p == slow || !fits(filling, k, p)) continue;
          const double after = std::max(without, filling.seconds[p] + tau(k, filling.layout[p]));
          if (after < best) best = after, moved = k, to = p, other = kNone;
        }
        for (size_t j = 0; j < sequences_.size(); ++j) {
          const auto p = static_cast<size_t>(filling.group_of[j]);
          if (p == slow || sequences_[j].length == sequences_[k].length || !can_swap(filling, k, j)) continue;
          const double after = std::max(without + tau(j, filling.layout[slow]),
                                        filling.seconds[p] - tau(j, filling.layout[p]) + tau(k, filling.layout[p]));
          if (after < best) best = after, moved = k, to = p, other = j;
        }
      }
      if (to == slow) return;
      take(filling, moved);
      if (other != kNone) take(filling, other), put(filling, other, slow);
      put(filling, moved, to);
    }
  }

  // Branch and bound over one layout: finds what is faster than `best`, and counts its steps down from `nodes`.
  void exact(const Layout& layout, std::optional<Filling>& best, double& best_s, int64_t& nodes) {
    Filling filling = empty(layout);
    const std::function<void(size_t)> place = [&](size_t k) {
      if (k == sequences_.size()) {
        best = filling, best_s = filling.slowest();
        return;
      }
      std::set<std::pair<int, std::pair<double, int64_t>>> tried;  // groups that are alike need trying once
      for (size_t p = 0; p < layout.size() && nodes > 0; ++p) {
        if (!fits(filling, k, p)) continue;
        if (!tried.insert({layout[p], {filling.seconds[p], filling.tokens[p]}}).second) continue;
        if (filling.seconds[p] + tau(k, layout[p]) >= best_s * (1 - 1e-12)) continue;
        --nodes;
        const double before = filling.seconds[p];
        put(filling, k, p);
        place(k + 1);
        take(filling, k);
        filling.seconds[p] = before;  // not rounded
      }
    };
    place(0);
  }

  // Of any grouping with this layout.
  double bound(const Layout& layout) {
    double longest = 0, work = 0;
    int ranks = 0;
    for (const int degree : layout) ranks += degree;
    for (size_t k = 0; k < sequences_.size(); ++k) {
      double alone = kNever, least = kNever;
      for (size_t p = 0; p < layout.size(); ++p) {
        if (p > 0 && layout[p] == layout[p - 1]) continue;
        if (sequences_[k].length > pool_.tokens_per_rank * layout[p]) continue;
        alone = std::min(alone, tau(k, layout[p]));
        least = std::min(least, tau(k, layout[p]) * layout[p]);
      }
      longest = std::max(longest, alone);
      work += least;
    }
    return std::max(longest, work / ranks);
  }

  const std::vector<PlannedSequence>& sequences() const { return sequences_; }

 private:
  static constexpr int64_t kChanges = 1000;

  Filling empty(const Layout& layout) const {
    return {layout, std::vector<int>(sequences_.size(), -1), std::vector<double>(layout.size(), 0.0), std::vector<int64_t>(layout.size(), 0)};
  }
  const std::vector<double>& taus(int degree) {
    std::vector<double>& of = tau_[degree];
    if (of.empty())
      for (const PlannedSequence& one : sequences_) of.push_back(pool_.costs.sequence_s(one.length, degree));
    return of;
  }
  double tau(size_t k, int degree) { return taus(degree)[k]; }
  bool fits(const Filling& filling, size_t k, size_t p) const {
    return filling.tokens[p] + sequences_[k].length <= pool_.tokens_per_rank * filling.layout[p];
  }
  bool can_swap(const Filling& filling, size_t k, size_t j) const {
    const auto a = static_cast<size_t>(filling.group_of[k]), b = static_cast<size_t>(filling.group_of[j]);
    const int64_t more = sequences_[k].length - sequences_[j].length;
    return filling.tokens[b] + more <= pool_.tokens_per_rank * filling.layout[b] &&
           filling.tokens[a] - more <= pool_.tokens_per_rank * filling.layout[a];
  }
  void put(Filling& filling, size_t k, size_t p) {
    filling.group_of[k] = static_cast<int>(p);
    filling.seconds[p] += tau(k, filling.layout[p]);
    filling.tokens[p] += sequences_[k].length;
  }
  void take(Filling& filling, size_t k) {
    const auto p = static_cast<size_t>(filling.group_of[k]);
    filling.seconds[p] -= tau(k, filling.layout[p]);
    filling.tokens[p] -= sequences_[k].length;
    filling.group_of[k] = -1;
  }

  std::vector<PlannedSequence> sequences_;  // the longest first
  const SequencePool& pool_;
  std::map<int, std::vector<double>> tau_;  // by degree
};

// A layout with what filling it takes; ordered by seconds, then by the layout, so that the result is one.
struct Tried {
  double seconds = 0;
  Layout layout;
  std::optional<Filling> filling;
  bool operator<(const Tried& other) const { return std::tie(seconds, layout) < std::tie(other.seconds, other.layout); }
};

Tried tried(Search& search, const Layout& layout) {
  std::optional<Filling> filling = search.longest_first_fill(layout);
  const double seconds = filling ? filling->slowest() : kNever;
  return {seconds, layout, std::move(filling)};
}

// Layouts one change away: two groups merged, or one split in two.
std::vector<Layout> neighbours(const Layout& layout, std::span<const int> degrees) {
  const auto allowed = [&](int d) { return std::find(degrees.begin(), degrees.end(), d) != degrees.end(); };
  std::set<Layout> found;
  const auto add = [&](Layout next) {
    std::sort(next.begin(), next.end(), std::greater<>());
    found.insert(std::move(next));
  };
  for (size_t i = 0; i < layout.size(); ++i) {
    if (i > 0 && layout[i] == layout[i - 1]) continue;
    for (const int part : degrees) {
      if (2 * part < layout[i] || part >= layout[i] || !allowed(layout[i] - part)) continue;
      Layout next = layout;
      next[i] = part, next.push_back(layout[i] - part);
      add(std::move(next));
    }
    for (size_t j = i + 1; j < layout.size(); ++j) {
      if ((j > i + 1 && layout[j] == layout[j - 1]) || !allowed(layout[i] + layout[j])) continue;
      Layout next = layout;
      next[i] += next[j];
      next.erase(next.begin() + static_cast<std::ptrdiff_t>(j));
      add(std::move(next));
    }
  }
  return {found.begin(), found.end()};
}

// Many layouts: starts from groups of one degree (with what is left over in the largest parts that fit) and follows the best ones.
std::vector<Tried> beam_search(Search& search, int ranks, std::span<const int> degrees) {
  std::set<Layout> seen;
  std::vector<Tried> beam;
  const auto look_at = [&](const Layout& layout) {
    if (seen.insert(layout).second) beam.push_back(tried(search, layout));
  };
  for (const int degree : degrees) {
    Layout layout(static_cast<size_t>(ranks / degree), degree);
    int left = ranks % degree;
    for (auto part = degrees.rbegin(); part != degrees.rend(); ++part)
      for (; *part <= left; left -= *part) layout.push_back(*part);
    if (left == 0) look_at(layout);
  }
  const auto narrow = [&] {
    std::sort(beam.begin(), beam.end());
    if (beam.size() > kBeam) beam.resize(kBeam);
  };
  narrow();
  for (int round = 0; round < kBeamRounds && !beam.empty(); ++round) {
    const double before = beam.front().seconds;
    for (const Tried& one : std::vector<Tried>(beam))
      for (const Layout& next : neighbours(one.layout, degrees)) look_at(next);
    narrow();
    if (!(beam.front().seconds < before)) break;
  }
  return beam;
}

void list_layouts(int left, std::span<const int> degrees, size_t most_at, Layout& layout, int64_t most, std::vector<Layout>& all) {
  if (left == 0) all.push_back(layout);
  for (size_t i = most_at + 1; i-- > 0 && left > 0;) {
    if (static_cast<int64_t>(all.size()) > most) return;
    if (degrees[i] > left) continue;
    layout.push_back(degrees[i]);
    list_layouts(left - degrees[i], degrees, i, layout, most, all);
    layout.pop_back();
  }
}

}  // namespace

std::vector<int> default_degrees(const SequencePool& pool) {
  std::set<int> degrees{pool.ranks};
  for (int d = 1; d <= pool.ranks; d *= 2) degrees.insert(d);
  const bool power_of_two = (pool.ranks & (pool.ranks - 1)) == 0;
  if (!power_of_two && pool.ranks_per_node > 0)
    for (int d = pool.ranks_per_node; d <= pool.ranks; d += pool.ranks_per_node) degrees.insert(d);
  return {degrees.begin(), degrees.end()};
}

std::vector<std::vector<int>> layouts(int ranks, std::span<const int> degrees, int64_t most) {
  CAIRN_CHECK(std::is_sorted(degrees.begin(), degrees.end()) && (degrees.empty() || degrees.front() >= 1), "degrees not ascending");
  std::vector<Layout> all;
  Layout layout;
  if (!degrees.empty()) list_layouts(ranks, degrees, degrees.size() - 1, layout, most, all);
  if (static_cast<int64_t>(all.size()) > most) all.clear();
  return all;
}

double group_bound_s(std::span<const PlannedSequence> sequences, const SequencePool& pool, std::span<const int> degrees) {
  double longest = 0, work = 0;
  for (const PlannedSequence& one : sequences) {
    double alone = kNever, least = kNever;
    for (const int d : degrees) {
      if (d > pool.ranks || one.length > pool.tokens_per_rank * d) continue;
      const double tau = pool.costs.sequence_s(one.length, d);
      alone = std::min(alone, tau);
      least = std::min(least, tau * d);
    }
    longest = std::max(longest, alone);
    work += least;
  }
  return pool.costs.pass_s + std::max(longest, work / pool.ranks);
}

std::optional<SequenceGroups> group_sequences(std::span<const PlannedSequence> sequences, const SequencePool& pool, const GroupRules& rules) {
  check(pool, sequences);
  const std::vector<int> degrees = rules.degrees.empty() ? default_degrees(pool) : rules.degrees;
  Search search(longest_first(sequences), pool);
  if (search.sequences().empty()) return SequenceGroups{.degrees = {pool.ranks}, .sequences = {{}}, .seconds = 0};
  const int64_t largest = pool.ranks_for(search.sequences().front().length);
  std::vector<Layout> all = layouts(pool.ranks, degrees, rules.layouts_max);
  std::erase_if(all, [&](const Layout& layout) { return layout.front() < largest; });
  std::vector<Tried> best;
  if (all.empty()) {
    best = beam_search(search, pool.ranks, degrees);
    for (const Tried& one : best) all.push_back(one.layout);
  } else {
    for (const Layout& layout : all) best.push_back(tried(search, layout));
  }
  std::sort(best.begin(), best.end());
  const bool few = static_cast<int64_t>(search.sequences().size()) <= rules.exact_sequences;
  if (!few && best.size() > kKept) best.resize(kKept);
  for (Tried& one : best) {
    if (!one.filling) continue;
    search.improve(*one.filling);
    one.seconds = one.filling->slowest();
  }
  std::sort(best.begin(), best.end());
  std::optional<Filling> found = best.empty() ? std::nullopt : best.front().filling;
  double seconds = found ? best.front().seconds : kNever;
  int64_t nodes = few || !found ? rules.exact_nodes : 0;
  if (nodes > 0) {
    std::vector<std::pair<double, Layout>> by_bound;
    for (const Layout& layout : all) by_bound.emplace_back(search.bound(layout), layout);
    std::sort(by_bound.begin(), by_bound.end());
    for (const auto& [bound, layout] : by_bound)
      if (bound < seconds && nodes > 0) search.exact(layout, found, seconds, nodes);
  }
  if (!found) return std::nullopt;
  SequenceGroups groups{.degrees = found->layout, .sequences = {}, .seconds = pool.costs.pass_s + seconds};
  groups.sequences.resize(found->layout.size());
  for (size_t k = 0; k < search.sequences().size(); ++k)
    groups.sequences[static_cast<size_t>(found->group_of[k])].push_back(search.sequences()[k]);
  return groups;
}

}  // namespace cairn::planner
