// Direct preference optimization (DPO). A sample is a pair of answers to one prompt, chosen y+ and rejected y-. With the model's
// log-probability log p(y) of an answer and that of a frozen reference model log q(y), the loss of a pair is
//
//   -log sigmoid(beta ((log p(y+) - log q(y+)) - (log p(y-) - log q(y-))))
//
// Two passes over each micro-batch: one at the reference weights for log q, without gradients, and one that learns. The reference is the
// model as the run began (ReferenceWeights).
#include "train/steps/dpo_step.h"

#include <utility>

#include "kernels/aten.h"
#include "parallel/pass.h"
#include "train/job.h"
#include "train/steps/reference_weights.h"

namespace cairn::train {
namespace {

// Chosen and rejected answers as rows of one batch; the two rows of a pair follow each other.
mesh::Batch rows_of(const mesh::Batch& pairs) {
  mesh::Batch rows{.ids = pairs.ids, .weights = pairs.weights, .fields = {}, .progress = pairs.progress};
  for (const std::string name : {"tokens", "targets"})
    rows.fields[name] = {at::stack({pairs.field("chosen_" + name), pairs.field("rejected_" + name)}, 1).flatten(0, 1),
                         mesh::Field::Shape::whole};
  return rows;
}

// The same rows, each a sample of its own.
mesh::Batch each_alone(const mesh::Batch& rows) {
  mesh::Batch alone = rows;
  alone.ids = rows.ids.repeat_interleave(2);
  alone.weights = at::Tensor();
  return alone;
}

std::unique_ptr<Step> make_dpo(const StepContext& context) {
  Job& job = context.job;
  const parallel::ParameterStore& store = *job.engine.store;
  // The weights as passes read them, in whatever precision.
  const auto reference =
      std::make_shared<const ReferenceWeights>(*job.engine.model, store.weights(), store.shard().layout, context.trained);
  job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::parameters, reference->bytes());
  job.reference = reference->checksum();
  job.engine.objective = model::make_dpo(job.config.settings.step_options<model::DpoOptions>());
  return make_step(in_turn(dpo_passes(reference)), job.config.settings.train.check_every);
}

double dpo_forward_passes(const Settings&) { return 4; }  // forward, two gradients, and the reference model's forward

}  // namespace

StepMethod dpo_method() {
  return {.name = "dpo",
          .help = "pairs of answers, compared with a frozen reference model",
          .needs = {.pairs = true,
                    .reference = true,
                    .limits = {{Feature::fp8,
                                "the reference model of a preference computes in bf16, and rounding to fp8 would count as a "
                                "preference: leave it out"},
                               {Feature::loss_chunks, "pairs of answers are compared whole: leave it out, or lower train.micro_batch"},
                               {Feature::cuda_graph, "a preference needs two passes, and the first is not captured: leave it out"},
                               {Feature::cp, "a preference compares whole answers, which cp splits: use mesh.dp or mesh.tp"},
                               {Feature::zero3, "the reference model is kept whole on every rank: use memory.zero = 2"},
                               {Feature::local_steps, "preference data is not supported on islands that step separately: use all_reduce"},
                               {Feature::pp,
                                "a preference needs two passes, which a pipeline does not run yet: use mesh.dp, mesh.tp or "
                                "memory.zero"}},
                    .forward_passes = dpo_forward_passes},
          .make = make_dpo,
          .options = StepOptions::from(dpo_schema)};
}

base::Schema<model::DpoOptions> dpo_schema() {
  using O = model::DpoOptions;
  return {"train.dpo",
          "Direct preference optimization, which data.kind = \"preference\" is trained by. The reference is the model as the run started.",
          {{"beta", &O::beta, "How much moving away from the reference model costs.", base::more_than(0)},
           {"label_smoothing", &O::label_smoothing, "The share of pairs taken to be the wrong way round.", base::between(0, 0.5)}}};
}

Passes dpo_passes(std::shared_ptr<const model::Weights> reference) {
  std::shared_ptr<const model::Objective> answers = model::make_answer_losses();
  return [reference = std::move(reference), answers = std::move(answers)](const parallel::Pass& last) {
    mesh::Batch rows = rows_of(last.batch);
    const mesh::Batch alone = each_alone(rows);
    const model::Losses before = parallel::execute({.model = last.model,
                                                    .at = *reference,
                                                    .buffers = last.buffers,
                                                    .axes = last.axes,
                                                    .batch = alone,
                                                    .objective = *answers,
                                                    .random = last.random,
                                                    .trace = last.trace,
                                                    .memory = last.memory});
    rows.fields["reference"] = {before.per_sample, mesh::Field::Shape::whole};
    return parallel::execute({.model = last.model,
                              .at = last.at,
                              .buffers = last.buffers,
                              .axes = last.axes,
                              .batch = rows,
                              .objective = last.objective,
                              .into = last.into,
                              .weight = last.weight,
                              .random = last.random,
                              .trace = last.trace,
                              .memory = last.memory,
                              .options = last.options,
                              .recompute = last.recompute});
  };
}

}  // namespace cairn::train
