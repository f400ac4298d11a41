#include "comm/net/channel_plan.h"

#include <algorithm>

#include "base/random.h"
#include "comm/net/path_planner.h"

namespace cairn::comm {
namespace {

constexpr int kPlannedRanksMost = 512;  // above, pairs take turns: as even, without a list of all pairs

}  // namespace

NetEndpoint endpoint_on(const RankAddress& to, int plane) {
  if (plane < 1 || plane > static_cast<int>(to.more_interfaces.size())) return {to.host, to.outside_port};
  return to.more_interfaces[static_cast<size_t>(plane) - 1];
}

ChannelPlan::ChannelPlan(const NetSetup& setup, const NetOptions& options) : setup_(setup), options_(options) {
  if (static_cast<int>(setup_.addresses.size()) == setup_.size) plan();
}

bool ChannelPlan::by_sockets(int a, int b) const {
  return options_.links || setup_.addresses[static_cast<size_t>(a)].machine != setup_.addresses[static_cast<size_t>(b)].machine;
}

int ChannelPlan::channels(int other) const { return by_sockets(setup_.rank, other) ? options_.channels : 1; }

int ChannelPlan::plane(int other, int channel) const {
  const auto found = planes_.find(other);
  return found == planes_.end() ? 0 : found->second[static_cast<size_t>(channel)];
}

int ChannelPlan::planes(int a, int b) const {
  const auto interfaces = [&](int rank) {
    return static_cast<int>(setup_.addresses[static_cast<size_t>(rank)].more_interfaces.size()) + 1;
  };
  const int shaped = options_.links ? static_cast<int>(options_.links->planes.size()) : 0;
  return std::max(shaped, std::min(interfaces(a), interfaces(b)));
}

// Each connection loads a port of both ends. A port belongs to a machine; on shaped links to a rank.
void ChannelPlan::plan() {
  PathPlanner planner;
  std::map<std::pair<int, int>, int> ports;  // (machine or rank, plane) -> link
  std::vector<std::pair<int, int>> own;      // flow, other rank
  const auto port = [&](int rank, int plane) {
    const int card = options_.links ? rank : setup_.addresses[static_cast<size_t>(rank)].machine;
    const auto [at, fresh] = ports.try_emplace({card, plane}, 0);
    if (fresh) at->second = planner.add_link(1);
    return at->second;
  };
  for (int a = 0; a < setup_.size; ++a) {
    for (int b = a + 1; b < setup_.size; ++b) {
      const bool ours = a == setup_.rank || b == setup_.rank;
      const int other = a == setup_.rank ? b : a, count = by_sockets(a, b) ? planes(a, b) : 1;
      if (count == 1) continue;
      if (options_.hash_seed || setup_.size > kPlannedRanksMost) {
        for (int channel = 0; ours && channel < options_.channels; ++channel) {
          const uint64_t turn = options_.hash_seed ? base::Random(*options_.hash_seed)
                                                         .for_index(static_cast<uint64_t>(a))
                                                         .for_index(static_cast<uint64_t>(b))
                                                         .bits64(static_cast<uint64_t>(channel))
                                                   : static_cast<uint64_t>(a + b + channel);
          planes_[other].push_back(static_cast<int>(turn % static_cast<uint64_t>(count)));
        }
        continue;
      }
      std::vector<PathPlanner::Path> candidates;
      for (int plane = 0; plane < count; ++plane) candidates.push_back({port(a, plane), port(b, plane)});
      const int flow = planner.add_flow(1, std::move(candidates), options_.channels);
      if (ours) own.emplace_back(flow, other);
    }
  }
  planner.plan({});
  for (const auto& [flow, other] : own) planes_[other] = planner.paths_of(flow);
}

}  // namespace cairn::comm
