#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/exchange.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"

namespace cairn::base {
class Log;
}

namespace cairn::sync {

// How remote islands start a run together, join one that is in progress, and come back to it. Used by the first rank of each island; the
// protocol is described in membership.cpp.
class IslandMembership {
 public:
  // The global model and its outer momentum: full fragments, fp32, on the host.
  struct State {
    std::vector<at::Tensor> anchors, momenta;
    uint64_t epoch = 0;       // of the founding that it goes back to
    bool apart = false;       // this island has trained alone since
    at::Tensor numbers = {};  // fp64; undefined: none
  };
  struct Parts {
    IslandMessenger& messenger;
    Quorum& quorum;
    base::Log& log;
    int founders = 1;   // islands that start the run together
    int64_t steps = 0;  // of the run; 0: not known
    OuterStep outer_step = {};
    bool any_length = false;       // rows of the state and merged updates may have any length, not only that of this island's rows
    int64_t peer_round_steps = 0;  // steps between two rounds among a few islands; 0: rounds are among all, and decide who joins
    std::chrono::nanoseconds founders_limit = std::chrono::minutes(30);  // for enough islands to arrive
    std::chrono::nanoseconds return_limit = std::chrono::minutes(5);     // for an island that comes back to find the others
    // An island that can be reached but sends nothing for this long, not even an answer, is waited for no longer.
    std::chrono::nanoseconds answer_limit = std::chrono::minutes(30);
  };
  explicit IslandMembership(Parts parts);

  // Founds a run with other islands or joins theirs; `state`, after `steps_done` steps, may hold another island's state afterwards. While
  // it waits it calls `tick` about every second; `tick` returns false to end the wait.
  IslandExchange::StartPoint enter(int64_t steps_done, State& state, const std::function<bool()>& tick);
  // The same for an island that was left out, under a new incarnation.
  IslandExchange::StartPoint enter_again(int64_t steps_done, State& state, const std::function<bool()>& tick);
  // After the last step: stays until the others have ended too, or for half a minute. Islands that come now get the final state.
  void leave(int64_t step, const State& state, const std::function<bool()>& tick);

  // During training: notices islands that come and go. Does not wait.
  void poll();
  // While a round waits: asks the others whether they have gone on without this island.
  void ask_whether_removed();
  // Whether an island that joins waits for the state.
  bool has_join_requests() const;
  // Sends the state after step `now` to the islands that asked for it and becomes their sponsor.
  void send_state_to_joiners(int64_t now, const State& state);
  // A round as its sponsor forwards it.
  struct AppliedRound {
    int64_t step = 0;
    int32_t part = 0;
    int64_t now = 0;      // the step after which it was applied
    at::Tensor gradient;  // merged; undefined: the round failed
    at::Tensor numbers;   // after it; undefined: the state has none
  };
  // As a sponsor: forwards a round to joining islands that are not among its members.
  void forward_round(const Incarnations& members, const AppliedRound& round);
  // As a joining island: whether the sponsor has forwarded this round, and its merged gradient.
  bool has_forwarded_round(int64_t step, int32_t part);
  // `elements`: -1 for any number.
  at::Tensor take_forwarded_round(int64_t step, int32_t part, int64_t elements);
  bool is_sponsor_gone() const;

  // Rounds among a few islands (peers.h), after a round of step `now`: asks the members whether they are there. The leader writes into the
  // log which islands leave, and which of those that are ready join. Does not wait.
  void keep_members(int64_t now);

 private:
  enum class Phase : int32_t { none, waits, works, ended };
  // What an island says of itself to another one.
  struct Status {
    Phase phase = Phase::none;
    int32_t asks = 0;  // 1: the reader shall answer with its own status
    int64_t step = 0;
    uint64_t checksum = 0;  // of the state
    uint64_t epoch = 0;     // of the lineage that the state belongs to
    int32_t apart = 0;      // 1: it was trained without the others since
    int32_t has_quorum = 0;
    uint64_t applied = 0;  // entries of the log
    uint64_t member = 0;   // the reader's incarnation that is a member; 0: none
    int64_t forwards = 0;  // rounds that were forwarded to the reader
    uint64_t entered = 0;  // the reader's incarnation that takes part in the writer's next rounds; 0: none
  };
  struct Known {
    Status status = {};
    uint64_t incarnation = 0;  // of the island that said it
  };
  struct ForwardedRound {
    int64_t step = 0;
    int32_t part = 0;
    int64_t now = 0;
    bool defined = false;
    uint64_t applied = 0;  // entries of the log on the sponsor
    Incarnations members;  // after the round
    at::Tensor numbers = {};
  };

