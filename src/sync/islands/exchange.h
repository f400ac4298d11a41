#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/quorum.h"

namespace cairn::sync {

struct MergeRule;
struct Replica;
struct SyncOptions;
class Compressor;

// One island's update of one fragment in one round, apart from its values.
struct FragmentMessage {
  int fragment = 0;
  const Compressor* compressor = nullptr;  // null: this island only expects the round's result
  int64_t step = 0;
  int32_t part = 0;   // tells the rounds of one step apart
  double weight = 1;  // of this island in the merge
  double note = 0;    // a number that travels with the values: see Outcome
  bool wants_to_stop = false;
  bool admits = true;  // islands may join by this round; false: it is one of the last
};

// The exchange of one fragment between islands while it is in flight, as one rank sees it.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  // Advances without waiting. True: `wait` will return at once.
  virtual bool progress() = 0;
  // Returns this rank's shard of the merged updates (fp32, one dimension). Undefined: the round failed, on all islands. Exchanges are
  // waited for in the order in which they were sent.
  virtual at::Tensor wait() = 0;
  // Returns this rank's shard of this island's update after compression.
  virtual at::Tensor as_sent() = 0;
  virtual int64_t step() const = 0;

  // After `wait`.
  struct Outcome {
    int64_t bytes_sent = 0;  // compressed values that this island sent
    int included = 0;        // islands in the merge
    bool stop = false;       // some island was asked to stop
    RoundEnding ending = RoundEnding::decided;
    double note = 0, least_note = 0;  // the mean of the islands' notes; the least one above 0, or 0
  };
  const Outcome& outcome() const { return outcome_; }

 protected:
  Outcome outcome_;
};

// The state of one fragment on this rank.
struct FragmentRows {
  std::vector<size_t> whole;          // indices of its parameters in Replica::model
  std::vector<size_t> own;            // those of which this rank has a shard...
  std::vector<int64_t> own_elements;  // ...and how many elements
  at::Tensor anchor, momentum;        // of these shards, one after the other
};
// Updates anchor and momentum in place with the merged gradient of a round. `numbers`: those of the sponsor after that round.
using OuterStep = std::function<void(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& gradient, int64_t step,
                                     const at::Tensor& numbers)>;

// Exchanges fragments between islands. In one world each rank exchanges with the ranks that hold the same shard on other islands. Between
// remote islands (remote_exchange.cpp) the first rank of an island gathers full fragments and exchanges for all; then every function is
// collective over the island.
class IslandExchange {
 public:
  virtual ~IslandExchange() = default;
  virtual std::unique_ptr<PendingExchange> send(const FragmentMessage& message, const at::Tensor& mine) = 0;  // mine: fp32
  // Advances messages until `done`, for at most this long. False: the time is over.
  virtual bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) = 0;
  // Rounds of this step and earlier ones are over.
  virtual void close(int64_t step) = 0;

  // Before the first step: waits for the other islands, or joins them with their state if they are already training.
  struct StartPoint {
    int64_t step = 0;                           // to resume from
    bool state_replaced = false;                // anchor and momentum came from another island
    bool joined = false;                        // the others were already training: rounds may be in flight
    uint64_t epoch = 0;                         // of the lineage of global models (decision_log.h)
    RoundEnding ending = RoundEnding::decided;  // else this island found no others
  };
  // What is known of the state that this island begins with.
  struct Lineage {
    uint64_t epoch = 0;
    bool apart = false;  // this island has trained alone since its last round with others
  };
  virtual StartPoint begin(int64_t steps_done, const Lineage& /*lineage*/) { return {steps_done}; }
  // The same for an island that the others went on without.
  virtual StartPoint begin_again(int64_t steps_done, const Lineage& lineage);
  // After the last step: waits for the others, as long as they may need this island.
  virtual void leave(int64_t /*step*/) {}
  // A round that was in flight when this island joined: its result comes from another island.
  virtual std::unique_ptr<PendingExchange> expect(int fragment, int64_t step, int32_t part);
  // The rule has applied the result of this exchange, after step `now`.
  virtual void on_applied(PendingExchange& /*exchange*/, int64_t /*now*/) {}
  virtual void poll() {}  // notices islands that come and go; does not wait
  // The norm of a vector like the model, of which `mine` is this rank's shard: fp64, identical bits on all islands that have one model.
  virtual double norm(const at::Tensor& mine) = 0;
  // The mean over islands of a few numbers (fp32, on the host), identical on all ranks. Undefined: there is no result. It waits.
  virtual at::Tensor mean_of_numbers(const at::Tensor& values, int64_t step, int32_t part) = 0;
  // What this island waits for, for people.
  virtual std::string waiting_for() const { return "the other islands"; }
  // Whether an island may leave without asking the others to stop.
  virtual bool may_leave() const { return false; }
};

// In fp64. On the CPU the bits depend on the values alone, not on threads or vector units.
double sum_of_squares(const at::Tensor& values);

struct ExchangeParts {
  const SyncOptions& options;
  const Replica& replica;
  const MergeRule& rule;
  std::vector<FragmentRows> rows;  // by fragment
  OuterStep outer_step;
  at::Tensor numbers = {};  // fp64, on the host: belong to the model and travel with it to islands that join; undefined: none
};
std::unique_ptr<IslandExchange> make_exchange(ExchangeParts parts);         // by Replica::remote_islands
std::unique_ptr<IslandExchange> make_remote_exchange(ExchangeParts parts);  // remote_exchange.cpp

}  // namespace cairn::sync
