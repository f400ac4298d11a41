#pragma once
#include <chrono>
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

// How remote islands start a run together and join one that is in progress. Used by the first rank of each island; the protocol is
// described in membership.cpp.
class IslandMembership {
 public:
  // The global model and its outer momentum: full fragments, fp32, on the host.
  struct State {
    std::vector<at::Tensor> anchors, momenta;
  };
  struct Parts {
    comm::Bridge& bridge;
    IslandMessenger& messenger;
    Quorum& quorum;
    base::Log& log;
    int founders = 1;  // islands that start the run together
    OuterStep outer_step;
    // An island that can be reached but sends nothing for this long, not even an answer, is waited for no longer.
    std::chrono::nanoseconds answer_limit = std::chrono::minutes(30);
  };
  explicit IslandMembership(Parts parts);

  // Before the first step: founds a run with other islands or joins theirs. `state` may hold another island's state afterwards. While it
  // waits it calls `tick` about every second; `tick` may throw.
  IslandExchange::StartPoint join_or_found(int64_t steps_done, State& state, std::function<void()> tick);

  // During training: notices islands that come and go. Does not wait.
  void poll();
  // Whether an island that joins waits for the state.
  bool has_join_requests() const;
  // Sends the state after step `now` to the islands that asked for it and becomes their sponsor.
  void send_state_to_joiners(int64_t now, const State& state);
  // As a sponsor: forwards the merged gradient of a round (undefined: it failed), applied after step `now`, to joining islands that are not
  // among its members.
  void forward_round(const IslandSet& members, int64_t step, int32_t part, int64_t now, const at::Tensor& gradient);
  // As a joining island: whether the sponsor has forwarded this round, and its merged gradient.
  bool has_forwarded_round(int64_t step, int32_t part);
  at::Tensor take_forwarded_round(int64_t step, int32_t part, int64_t elements);

 private:
  enum class Phase : int32_t { none, waits, works };
  struct Status {
    Phase phase = Phase::none;
    int32_t asks = 0;  // 1: the reader shall answer with its own status
    int64_t step = 0;
    uint64_t checksum = 0;
  };
  struct ForwardedRound {
    int64_t step = 0;
    int32_t part = 0;
    int64_t now = 0;
    bool defined = false;
    IslandSet members;  // after the round
  };

  bool is_present(int island) const { return island == messenger_.me() || !messenger_.lost(island); }
  void wait_until_connected(const IslandSet& members);
  void send_state(int island, const State& state, int64_t now);
  bool receive_state(int from, State& state);
  IslandExchange::StartPoint found_run(const std::vector<std::byte>& decided, int from, State& state);
  int founding_island() const;  // the island that founds the run with this one; -1: none has said so
  std::vector<std::byte> decide();
  bool join(int sponsor, State& state, IslandExchange::StartPoint& start_point);
  at::Tensor receive_row(int from, const MessageTag& tag, int64_t elements);
  void set_status(Phase phase, int64_t step, uint64_t checksum);
  bool wait_briefly(const std::function<bool()>& done);  // for at most a second
  bool wait_for_island(int island, const std::function<bool()>& done);

  comm::Bridge& bridge_;
  IslandMessenger& messenger_;
  Quorum& quorum_;
  base::Log& log_;
  int founders_;
  OuterStep outer_step_;
  std::chrono::nanoseconds answer_limit_;
  std::chrono::nanoseconds waiting_since_{};  // for an island to send something
  std::chrono::nanoseconds status_asked_{};
  Status mine_;
  std::vector<Status> statuses_;          // by island
  std::vector<uint64_t> status_sent_to_;  // by island: the incarnation that has this island's status
  std::vector<int64_t> state_step_from_;  // by island: the step of the state that it has sent here; -1: none
  IslandSet join_requests_, sponsored_;   // joining islands that ask for the state, and that have it
  int sponsor_ = -1;                      // of this island, while it joins
  std::function<void()> tick_;
  std::deque<ForwardedRound> forwarded_;  // by the sponsor
};

}  // namespace cairn::sync
