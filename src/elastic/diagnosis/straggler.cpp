// Stragglers, after C4 (arXiv:2406.04594): the rank that never waits.
//
//   own_r(s)    = length of step s on rank r - its waits for other ranks in it        (durations of one machine: no clocks are compared)
//   excess_r(s) = own_r(s) - median of own over the other ranks with the same role
//
// Over the last `window` steps that all these ranks have: rank r is a straggler if the median excess is more than `straggler` of the median
// step, r is the slowest of its role in at least 70 % of the steps (85 % where there are only two), and the others wait longer than r by at
// least half of that excess (all ranks of a pipeline wait). If its data loader explains more than half of the excess, the data is late. A
// slow-down of all ranks is none. The first steps do not count.
#include "elastic/diagnosis/straggler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

namespace cairn::elastic {
namespace {

using comm::FlightLog;

constexpr int64_t kWarmUpSteps = 20;
constexpr double kLeads = 0.7, kLeadsOfTwo = 0.85;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double ms(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e6; }

struct Steps {
  const RankView* view;
  std::map<int64_t, const FlightLog::Step*> by_step;
};

// The last steps that all ranks of a role have, warm-up left out.
std::vector<int64_t> common_steps(const std::vector<Steps>& ranks, int64_t window) {
  std::vector<int64_t> common;
  const auto first = [](const Steps& one) { return one.view->log->steps.front().step; };
  int64_t after = kWarmUpSteps;  // from the start of this process, which may have resumed a run
  for (const Steps& one : ranks) after = std::max(after, one.by_step.empty() ? 0 : first(one) + (first(one) > 1 ? kWarmUpSteps : 0) - 1);
  for (auto at = ranks.front().by_step.rbegin(); at != ranks.front().by_step.rend(); ++at) {
    const bool all = std::all_of(ranks.begin(), ranks.end(), [&](const Steps& one) { return one.by_step.contains(at->first); });
    if (all && at->first > after) common.push_back(at->first);
    if (static_cast<int64_t>(common.size()) == window) break;
  }
  return common;
}

struct RankSums {
  std::vector<double> excess, loading_excess, waits;
  int64_t leads = 0;
};

void judge(const std::vector<Steps>& ranks, const DiagnosisOptions& options, std::vector<Finding>& found) {
  const std::vector<int64_t> steps = common_steps(ranks, options.window);
  if (static_cast<int64_t>(steps.size()) < options.window || ranks.size() < 2) return;
  std::vector<RankSums> sums(ranks.size());
  std::vector<double> lengths;
  for (const int64_t step : steps) {
    std::vector<double> own, loading;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const FlightLog::Step& one = *ranks[i].by_step.at(step);
      lengths.push_back(ms(one.ended - one.begun));
      own.push_back(ms(one.ended - one.begun - one.waited));
      loading.push_back(ms(one.loading));
      sums[i].waits.push_back(ms(one.waited));
    }
    sums[static_cast<size_t>(std::max_element(own.begin(), own.end()) - own.begin())].leads += 1;
    for (size_t i = 0; i < ranks.size(); ++i) {
      std::vector<double> others = own, other_loading = loading;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      other_loading.erase(other_loading.begin() + static_cast<std::ptrdiff_t>(i));
      sums[i].excess.push_back(own[i] - median(others));
      sums[i].loading_excess.push_back(loading[i] - median(other_loading));
    }
  }
  const double step_ms = median(lengths);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const double excess = median(sums[i].excess), leads = static_cast<double>(sums[i].leads) / static_cast<double>(steps.size());
    std::vector<double> other_waits;
    for (size_t j = 0; j < ranks.size(); ++j)
      if (j != i) other_waits.push_back(median(sums[j].waits));
    const double waits = median(sums[i].waits), others_wait = median(other_waits);
    if (excess <= options.straggler * step_ms || leads < (ranks.size() == 2 ? kLeadsOfTwo : kLeads) || others_wait - waits < excess / 2)
      continue;
    const double late = median(sums[i].loading_excess);
    const bool data = late > excess / 2;
    found.push_back(
        {.cause = data ? Cause::late_data : Cause::straggler,
         .rank = ranks[i].view->rank,
         .host = ranks[i].view->host,
         .evidence = fmt::format("{} {:.1f} ms a step longer than ranks with the same work, {:.0f} % of the step, first in {:.0f} % of "
                                 "{} steps; it waits {:.1f} ms, they wait {:.1f} ms",
                                 data ? "waits for its data loader" : "computes", data ? late : excess, 100 * excess / step_ms, 100 * leads,
                                 steps.size(), waits, others_wait)});
  }
}

}  // namespace

std::vector<Finding> find_stragglers(std::span<const RankView> ranks, const DiagnosisOptions& options) {
  std::map<uint64_t, std::vector<Steps>> roles;
  for (const RankView& one : ranks) {
    if (!one.log || one.log->steps.empty()) continue;
    Steps steps{&one, {}};
    for (const FlightLog::Step& step : one.log->steps) steps.by_step[step.step] = &step;
    roles[one.log->role].push_back(std::move(steps));
  }
  std::vector<Finding> found;
  for (const auto& [role, members] : roles) judge(members, options, found);
  return found;
}

}  // namespace cairn::elastic
