#include "train/supernet/subnet_space.h"

#include "train/job.h"

namespace cairn::train {

SubnetSpace subnet_space(const model::Model& model, const Settings& settings) {
  const model::SupernetOptions& options = settings.model.supernet;
  SubnetSpace space{.shape = model.elastic(), .choices = {}, .sampling = options.sampling};
  space.choices = model::subnet_choices(options, space.shape);
  return space;
}

SubnetSpace subnet_space(const Job& job) { return subnet_space(*job.engine.model, job.config.settings); }

}  // namespace cairn::train
