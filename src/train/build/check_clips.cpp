#include "train/build/check_clips.h"

#include <numeric>

#include "base/check.h"
#include "data/sampler.h"
#include "data/samples/multigrid_schedule.h"
#include "model/model.h"
#include "model/needs.h"
#include "model/options.h"
#include "parallel/plan.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

// Every rank's part of a batch is whole groups, or a whole part of one.
void check_groups(const Settings& s, const data::GridShape& shape, int64_t ranks, int64_t fitting) {
  const int64_t batch = s.train.global_batch * shape.batch_factor, together = s.data.order.norm_samples, share = batch / ranks;
  if (batch % ranks != 0)
    base::fail_input("train.global_batch = {}: {} clips of {} frames of {} x {} do not divide over {} ranks. Use a multiple of {}.",
                     s.train.global_batch, batch, shape.frames, shape.size, shape.size, ranks, ranks);
  const bool over_ranks = share < together && together % share == 0 && ranks % (together / share) == 0;
  if (share % together != 0 && !over_ranks)
    base::fail_input(
        "sampler.norm_samples = {}: a rank has {} clips of {} frames of {} x {}, which are no whole groups. Use {}, or a "
        "train.global_batch that is a multiple of {}.",
        together, share, shape.frames, shape.size, shape.size, fitting, together * ranks);
  const int64_t part = s.train.micro_batch;
  if (part > 0 && part < share && (part % together != 0 || share % part != 0))
    base::fail_input(
        "train.micro_batch = {}: cuts the {} clips of a rank across groups of sampler.norm_samples = {}. Use a multiple of it that divides "
        "the batch, or 0.",
        part, share, together);
}

}  // namespace

void check_clips(const Settings& s, const parallel::Plan& plan) {
  const std::string& name = s.data.sampler;
  if (!data::sampler_needs(name).clips) return;
  if (!s.data.needs().clips)
    base::fail_input("data.sampler = {}: changes the shape of clips, and data.kind = {} has none. Set data.kind = clips.", name,
                     s.data.kind);
  if (const int pp = plan.mesh.extent("pp"); pp > 1)
    base::fail_input("mesh.pp = {}: data.sampler = {} changes what stages send each other from step to step. Use mesh.dp.", pp, name);
  if (const std::string& schedule = s.optim.schedule; !s.data.order.stages.empty() && schedule != "constant")
    base::fail_input("optim.schedule = {}: the learning rate falls at sampler.stages already. Set optim.schedule = constant.", schedule);
  const data::GridFacts facts{.frames = s.data.clips.frames, .size = s.data.clips.size, .epochs = s.train.epochs, .options = s.data.order};
  const std::vector<data::GridPhase> phases = data::multigrid_schedule(facts);
  int64_t ranks = plan.islands;
  for (const std::string& axis : parallel::kSampleAxes) ranks *= plan.mesh.extent(axis);
  int64_t fitting = s.data.order.norm_samples;  // the largest group that fits all shapes
  for (const data::GridPhase& phase : phases)
    for (const data::GridShape& shape : phase.cycle) fitting = std::gcd(fitting, s.train.global_batch * shape.batch_factor / ranks);
  for (const data::GridPhase& phase : phases)
    for (const data::GridShape& shape : phase.cycle) check_groups(s, shape, ranks, fitting);
  if (model::needs_of(s.model.kind).data != model::ModelNeeds::Data::clips) return;  // refused where the model is built
  const data::SampleShape least = data::smallest_shape(facts);
  model::build_model(s.model, {.classes = s.data.clips.classes, .frames = least.frames, .size = least.size});  // refuses what is too small
}

}  // namespace cairn::train