  void listen();
  // What the island said under its present incarnation; null: it cannot be reached or has said nothing.
  const Status* status_of(int island) const;
  void say(int island, bool asks);
  void ask_all();
  void set_status(Phase phase, int64_t step, uint64_t checksum, bool apart);
  IslandExchange::StartPoint enter_run(int64_t steps_done, State& state, const std::function<bool()>& tick, bool again);
  std::optional<IslandExchange::StartPoint> try_to_enter(State& state, bool again);
  bool is_founder() const;
  std::nullopt_t start_over();
  int needed(bool again) const;  // islands that must wait for a founding
  int count_waiting() const;
  std::string describe_missing() const;
  void found();
  Founding make_founding(const IslandSet& waiting) const;
  std::optional<IslandExchange::StartPoint> found_run(const Founding& founding, State& state);
  void wait_until_connected(const Incarnations& members);
  std::optional<IslandExchange::StartPoint> join(int sponsor, State& own);
  // What a state is sent for. A founder that comes too late joins instead, and must not take the founding's state for its sponsor's.
  enum class StateFor : int32_t { founder, joiner };
  static MessageTag state_tag(StateFor use, int64_t step, size_t fragment, int32_t row);
  void send_state(int island, StateFor use, const State& state, int64_t now);
  bool receive_state(int from, uint64_t incarnation, StateFor use, State& state);
  std::optional<IslandExchange::StartPoint> join_peers(State& own, State& state, int64_t sent);
  bool is_silent(int island) const;
  at::Tensor receive_row(int from, const MessageTag& tag, int64_t elements);
  bool wait_briefly(const std::function<bool()>& done);
  bool is_gone(int island, uint64_t incarnation) const;
  bool stands_still(int island) const;

  IslandMessenger& messenger_;
  Quorum& quorum_;
  DecisionLog& decisions_;
  base::Log& log_;
  const int founders_;
  const int64_t steps_;
  OuterStep outer_step_;
  const bool any_length_;
  const int64_t peer_round_steps_;
  const std::chrono::nanoseconds founders_limit_, return_limit_, answer_limit_;
  Status mine_;
  std::vector<Known> known_;                                // by island
  std::vector<uint64_t> said_to_;                           // by island: the incarnation that has this island's status
  std::array<std::vector<int64_t>, 2> state_step_;          // by use and island: the step of the state that it has sent here; -1: none
  IslandSet state_is_final_;                                // by island: it had ended when it sent that
  Incarnations ready_;                                      // islands that have a state and ask to join rounds among a few
  std::vector<std::chrono::nanoseconds> unanswered_since_;  // by island: the first question since it was last heard
  Incarnations join_requests_, sponsored_;                  // joining islands that ask for the state, and that have it
  std::vector<int64_t> forwards_sent_;                      // by island: rounds that were forwarded to it since it got the state
  int64_t forwards_received_ = 0;
  bool misses_round_ = false;  // one that the sponsor forwarded did not arrive
  bool took_state_ = false;    // of the sponsor
  int sponsor_ = -1;           // of this island, while it joins
  uint64_t sponsor_incarnation_ = 0;
  uint64_t entered_epoch_ = 0;  // this island has gone through that founding
  std::chrono::nanoseconds asked_{kLongAgo}, ticked_{kLongAgo}, kept_members_{kLongAgo};
  std::function<bool()> tick_;
  bool ended_by_tick_ = false;
  std::deque<ForwardedRound> forwarded_;  // by the sponsor
};

}  // namespace cairn::sync
