#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::sync {

struct MergeRule;
struct Replica;
struct SyncOptions;
class Compressor;

// What leaves an island.
struct FragmentMessage {
  int fragment = 0;
  const Compressor* compressor = nullptr;  // by which it goes; null for what is only expected
  int64_t step = 0;
  int32_t part = 0;    // of this step
  double weight = 1;   // of this island
  double seconds = 0;  // that a step takes here; 0: not known
  bool wants_to_stop = false;
};

// A fragment on its way between islands, as one rank sees it.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  // Goes on as far as it can without waiting. True: `wait` will not have to.
  virtual bool progress() = 0;
  // What the islands' versions came to, of this rank's part; undefined: nothing, on all islands alike. In the order of sending.
  virtual at::Tensor wait() = 0;
  // What the wire left of this rank's part of what this island sent.
  virtual at::Tensor as_sent() = 0;
  virtual int64_t step() const = 0;

  // After `wait`.
  struct Outcome {
    int64_t bytes_sent = 0;  // codes, by this island
    int counted = 0;         // islands
    bool stop = false;       // some island would like to end
    double fastest = 0;      // seconds of a step on the fastest island that told; 0: none did
  };
  const Outcome& outcome() const { return outcome_; }

 protected:
  Outcome outcome_;
};

// What the rule keeps of one fragment on this rank, and how it takes in what a round came to.
struct FragmentRows {
  std::vector<size_t> whole;          // its parameters, by place in Replica::model
  std::vector<size_t> own;            // those of which this rank keeps a part...
  std::vector<int64_t> own_elements;  // ...and how much
  at::Tensor anchor, momentum;        // of these parts, one after the other
};
using OuterStep = std::function<void(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& gradient, int64_t step)>;

// How fragments travel between islands: from each rank to those that hold the same part of the model elsewhere, where islands are parts of
// one world; by the island's first rank, where each island is a world of its own.
class IslandExchange {
 public:
  virtual ~IslandExchange() = default;
  virtual std::unique_ptr<PendingExchange> send(const FragmentMessage& message, const at::Tensor& mine) = 0;  // mine: fp32
  // Moves messages until `done`, for so long at most. False: the time is over.
  virtual bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) = 0;
  // Rounds of this step and earlier ones are over.
  virtual void close(int64_t step) = 0;

  // Where islands come and go. Before the first step: waits for the others, or joins them while they are at work, with their state.
  struct StartPoint {
    int64_t step = 0;             // after which this island goes on
    bool state_replaced = false;  // anchor and momentum are others' now
    bool joined = false;          // while the others were at work: rounds may be under way
  };
  virtual StartPoint begin(int64_t steps_done) { return {steps_done}; }
  // A round that was under way when this island came.
  virtual std::unique_ptr<PendingExchange> expect(int fragment, int64_t step, int32_t part);
  // The rule has taken in what the voyage brought, after step `now`.
  virtual void on_applied(PendingExchange& /*exchange*/, int64_t /*now*/) {}
  virtual void poll() {}  // sees who comes and goes, without waiting
  // Whether each island may leave by itself.
  virtual bool may_leave() const { return false; }
};

struct ExchangeParts {
  const SyncOptions& options;
  const Replica& replica;
  const MergeRule& rule;
  std::vector<FragmentRows> rows;  // by fragment
  OuterStep outer_step;
};
std::unique_ptr<IslandExchange> make_exchange(ExchangeParts parts);

}  // namespace cairn::sync
