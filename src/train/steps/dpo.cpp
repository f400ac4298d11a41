#include "train/steps/dpo.h"

#include <utility>

#include "kernels/aten.h"
#include "parallel/pass.h"

namespace cairn::train {
namespace {

// Chosen and rejected answers as rows of one batch, each pair's two after each other.
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

}  // namespace

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
                              .recompute = last.recompute,
                              .offload_inputs = last.offload_inputs,
                              .overlap = last.overlap,
                              .late_sums = last.late_sums,
                              .draws_by_token = last.draws_by_token,
                              .recompute_stage = last.recompute_stage});
  };
}

}  // namespace cairn::train
