#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/exchange.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"

namespace cairn::sync {

// What rules need whose rounds are among a few islands each (noloco.cpp, gossip.cpp): who takes part in a round, and where the values are.
//
// In one world each rank exchanges its shard with the ranks that hold the same shard on other islands, and all islands take part in every
// round. Of a remote island only the first rank exchanges, for all its ranks; the log says who takes part (membership_peers.cpp).
class IslandPeers {
 public:
  using StartPoint = IslandExchange::StartPoint;

  virtual ~IslandPeers() = default;
  // Null: the island's first rank exchanges for this one.
  virtual Quorum* quorum() = 0;
  // On ranks with a quorum: who takes part in the round of this step. Identical on islands that know the same log.
  virtual Incarnations members(int64_t step) = 0;

  // What a rank with a quorum exchanges, on the host: this rank's shard, or the full model. Undefined on other ranks. Collective.
  virtual at::Tensor gather(const at::Tensor& mine) = 0;
  // The other way: this rank's shard of what a rank with a quorum has, on the device of the parameters. Collective.
  virtual at::Tensor scatter(const at::Tensor& values) = 0;
  // Numbers of the rank that exchanges for this one.
  virtual void share(std::span<double> numbers) = 0;

  // Before the first step, when `state` is current: waits for the other islands, or joins them.
  virtual StartPoint begin(int64_t steps_done) { return {steps_done}; }
  // After a round, when `state` is current: sends it to islands that join. Returns where this island goes on if the others went on without
  // it and it has taken up the state of one of them.
  virtual std::optional<StartPoint> end_round(int64_t /*step*/) { return std::nullopt; }
  // The same for an island that cannot follow the others.
  virtual StartPoint begin_again(int64_t steps_done);
  virtual void leave(int64_t /*step*/) {}
  virtual void poll() {}  // receives what has arrived; does not wait
  // Whether an island may leave without asking the others to stop.
  virtual bool may_leave() const { return false; }
};

struct PeerParts {
  const SyncOptions& options;
  const Replica& replica;
  int64_t every = 1;    // steps between two rounds
  at::Tensor model;     // this rank's shard of what islands pass on to those that join: fp32, all parameters one after the other...
  at::Tensor momentum;  // ...and of its momentum; undefined: there is none
};
std::unique_ptr<IslandPeers> make_peers(const PeerParts& parts);  // by Replica::remote_islands

// One average over all islands, as a quorum round (merge.h). Collective over the island.
struct MeanOfAll {
  at::Tensor mean;  // this rank's shard, on the device of the parameters; undefined: there is no result
  RoundEnding ending = RoundEnding::decided;
  int64_t bytes_sent = 0;
  int included = 0;
  std::string waiting_for;
};
struct MergeRule;
class Compressor;
struct RoundOfAll {
  int64_t step = 0;
  int32_t part = 0;  // tells several rounds of one step apart
  bool wants_to_stop = false;
  bool more_follow = false;  // other parts of this step follow, whose messages may be here already
};
MeanOfAll mean_of_all(IslandPeers& peers, const Compressor& compressor, const MergeRule& rule, const RoundOfAll& round,
                      const at::Tensor& mine);
// The mean over all islands of a few numbers, in fp32, as such a round; empty: there is no result. `bytes_sent` is added to.
std::vector<double> mean_of_numbers(IslandPeers& peers, const RoundOfAll& round, const std::vector<double>& mine, int64_t& bytes_sent);

// Rounds among a few islands, on a rank with a quorum. An island that waits asks its partners now and then whether they take part in the
// round; one that has gone on without it, or counts on others by another membership, declines, so that nobody waits in vain.
class PartnerRounds {
 public:
  PartnerRounds(IslandPeers& peers, std::chrono::nanoseconds timeout);

  // The round begins. `partners`: islands that may count on this one, or that this one counts on.
  void begin(int64_t round, const Incarnations& members, const std::vector<int>& partners);
  // Whether nothing more is to come from a partner of this round: it is lost, has started again, or has declined.
  bool is_gone(int island) const;
  // Receives until `done`, for at most the time limit from the beginning of the round, or for seconds if this island was asked to stop.
  bool wait(const std::function<bool()>& done);
  // The round is over; these islands have what they need from this one.
  void end(const std::vector<int>& served);

 private:
  void answer(int island, int64_t round);

  IslandPeers& peers_;
  Quorum& quorum_;
  IslandMessenger& messenger_;
  const std::chrono::nanoseconds timeout_;
  int64_t round_ = -1;  // that this island is in, or was in last
  bool open_ = false;
  std::vector<int> partners_;
  Incarnations members_;
  std::chrono::nanoseconds begun_{}, asked_{};
  std::map<int64_t, std::vector<int>> served_;  // by round, of the last ones
  std::set<std::pair<int64_t, int>> declined_;  // rounds, and islands that take no part in them
};

}  // namespace cairn::sync
