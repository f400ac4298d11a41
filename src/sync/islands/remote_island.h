#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/exchange.h"
#include "sync/islands/membership.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"

namespace cairn::comm {
class Group;
}
namespace cairn::mesh {
class WriteBarrier;
}

namespace cairn::sync {

class FullParameterGather;

// An island that is a world of its own, as each of its ranks sees it. Only the first rank has a bridge to other islands: it runs messenger,
// quorum and membership. Its decisions and values reach the other ranks by broadcast, so the ranks of an island stay in step. All functions
// but `first_rank` are collective over the island.
class RemoteIsland {
 public:
  struct Parts {
    const SyncOptions& options;
    const Replica& replica;
    std::vector<FragmentRows> rows;  // of the state that islands pass on; an undefined momentum: there is none
    OuterStep outer_step = {};
    at::Tensor numbers = {};       // fp64, part of that state; undefined: none
    int64_t peer_round_steps = 0;  // steps between two rounds among a few islands (peers.h); 0: rounds are among all
  };
  struct FirstRank {
    FirstRank(const Parts& parts, std::unique_ptr<IslandLink> link);
    QuorumOptions options_of(const Parts& parts);
    IslandMessenger messenger;
    Quorum quorum;
    IslandMembership membership;
  };
  explicit RemoteIsland(Parts parts);

  FirstRank* first_rank() const { return first_rank_.get(); }  // null on the other ranks
  comm::Group& model_group() const { return model_group_; }
  const FragmentRows& rows(size_t f) const { return rows_[f]; }
  int64_t elements_of(size_t f) const;  // of a full fragment

  // Founds a run with the other islands, joins theirs, or comes back to it. Writes into the rows if the state is that of another island.
  IslandExchange::StartPoint enter(int64_t steps_done, const IslandExchange::Lineage& lineage, bool again);
  void leave(int64_t step);
  // Sends the state to the islands that asked for it.
  void send_state_to_joiners(int64_t now);

  // Returns the full fragment on the first rank, from the shards of all ranks; undefined elsewhere.
  at::Tensor gather(size_t f, const at::Tensor& mine) const;
  // Returns the first rank's full fragment on every rank, on the host.
  at::Tensor broadcast_full(size_t f, at::Tensor whole) const;
  // Copies this rank's shards out of a full fragment.
  void take_shard(size_t f, const at::Tensor& whole, const at::Tensor& mine) const;
  // The first rank's numbers, on every rank.
  void share(std::span<double> numbers, const char* what) const;

 private:
  IslandMembership::State gather_state() const;

  comm::Group& model_group_;
  FullParameterGather* full_parameters_;
  std::function<bool()> stopping_;
  mesh::WriteBarrier* barrier_;
  std::vector<FragmentRows> rows_;
  at::Tensor numbers_;
  std::vector<int64_t> elements_;  // of whole parameters
  std::unique_ptr<FirstRank> first_rank_;
};

}  // namespace cairn::sync
