#pragma once
#include <map>
#include <utility>
#include <vector>

#include "comm/net/transport.h"

namespace cairn::comm {

// How many connections (channels) each pair of ranks has, and the plane of each: the number of the interface that it uses at both ends.
// The same on all ranks, since all compute it from the same addresses. PathPlanner spreads the pairs evenly over the ports of each machine.
class ChannelPlan {
 public:
  ChannelPlan(const NetSetup& setup, const NetOptions& options);

  int channels(int other) const;            // between this rank and that one
  int plane(int other, int channel) const;  // planned

 private:
  bool by_sockets(int a, int b) const;  // joined by sockets that carry messages
  int planes(int a, int b) const;
  void plan();

  const NetSetup& setup_;
  const NetOptions& options_;
  std::map<int, std::vector<int>> planes_;  // by other rank, by channel; absent: plane 0
};

// Where rank `to` listens on a plane. A plane beyond its interfaces (a shaped one) is the first interface.
NetEndpoint endpoint_on(const RankAddress& to, int plane);

}  // namespace cairn::comm
