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

// A step is one iteration of MASHA (sync/masha/masha.h). The ranks along dp are its devices. The trained parameters minimise the loss. An
// adversary, if there is one, maximises it: it moves a perturbation of the token embeddings, [length, embed], which is the same for all
// samples. See masha_step.cpp.
struct MashaParts {
  sync::MashaOptions options;
  uint64_t seed = 0;
  comm::Group& devices;
  int64_t perturbed_length = 0;  // positions that the adversary perturbs; 0: there is no adversary
  double radius = 0;             // the largest absolute value of an element of the perturbation
  double adversary_rate = 1;     // the adversary's step size divided by the model's
};
MashaParts masha_parts(const Settings& settings, comm::Group& devices, int64_t length);
std::unique_ptr<Step> make_masha_step(Engine& engine, MashaParts parts);

}  // namespace cairn::train
