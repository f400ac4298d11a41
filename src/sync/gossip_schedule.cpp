#include "sync/gossip_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/text.h"
#include "sync/gossip.h"

namespace cairn::sync {
namespace {

// What the island that sends most sends in the first rounds, by number of rounds: [0, b_1, b_2, ...].
std::vector<int64_t> bytes_by_round(const GossipOptions& options, const GossipRun& run) {
  std::vector<int64_t> sent(static_cast<size_t>(run.islands)), most{0};
  for (int64_t round = 1; round <= run.rounds; ++round) {
    const auto rows = mixing_rows(options.topology, run.islands, options.neighbours, run.seed, round);
    for (size_t k = 0; k < rows.size(); ++k)
      for (const int other : rows[k])
        if (other != static_cast<int>(k)) sent[static_cast<size_t>(other)] += run.model_bytes;
    most.push_back(*std::max_element(sent.begin(), sent.end()));
  }
  return most;
}

}  // namespace

GossipPlan::GossipPlan(const GossipOptions& options, const GossipRun& run) : options_(options), run_(run) {
  const bool ramps = options.schedule == GossipSchedule::linear || options.schedule == GossipSchedule::cosine;
  if (ramps && options.topology != Topology::random)
    base::fail_input("sync.island.schedule = \"{}\": changes the number of random neighbours; set topology = \"random\"",
                     base::enum_name(kGossipScheduleNames, options.schedule));
  if (ramps && options.neighbours_end > run.islands - 1)
    base::fail_input("sync.island.neighbours_end = {}: there are {} other islands", options.neighbours_end, run.islands - 1);
  if (options.schedule != GossipSchedule::budget || run.rounds == 0) return;
  const auto budget = static_cast<int64_t>(options.budget_mib * (1 << 20));
  const std::vector<int64_t> by_round = bytes_by_round(options, run);
  const auto total = [&](int64_t with_all) {
    return by_round[static_cast<size_t>(run.rounds - with_all)] + with_all * run.all_bytes + run.final_bytes;
  };
  if (total(0) > budget)
    base::fail_input(
        "sync.island.budget_mib = {}: {} with {} neighbours and the final merge take {} of each island; allow so much, raise every, or "
        "lower neighbours",
        options.budget_mib, base::plural(run.rounds, "round"), options.neighbours, base::human_bytes(total(0)));
  while (with_all_ < run.rounds && total(with_all_ + 1) <= budget) ++with_all_;
}

double GossipPlan::ramp(int64_t round) const {
  const double progress = run_.rounds > 0 ? std::min(1.0, static_cast<double>(round) / static_cast<double>(run_.rounds)) : 0;
  const double end = options_.neighbours_end > 0 ? options_.neighbours_end : run_.islands - 1;
  const double share = options_.schedule == GossipSchedule::cosine ? (1 - std::cos(std::numbers::pi * progress)) / 2 : progress;
  return options_.neighbours + (end - options_.neighbours) * share;
}

GossipIntensity GossipPlan::at(int64_t round) const {
  const GossipIntensity some{.neighbours = options_.neighbours};
  if (options_.topology == Topology::complete) return {.with_all = true};
  switch (options_.schedule) {
    case GossipSchedule::fixed:
    case GossipSchedule::final_only:
      return some;
    case GossipSchedule::window: {
      if (run_.rounds == 0) return some;
      const double progress = static_cast<double>(round - 1) / static_cast<double>(run_.rounds);
      return progress >= options_.window_start && progress < options_.window_start + options_.window_width
                 ? GossipIntensity{.with_all = true}
                 : some;
    }
    case GossipSchedule::linear:
    case GossipSchedule::cosine: {
      const double neighbours = ramp(round);
      return neighbours > run_.islands - 1 - 1e-9 ? GossipIntensity{.with_all = true} : GossipIntensity{.neighbours = neighbours};
    }
    case GossipSchedule::budget:
      return round > run_.rounds - with_all_ ? GossipIntensity{.with_all = true} : some;
  }
  CAIRN_CHECK(false, "gossip schedule {}", static_cast<int>(options_.schedule));
}

}  // namespace cairn::sync
