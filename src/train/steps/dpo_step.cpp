// Direct preference optimization (DPO). A sample is a pair of answers to one prompt, chosen y+ and rejected y-. With the model's
// log-probability log p(y) of an answer and that of a frozen reference model log q(y), the loss of a pair is
//
//   -log sigmoid(beta ((log p(y+) - log q(y+)) - (log p(y-) - log q(y-))))
//
// Two passes over each micro-batch: one at the reference weights for log q, without gradients, and one that learns. The reference is the
// model as the run began (ReferenceWeights). Along pp the micro-batches of a step go through the pipeline twice: first all of them at the
// reference weights. Along cp the log-probability of an answer is a sum over ranks (model/losses/dpo.cpp).
#include "train/steps/dpo_step.h"

#include <utility>

#include "base/checksum.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "parallel/pass.h"
#include "train/job.h"
#include "train/state/full_state.h"
#include "train/steps/reference_weights.h"

namespace cairn::train {
namespace {

// Chosen and rejected answers as rows of one batch; the two rows of a pair follow each other.
mesh::Batch rows_of(const mesh::Batch& pairs) {
  mesh::Batch rows{.ids = pairs.ids, .weights = pairs.weights, .fields = {}, .progress = pairs.progress};
  for (const std::string name : {"tokens", "targets"})
    rows.fields[name] = {at::stack({pairs.field("chosen_" + name), pairs.field("rejected_" + name)}, 1).flatten(0, 1),
                         mesh::Field::Shape::rows};
  return rows;
}

// The same rows, each a sample of its own.
mesh::Batch each_alone(const mesh::Batch& rows) {
  mesh::Batch alone = rows;
  alone.ids = rows.ids.repeat_interleave(2);
  alone.weights = at::Tensor();
  for (auto& [name, field] : alone.fields) field.shape = mesh::Field::Shape::per_sample;
  return alone;
}

// A pass over the same micro-batch, at other weights and with another objective.
parallel::Pass pass_like(const parallel::Pass& pass, const model::Weights& at, mesh::Batch batch, const model::Objective& objective) {
  return {.model = pass.model,
          .at = at,
          .buffers = pass.buffers,
          .axes = pass.axes,
          .batch = std::move(batch),
          .objective = objective,
          .random = pass.random,
          .trace = pass.trace,
          .memory = pass.memory,
          .context = pass.context,
          .options = pass.options,
          .progress = pass.progress};
}

// Identifies the copied weights in any layout: a checksum of the full tensors in the format that passes read. Collective.
uint64_t reference_checksum(Job& job, const std::vector<bool>& copied) {
  const at::ScalarType format = job.config.settings.train.precision == Precision::bf16 ? at::kBFloat16 : at::kFloat;
  base::Checksum sum;
  comm::Group& step_group = *job.engine.step_group;
  for (const StateTensor& one : parameter_state(job)) {
    if (!copied[one.parameter]) continue;
    for (const mesh::NamedTensor& whole : gather_whole(job, {one})) {  // on the first rank
      const at::Tensor host = whole.tensor.to(at::TensorOptions().dtype(format).device(at::kCPU)).contiguous();
      sum.add({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
    }
  }
  auto value = static_cast<int64_t>(step_group.rank() == 0 ? sum.value() : 0);
  step_group.broadcast({&value, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "reference model"}).wait_host();
  return static_cast<uint64_t>(value);
}

std::unique_ptr<model::Objective> dpo_objective(const Settings& settings) {
  return model::make_dpo(settings.step_options<model::DpoOptions>());
}

std::unique_ptr<Step> make_dpo(const StepContext& context) {
  Job& job = context.job;
  Engine& engine = job.engine;
  // The weights as passes read them, in whatever precision.
  const auto reference = std::make_shared<const ReferenceWeights>(*engine.model, engine.store->sharded_weights(), context.trained);
  job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::parameters, reference->bytes());
  job.reference = reference_checksum(job, reference->copied());
  engine.objective = dpo_objective(job.config.settings);
  Execution run = in_turn(parallel::execute);
  if (engine.pipeline) run = [&engine](std::span<const parallel::Pass> passes) { return engine.pipeline->run(passes); };
  return make_step(dpo_execution(reference, std::move(run)), job.config.settings.train.check_every);
}

double dpo_forward_passes(const Settings&) { return 4; }  // forward, two gradients, and the reference model's forward

}  // namespace

StepMethod dpo_method() {
  return {.name = "dpo",
          .help = "pairs of answers, compared with a frozen reference model",
          .needs = {.pairs = true,
                    .reference = true,
                    .announces_writes = true,
                    .limits = {{Feature::fp8,
                                "the reference model of a preference computes in bf16, and rounding to fp8 would count as a "
                                "preference: leave it out"},
                               {Feature::cuda_graph, "a preference needs two passes, and the first is not captured: leave it out"},
                               {Feature::local_steps, "preference data is not supported on islands that step separately: use all_reduce"}},
                    .forward_passes = dpo_forward_passes},
          .make = make_dpo,
          .options = StepOptions::from(dpo_schema),
          .objective = dpo_objective};
}

base::Schema<model::DpoOptions> dpo_schema() {
  using O = model::DpoOptions;
  return {"train.dpo",
          "Direct preference optimization, which data.kind = \"preference\" is trained by. The reference is the model as the run started.",
          {{"beta", &O::beta, "How much moving away from the reference model costs.", base::more_than(0)},
           {"label_smoothing", &O::label_smoothing, "The share of pairs taken to be the wrong way round.", base::between(0, 0.5)}}};
}

Execution dpo_execution(std::shared_ptr<const model::Weights> reference, Execution run) {
  std::shared_ptr<const model::Objective> answers = model::make_answer_losses();
  return [reference = std::move(reference), answers = std::move(answers), run = std::move(run)](std::span<const parallel::Pass> passes) {
    std::vector<parallel::Pass> before, learning;
    for (const parallel::Pass& pass : passes) {
      mesh::Batch rows = rows_of(pass.batch);
      before.push_back(pass_like(pass, *reference, each_alone(rows), *answers));
      parallel::Pass& last = learning.emplace_back(pass_like(pass, pass.at, std::move(rows), pass.objective));
      last.into = pass.into;
      last.weight = pass.weight;
      last.recompute = pass.recompute;
    }
    const std::vector<model::Losses> found = run(before);
    for (size_t i = 0; i < learning.size(); ++i)  // only ranks that run the last blocks have answers, and only they read them
      if (found[i].per_sample.defined()) learning[i].batch.fields["reference"] = {found[i].per_sample, mesh::Field::Shape::whole};
    return run(learning);
  };
}

}  // namespace cairn::train
