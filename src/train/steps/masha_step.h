#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/schema.h"
#include "parallel/plan.h"
#include "sync/masha/masha.h"
#include "train/step_methods.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Settings;

// The recipe's train.masha.* keys.
struct MashaStepOptions {
  double density = 0.1;
  double down_density = 1;
  std::string indices = "independent";
  double refresh = 0;
  int64_t refresh_batches = 8;
  std::string precondition = "none";
  double halve_above = 10;
  std::string adversary = "none";
  double radius = 0.1;
  double adversary_rate = 1;
};
base::Schema<MashaStepOptions> masha_schema();

StepMethod masha1_method();
StepMethod masha2_method();

// A step as an iteration of sync/masha/masha.h: ranks along dp are its devices, the trained parameters minimise the loss, and the
// adversary, where there is one, moves a perturbation of the token embeddings, [length, embed] and the same for all samples, to where the
// loss is highest. Differences are taken on the step's batch; what they are taken to is averaged over the batches of the steps that follow.
struct MashaParts {
  sync::MashaOptions options;
  uint64_t seed = 0;
  comm::Group& devices;
  int64_t perturbed_length = 0;  // positions that the adversary has; 0: there is none
  double radius = 0;             // that no element of the perturbation exceeds
  double adversary_rate = 1;     // of its step to the model's
};
MashaParts masha_parts(const Settings& settings, comm::Group& devices, int64_t length);
std::unique_ptr<Step> make_masha_step(Engine& engine, MashaParts parts);

}  // namespace cairn::train
