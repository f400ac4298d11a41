// The seam that decides which samples each step trains on.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/sample_shape.h"
#include "data/samples/sampler_options.h"
#include "data/subset.h"
#include "mesh/named_tensor.h"

namespace cairn::data {

class Dataset;

// One source of a weighted mixture: samples that are drawn at a rate of their own.
struct Stream {
  SampleRange samples;
  double weight = 1;  // relative to the other streams
  bool operator==(const Stream&) const = default;
};

// What one step trains on.
struct Draw {
  std::vector<int64_t> ids = {};    // of the global batch, in order
  std::vector<float> weights = {};  // of each of them, times the subset's; empty: all weigh 1
  SampleShape shape = {};           // of all of them
  double learning_rate_factor = 1;  // the schedule's rate is multiplied by it
};

// What a sampler is built from; the same on all ranks.
struct SamplerFacts {
  Subset from;               // the samples to draw from
  int64_t global_batch = 1;  // samples of one step, over all ranks
  int64_t steps = 1;         // steps of the whole run
  uint64_t seed = 0;
  std::vector<Stream> streams = {};  // together all of `from`; empty: one stream
  double epochs = 0;                 // the end of the run in the sampler's epochs; 0: `steps` decides
  SamplerOptions options = {};       // the recipe's sampler.* keys
  SampleShape shape = {};            // the full shape of the samples, where they have one (clips)
  const Dataset* samples = nullptr;  // the data set; null: tests
};

// What a sampler needs of a run, beside its name in samplers.cpp: train::build and check_settings read it.
struct SamplerNeeds {
  bool losses = false;       // feedback(): per-sample losses of every step
  bool epochs = false;       // train.epochs must be set: its steps are not known in advance
  bool labels = false;       // Dataset::label_of
  bool whole_batch = false;  // it composes batches: neither islands that train apart nor weighted mixtures
  bool clips = false;        // the shape of samples changes
  bool retrieval = false;    // samples are queries (data.kind = "retrieval")
};

// The losses of samples that were trained on: unweighted, a sample's mean over its targets. All ranks have the same list, in the order of
// the steps and, within a step, of the global batch.
struct SampleFeedback {
  std::vector<int64_t> ids;
  std::vector<float> losses;
};

// Which samples each step draws: a function of facts, step and feedback so far. It is defined for the global batch and knows nothing of
// ranks; batch_split.h divides the batch. Draws of steps below known() may be asked for in any order, also by a loader's thread ahead of
// time, and do not change any more; those of epochs before the last advance() may be forgotten. feedback() may run beside draw(), but
// advance() and restored() must not.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // The sample ids of this step's global batch, in order.
  virtual std::vector<int64_t> ids(int64_t step) const = 0;
  virtual Draw draw(int64_t step) const { return {.ids = ids(step)}; }
  // The fraction of the run before this step, 0 to 1. Learning-rate schedules follow it.
  virtual double progress(int64_t step) const = 0;
  // Epochs completed before this step, as a fraction.
  virtual double epoch(int64_t step) const = 0;
  // The samples drawn from each stream before this step. These numbers alone decide what comes next.
  virtual std::vector<int64_t> positions(int64_t step) const = 0;
  // The draws of steps below this are known. Whoever reaches it hands over all feedback and calls advance().
  virtual int64_t known() const { return std::numeric_limits<int64_t>::max(); }
  // The steps of the whole run: final once known() has reached it, else an estimate above known().
  virtual int64_t steps() const = 0;
  // Decides the draws from known() on. All ranks call it after the same step with the same feedback.
  virtual void advance() {}
  virtual void feedback(const SampleFeedback& /*losses*/) {}
  // Equal where the next draws are equal: ranks compare it after advance().
  virtual uint64_t hash() const { return 0; }
  // Its schedule as a table for the log, where it has one.
  virtual std::string schedule_text() const { return {}; }
  // Whether a run is evaluated after so many steps, beside eval.every.
  virtual bool evaluates_after(int64_t /*steps*/) const { return false; }
  // What the statistics of batch normalisation are computed from before an evaluation after so many steps; none: they stay.
  virtual std::vector<Draw> norm_draws(int64_t /*steps*/) const { return {}; }
  // What it decided for the epoch that this step begins, for the log and the metrics: "kept_share" and the like. Empty: the step begins
  // none.
  virtual std::vector<std::pair<std::string, double>> metrics(int64_t /*step*/) const { return {}; }
  // State that depends on feedback, by logical name, for snapshots. The tensors are the sampler's own: restoring writes into them, and
  // then calls restored().
  virtual mesh::NamedTensors state() { return {}; }
  virtual void restored() {}
};

// The sampler called `name` in data.sampler. Refuses an unknown name and suggests the nearest. The list is in samples/samplers.cpp.
std::unique_ptr<Sampler> make_sampler(const std::string& name, const SamplerFacts& facts);

const SamplerNeeds& sampler_needs(const std::string& name);

// The names make_sampler knows.
std::vector<std::string> sampler_names();

}  // namespace cairn::data
