// Rates are max-min fair (progressive filling): all channels grow equally until a link is full; the channels of that link stay as they are,
// the others grow on. When a flow ends the rates are computed anew.
#include "comm/clos_fabric.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace cairn::comm {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-12;

// One entry for each channel of each flow that still runs.
struct Running {
  size_t flow;
  const PathPlanner::Path* path;
  double rate = 0;
  bool frozen = false;
};

void share_links(const std::vector<double>& capacities, std::vector<Running>& running) {
  std::vector<double> left = capacities;
  while (true) {
    std::vector<int> users(left.size());
    for (const Running& one : running)
      for (const int link : *one.path) users[static_cast<size_t>(link)] += one.frozen ? 0 : 1;
    double step = kNever;
    for (size_t link = 0; link < left.size(); ++link)
      if (users[link] > 0) step = std::min(step, left[link] / users[link]);
    if (step == kNever) return;
    for (size_t link = 0; link < left.size(); ++link) left[link] -= step * users[link];
    for (Running& one : running) {
      if (one.frozen) continue;
      one.rate += step;
      one.frozen = std::any_of(one.path->begin(), one.path->end(), [&](int link) {
        return left[static_cast<size_t>(link)] <= kNothing * std::max(1.0, capacities[static_cast<size_t>(link)]);
      });
    }
  }
}

}  // namespace

ClosFabric::ClosFabric(int leaves, int spines, int hosts_per_leaf, double bytes_per_s)
    : leaves_(leaves),
      spines_(spines),
      hosts_per_leaf_(hosts_per_leaf),
      capacities_(static_cast<size_t>(2 * leaves * spines + 2 * leaves * hosts_per_leaf), bytes_per_s) {
  CAIRN_CHECK(leaves >= 1 && spines >= 1 && hosts_per_leaf >= 1, "a fabric of {} leaves, {} spines, {} hosts", leaves, spines,
              hosts_per_leaf);
}

std::vector<PathPlanner::Path> ClosFabric::paths(int from_host, int to_host) const {
  const int ports = 2 * leaves_ * spines_, hosts = leaves_ * hosts_per_leaf_;
  const int out = ports + from_host, in = ports + hosts + to_host;
  if (leaf_of(from_host) == leaf_of(to_host)) return {{out, in}};
  std::vector<PathPlanner::Path> all;
  for (int spine = 0; spine < spines_; ++spine) all.push_back({out, up(leaf_of(from_host), spine), down(spine, leaf_of(to_host)), in});
  return all;
}

int ClosFabric::hashed(uint64_t seed, int flow, int from_host, int to_host) const {
  const std::vector<PathPlanner::Path> all = paths(from_host, to_host);
  std::vector<int> working;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool works = std::all_of(all[i].begin(), all[i].end(), [&](int link) { return capacities_[static_cast<size_t>(link)] > 0; });
    if (works) working.push_back(static_cast<int>(i));
  }
  CAIRN_CHECK(!working.empty(), "no path from host {} to host {}", from_host, to_host);
  return working[base::Random(seed).for_purpose("ecmp").below(static_cast<uint64_t>(flow), working.size())];
}

PathPlanner ClosFabric::planner(const PathPlanner::Options& options) const {
  PathPlanner planner(options);
  for (const double capacity : capacities_) planner.add_link(capacity);
  return planner;
}

std::vector<double> fluid_end_times(const std::vector<double>& capacities, const std::vector<FluidFlow>& flows) {
  std::vector<double> ends(flows.size(), kNever), left;
  for (const FluidFlow& flow : flows) left.push_back(flow.bytes);
  std::vector<bool> over(flows.size());
  for (double now = 0;;) {
    std::vector<Running> running;
    for (size_t i = 0; i < flows.size(); ++i) {
      for (const PathPlanner::Path& path : flows[i].channels) {
        const bool works = std::all_of(path.begin(), path.end(), [&](int link) { return capacities[static_cast<size_t>(link)] > 0; });
        if (!over[i] && works) running.push_back({i, &path});
      }
    }
    share_links(capacities, running);
    std::vector<double> rates(flows.size());
    for (const Running& one : running) rates[one.flow] += one.rate;
    double step = kNever;
    for (size_t i = 0; i < flows.size(); ++i)
      if (!over[i] && rates[i] > 0) step = std::min(step, left[i] / rates[i]);
    if (step == kNever) return ends;
    now += step;
    for (size_t i = 0; i < flows.size(); ++i) {
      if (over[i] || rates[i] <= 0) continue;
      left[i] -= rates[i] * step;
      if (left[i] > kNothing * std::max(1.0, flows[i].bytes)) continue;
      over[i] = true;
      ends[i] = now;
    }
  }
}

}  // namespace cairn::comm
