#pragma once
#include <cstdint>
#include <vector>

#include "comm/net/path_planner.h"

namespace cairn::comm {

// A simulated two-tier Clos fabric (leaf and spine switches), to try out path plans: each leaf has one link up to and one down from every
// spine, and hosts with a port each. A fluid model: no packets, rates are max-min fair.
class ClosFabric {
 public:
  ClosFabric(int leaves, int spines, int hosts_per_leaf, double bytes_per_s = 1);

  int leaf_of(int host) const { return host / hosts_per_leaf_; }
  int up(int leaf, int spine) const { return leaf * spines_ + spine; }
  int down(int spine, int leaf) const { return (leaves_ + leaf) * spines_ + spine; }
  void set_capacity(int link, double bytes_per_s) { capacities_[static_cast<size_t>(link)] = bytes_per_s; }
  const std::vector<double>& capacities() const { return capacities_; }

  // One path through each spine, ports included.
  std::vector<PathPlanner::Path> paths(int from_host, int to_host) const;
  // The path that a hash of the flow's addresses and ports chooses (ECMP). It does not know of loads, only of links that are down.
  int hashed(uint64_t seed, int flow, int from_host, int to_host) const;
  // A planner that knows these links.
  PathPlanner planner(const PathPlanner::Options& options = {}) const;

 private:
  int leaves_, spines_, hosts_per_leaf_;
  std::vector<double> capacities_;  // up links, down links, ports out, ports in
};

// A flow of so many bytes over its channels. They draw from one pool, as the channels of the net transport do: all end together.
struct FluidFlow {
  double bytes = 0;
  std::vector<PathPlanner::Path> channels;
};

// When each flow ends if all begin at 0; infinite for one without a working channel.
std::vector<double> fluid_end_times(const std::vector<double>& capacities, const std::vector<FluidFlow>& flows);

}  // namespace cairn::comm
