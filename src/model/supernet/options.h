// The recipe's supernet.* keys: delayed shrinking, and the two schedules that it is compared with.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::model {

// When the subnets begin to train.
enum class ShrinkMethod {
  deps,   // after `shrink_at` of the run, their learning rate rising from 0 (delayed epsilon-shrinking)
  early,  // from the first step on
  late    // after `shrink_at` of the run, for which the whole network has a schedule of its own; then a second one
};
inline constexpr base::EnumName<ShrinkMethod> kShrinkMethodNames[] = {
    {ShrinkMethod::deps, "deps"}, {ShrinkMethod::early, "early"}, {ShrinkMethod::late, "late"}};

// How a random subnet is drawn.
enum class SubnetSampling {
  random,   // each depth and each width by itself
  compound  // the widths of a stage follow its depth: the third of three depths goes with the third of three widths
};
inline constexpr base::EnumName<SubnetSampling> kSubnetSamplingNames[] = {{SubnetSampling::random, "random"},
                                                                          {SubnetSampling::compound, "compound"}};

struct SupernetOptions {
  ShrinkMethod method = ShrinkMethod::deps;
  std::vector<int64_t> depth = {};   // layers of a stage; empty: all of them
  std::vector<int64_t> expand = {};  // channels in the middle of a layer of a cnn, as multiples of what it reads; empty: all of them
  std::vector<int64_t> mlp = {};     // channels in the middle of the MLPs of a decoder; empty: all of them
  double shrink_at = 0.5;
  double ramp = 0.02;
  double restart_ratio = 0.3;  // late: of the second schedule's highest learning rate
  int64_t nets_per_step = 4;
  SubnetSampling sampling = SubnetSampling::random;
  bool distill = true;
  double temperature = 1;
  bool reorganise = true;
  int64_t calibration_samples = 2000;

  bool any() const { return !depth.empty() || !expand.empty() || !mlp.empty(); }
  bool operator==(const SupernetOptions&) const = default;
};

base::Schema<SupernetOptions> supernet_schema();

struct ElasticShape;

// The choices of a model: what its subnets may have.
struct SubnetChoices {
  std::vector<int64_t> depth;                // of every stage, ascending; the last is all layers
  std::vector<std::vector<int64_t>> widths;  // by layer, ascending; the last is all channels
};
// Refuses choices that the model cannot have, and widths that are the same after rounding.
SubnetChoices subnet_choices(const SupernetOptions& options, const ElasticShape& shape);

}  // namespace cairn::model
