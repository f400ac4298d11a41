#include "train/between_steps.h"

#include "train/experts/expert_biases.h"
#include "train/experts/expert_homes.h"
#include "train/spectral/spectral_rounds.h"
#include "train/steps/mosa_step.h"
#include "train/supernet/channel_order.h"

namespace cairn::train {

// Each is defined in the source that has its name, and null where the recipe does not ask for it.

std::vector<std::unique_ptr<BetweenSteps>> make_between_steps(Job& job, comm::World& world) {
  using Maker = std::unique_ptr<BetweenSteps> (*)(Job&, comm::World&);
  static const std::vector<Maker> makers{
      make_module_turns,     // adapters in modules
      make_spectral_rounds,  // model.spectral
      make_channel_order,    // supernet
      make_expert_biases,    // model.moe.balance = bias
      make_expert_homes,     // expert.placement = fssdp
  };
  std::vector<std::unique_ptr<BetweenSteps>> made;
  for (const Maker make : makers)
    if (auto one = make(job, world)) made.push_back(std::move(one));
  return made;
}

}  // namespace cairn::train
