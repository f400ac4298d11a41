#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/exchange.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"

namespace cairn::comm {
class Bridge;
}
namespace cairn::base {
class Log;
}

namespace cairn::sync {

// How islands that are worlds of their own come together: some found a run, others join it while it goes on. Used by the first rank of
// each.
//
// Islands that wait tell each other what they have; when there are enough, the lowest of them says who founds the run, and from whom those
// get the model that have another one. A newcomer asks an island at work, its sponsor, which sends it the model and, from then on, what
// each round came to. When the newcomer has caught up the sponsor proposes it; all agree on it by a round's decision (quorum.h), and from
// there on it takes part.
class IslandMembership {
 public:
  // The model that islands agreed on, whole, by fragment.
  struct State {
    std::vector<at::Tensor> anchors, momenta;
  };
  struct Parts {
    comm::Bridge& bridge;
    IslandMessenger& messenger;
    Quorum& quorum;
    base::Log& log;
    int founders = 1;
    OuterStep outer_step;
  };
  explicit IslandMembership(Parts parts);

  // Before the first step, with what this island has; it may be others' afterwards.
  // While it waits, `tick` is called every second or so, and may throw.
  IslandExchange::StartPoint join_or_found(int64_t steps_done, State& state, std::function<void()> tick);

  // At work: sees who is there.
  void poll();
  // A newcomer waits for the model.
  bool has_join_requests() const;
  // Gives it, as it is after step `now`, to those who asked for it.
  void send_state_to_joiners(int64_t now, const State& state);
  // To newcomers: what a round came to in which they had no part (undefined: nothing), after step `now`.
  void forward_round(const IslandSet& members, int64_t step, int32_t part, int64_t now, const at::Tensor& gradient);
  // As a newcomer: whether the sponsor has told of this round, and what it said.
  bool has_forwarded_round(int64_t step, int32_t part);
  at::Tensor take_forwarded_round(int64_t step, int32_t part, int64_t elements);

 private:
  enum class Phase : int32_t { none, waits, works };
  struct Status {
    Phase phase = Phase::none;
    int32_t asks = 0;  // for the reader's own
    int64_t step = 0;
    uint64_t checksum = 0;
  };
  struct ForwardedRound {
    int64_t step = 0;
    int32_t part = 0;
    int64_t now = 0;
    bool defined = false;
    IslandSet members;  // afterwards
  };

  bool is_present(int island) const { return island == messenger_.me() || !messenger_.lost(island); }
  void wait_until_connected(const IslandSet& members);
  void send_state(int island, const State& state, int64_t now);
  bool receive_state(int from, State& state);
  IslandExchange::StartPoint found_run(const std::vector<std::byte>& decided, int from, State& state);
  int founding_island() const;  // who founds the run with this island; -1: nobody has said so
  std::vector<std::byte> decide();
  bool join(int sponsor, State& state, IslandExchange::StartPoint& start_point);
  at::Tensor receive_row(int from, const MessageTag& tag, int64_t elements);
  void set_status(Phase phase, int64_t step, uint64_t checksum);
  bool wait_briefly(const std::function<bool()>& done);  // for a second at most

  comm::Bridge& bridge_;
  IslandMessenger& messenger_;
  Quorum& quorum_;
  base::Log& log_;
  int founders_;
  OuterStep outer_step_;
  Status mine_;
  std::vector<Status> statuses_;          // by island
  std::vector<uint64_t> status_sent_to_;  // by island: the life to which this one's status was said
  std::vector<int64_t> state_step_from_;  // by island: the step of the model that it has sent; -1: none
  IslandSet join_requests_, sponsored_;   // newcomers that want the model, and that have it
  int sponsor_ = -1;                      // of this island
  std::function<void()> tick_;
  std::deque<ForwardedRound> forwarded_;  // from it
};

}  // namespace cairn::sync
