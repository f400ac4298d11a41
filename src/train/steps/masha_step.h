#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/enum_names.h"
#include "base/schema.h"
#include "parallel/plan.h"
#include "sync/masha/masha.h"
#include "train/step_methods.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Settings;

// Which elements the ranks of masha1 send.
enum class MashaIndices { independent, common };
inline constexpr base::EnumName<MashaIndices> kMashaIndicesNames[] = {{MashaIndices::independent, "independent"},
                                                                      {MashaIndices::common, "common"}};
// How differences are scaled before they are applied.
enum class Precondition { none, adam };
inline constexpr base::EnumName<Precondition> kPreconditionNames[] = {{Precondition::none, "none"}, {Precondition::adam, "adam"}};
// Who maximises the loss.
enum class Adversary { none, embedding };
inline constexpr base::EnumName<Adversary> kAdversaryNames[] = {{Adversary::none, "none"}, {Adversary::embedding, "embedding"}};

// The recipe's train.masha.* keys.
struct MashaStepOptions {
  double density = 0.1;
  double down_density = 1;
  MashaIndices indices = MashaIndices::independent;
  double refresh = 0;
  int64_t refresh_batches = 8;
  Precondition precondition = Precondition::none;
  double halve_above = 10;
  Adversary adversary = Adversary::none;
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
