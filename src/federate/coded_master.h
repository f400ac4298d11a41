// The master of coded training: hands out tasks in rounds, closes rounds as replies arrive, decodes gradients and has them applied.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "federate/coding/choose.h"
#include "federate/coding/rounds.h"

namespace cairn::base {
class Stop;
}
namespace cairn::comm {
class World;
}

namespace cairn::federate {

// The models that are trained in turn, as the master holds them. Steps count from 1.
class Streams {
 public:
  virtual ~Streams() = default;
  virtual int64_t streams() const = 0;
  virtual int64_t samples(int64_t stream, int64_t step) const = 0;  // of the batch of a step
  virtual std::vector<float> weights(int64_t stream) const = 0;
  // The gradient of the step's loss, and its summed loss.
  virtual void apply(int64_t stream, int64_t step, std::span<const float> gradient, double loss_sum) = 0;
};

struct MasterOptions {
  int workers = 1;
  int64_t jobs = 1;  // steps of all streams together; job t is step t / streams + 1 of stream t mod streams
  SchemeSpec spec = {};
  bool choose = false;    // the parameters are chosen after a probe; then `spec.kind` is the only kind that is looked at
  bool any_kind = false;  // or any kind is
  int delay_max = 3;      // of what is chosen
  int64_t probe_rounds = 80;
  double mu = 1;
  sync::CodeKind code = sync::CodeKind::automatic;
  uint64_t seed = 1;
  int64_t dead_after = 50;  // a worker that holds up a round for so many usual rounds is removed
  int64_t message_bytes_max = int64_t{64} << 20;
};

// A round as it was.
struct RoundRecord {
  int64_t round = 0;
  std::string scheme = {};
  double load = 0;
  double seconds = 0;
  bool waited = false;
  std::vector<int> late = {};         // workers whose results did not count
  std::vector<int64_t> samples = {};  // computed, by worker; -1: its results did not count or it had no task
  int64_t job = -1;                   // that was completed
};

struct MasterResult {
  double seconds = 0;        // of all rounds
  double probe_seconds = 0;  // of these, before the parameters were chosen
  int64_t probe_jobs = 0;
  std::vector<RoundRecord> rounds;
  SchemeSpec spec;              // of the last rounds
  std::vector<Choice> choices;  // fastest first; empty: nothing was chosen
  Profile profile;              // of the probe
  std::vector<int> lost;        // workers that were removed
};

// Runs all jobs. Stops early, between two rounds, when a stop is requested.
MasterResult run_coded_master(comm::World& world, const MasterOptions& options, Streams& streams, const base::Stop& stop,
                              const std::function<void(const RoundRecord&)>& on_round = {});

}  // namespace cairn::federate
