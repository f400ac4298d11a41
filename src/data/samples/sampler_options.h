// The recipe's sampler.* keys: what the samplers of data.sampler read.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::data {

// What becomes of the samples that are left at the end of a cycle of rs2, too few for a round.
enum class RoundTail { drop, carry };
inline constexpr base::EnumName<RoundTail> kRoundTailNames[] = {{RoundTail::drop, "drop"}, {RoundTail::carry, "carry"}};

// The score of a sample without a loss so far.
enum class UnseenScore { mean, max };
inline constexpr base::EnumName<UnseenScore> kUnseenScoreNames[] = {{UnseenScore::mean, "mean"}, {UnseenScore::max, "max"}};

struct SamplerOptions {
  // rs2
  double ratio = 0.1;
  bool replacement = false;
  bool fixed = false;  // the baseline: one random subset for the whole run
  bool stratify = false;
  RoundTail tail = RoundTail::drop;
  // seta, infobatch
  double prune = -1;  // -1: the method's own default
  int64_t groups = 10;
  double window = 0.5;
  double stop_at = 0.875;
  int64_t flush_steps = 64;
  UnseenScore unseen = UnseenScore::mean;
  // tas
  std::string clusters;  // a file with the query ids of one cluster per line; empty: sampler.groups clusters are made from model.from
  int64_t clusters_per_batch = 1;
  int64_t margin_bins = 10;
  // multigrid
  bool long_cycle = true;
  bool short_cycle = true;
  double epoch_factor = 1.5;
  std::vector<double> stages;  // epochs at which the learning rate falls
  double stage_factor = 0.1;
  int64_t norm_samples = 8;
  bool scale_lr = true;
  int64_t evaluations_per_shape = 3;
  int64_t precise_norm_batches = 200;

  bool operator==(const SamplerOptions&) const = default;
};

base::Schema<SamplerOptions> sampler_schema();

}  // namespace cairn::data
