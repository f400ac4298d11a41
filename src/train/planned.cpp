#include "train/planned.h"

#include <algorithm>

#include "base/check.h"
#include "data/corpus.h"
#include "data/images/image_dataset.h"
#include "data/retrieval/dataset.h"
#include "data/samples/packing.h"
#include "data/table/table.h"
#include "kernels/aten.h"
#include "model/trainable.h"
#include "optim/needs.h"
#include "optim/optimizer.h"
#include "parallel/activations/recompute.h"
#include "parallel/layout/make_plan.h"
#include "parallel/layout/model_shard.h"
#include "parallel/layout/settle_context.h"
#include "snapshot/pretrained.h"
#include "train/build/check_settings.h"
#include "train/build/make_plan.h"
#include "train/fp8_linear.h"
#include "train/given_plan.h"
#include "train/loss_chunks.h"
#include "train/model_from.h"
#include "train/parameter_piece.h"
#include "train/step_methods.h"

namespace cairn::train {

int64_t pass_tokens(const Settings& s, const parallel::Plan& plan, int64_t length) {
  if (s.layout.context.plan != parallel::ContextPlan::fixed) return s.layout.context.tokens_per_rank;
  return plan.micro_batch * std::max<int64_t>(1, length);
}

namespace {

model::BuiltModel picture_task_of(const Settings& s) {
  const data::ImageOutline outline = data::image_outline(s.data);
  const model::DataShape inputs{
      .classes = outline.classes, .size = s.data.images.size, .channels = outline.channels, .labels = outline.class_names};
  if (s.model.from.empty()) return model::build_model(s.model, inputs);
  return model::build_model(s.model, inputs, snapshot::read_outline(s.model.from).shape, s.adapter.shape());
}

model::BuiltModel task_of(const Settings& s) {
  const data::DataNeeds& needs = s.data.needs();
  if (needs.table) {
    const data::Table table = data::read_table(s.data);
    return model::build_model(s.model, {.features = table.features(), .classes = static_cast<int64_t>(table.classes.size())});
  }
  if (needs.clips)
    return model::build_model(s.model, {.classes = s.data.clips.classes, .frames = s.data.clips.frames, .size = s.data.clips.size});
  if (needs.images) return picture_task_of(s);
  if (!needs.tokens) return model::build_model(s.model, {.features = needs.features, .classes = needs.classes});
  const int64_t positions = data::positions_needed(s.data);
  if (s.model.from.empty())
    return model::build_model(s.model, {.vocab = data::vocab_bound(s.data), .length = positions, .retrieval = needs.retrieval});
  // The tokenizer is checked when the data is opened.
  const model::DecoderShape shape = snapshot::read_outline(s.model.from).shape;
  return model::build_model(s.model, {.vocab = shape.vocab, .length = positions, .retrieval = needs.retrieval}, shape, s.adapter.shape());
}

// recompute.slice, or what it is by default: the largest that recompute.budget_mib allows, else as slice_tokens says.
int64_t slice_of(const Settings& s, const model::Model& model, const parallel::Plan& plan, int64_t length,
                 const parallel::ActivationSetup& setup) {
  const parallel::RecomputeOptions& again = s.layout.recompute;
  if (again.mode != parallel::RecomputeMode::stream || again.slice > 0 || again.budget_mib == 0)
    return parallel::slice_tokens(again, length);
  return parallel::slice_within(static_cast<int64_t>(again.budget_mib * (1 << 20)), model, setup, length,
                                parallel::rank_of_blocks(plan, model.blocks().size()));
}

parallel::ActivationSetup keeping(const Settings& s, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu,
                                  const model::Fp8LinearLayers* fp8) {
  const int64_t rows = s.data.needs().sequences(), tokens = pass_tokens(s, plan, length) * rows;
  const int64_t head_slice = parallel::head_slice_tokens(s.layout.recompute);
  const int64_t head_slices = head_slice > 0 ? (tokens + head_slice - 1) / head_slice : 1;
  parallel::ActivationSetup setup{.tokens = tokens,
                                  .share = 1.0 / (plan.mesh.extent("tp") * plan.mesh.extent("cp")),  // except inputs that layers gather
                                  .element_bytes = s.train.precision == Precision::bf16 ? 2 : 4,
                                  .on_gpu = on_gpu && plan.mesh.extent("tp") == 1,  // tensors that are gathered along tp are kept
                                  .fp8 = fp8,
                                  .loss_chunks = std::max(head_slices, loss_chunks_of(s, model, plan, length, on_gpu))};
  const int64_t slice = slice_of(s, model, plan, length, setup);
  setup.slices = slice > 0 ? (length + slice - 1) / slice : 0;
  return setup;
}

}  // namespace

std::vector<parallel::ActivationBytes> kept_by_blocks(const Settings& s, const model::Model& model, const parallel::Plan& plan,
                                                      int64_t length, bool on_gpu) {
  const std::unique_ptr<model::Fp8LinearLayers> fp8 = fp8_linear_layers(s, model, plan);
  return parallel::activation_bytes(model, keeping(s, model, plan, length, on_gpu, fp8.get()));
}

planner::StepRules step_rules(const Settings& s, const model::Model& model, const parallel::Plan& plan, int64_t length, bool on_gpu) {
  const parallel::RecomputeOptions& again = s.layout.recompute;
  const bool host = again.inputs == parallel::RecomputeInputs::host;
  if (again.mode == parallel::RecomputeMode::budget && again.budget_mib == 0)
    base::fail_input("recompute.mode = budget needs recompute.budget_mib: the memory that activations of one micro-batch may take");
  const bool stage = again.mode == parallel::RecomputeMode::stage && plan.mesh.extent("pp") > 1;
  if (host && !stage && again.mode != parallel::RecomputeMode::full && again.mode != parallel::RecomputeMode::selective)
    base::fail_input("recompute.inputs = host: activation offload does not work with recompute.mode = {}: use full or selective{}",
                     base::enum_name(parallel::kRecomputeModeNames, again.mode),
                     again.mode == parallel::RecomputeMode::stage ? ", or mesh.pp above 1" : "");
  if (host && !on_gpu)
    base::fail_input(
        "recompute.inputs = host: activation offload is for GPUs, and this run is on the CPU: leave it out, or use --device cuda");
  if (host && s.train.cuda_graph)
    base::fail_input("recompute.inputs = host: a CUDA graph cannot capture its copies: use train.cuda_graph = false");
  planner::StepRules rules{.trained = model::trainable(model, s.model.train),
                           .recompute_stage = again.mode == parallel::RecomputeMode::stage,
                           .recompute_last = !again.except_last || again.mode == parallel::RecomputeMode::stream,
                           .accumulate_unsharded = s.layout.memory.accumulate_unsharded,
                           .partition_activations = s.layout.memory.partition_activations,
                           .scatter_boundaries = s.layout.pipeline.scatter_boundaries,
                           .prefetch_blocks = s.layout.memory.prefetch_blocks,
                           .whole_parameters = !optim::optimizer_needs(s.optim.kind).elementwise(),
                           .split_update = optim::optimizer_needs(s.optim.kind).split,
                           .bucket_bytes = static_cast<int64_t>(s.sync.bucket_mib * (1 << 20)),
                           .reference_passes = step_method(s).needs.reference ? 1 : 0,
                           .asks_before_update = s.train.on_bad_step != OnBadStep::stop,
                           .step_plans = s.layout.context.plan != parallel::ContextPlan::fixed};
  if (const int tp = plan.mesh.extent("tp"); rules.whole_parameters && rules.split_update == optim::SplitUpdate::nothing && tp > 1)
    base::fail_input("optim.kind = {}: works on whole matrices, which mesh.tp = {} splits: use {}, or mesh.tp = 1", s.optim.kind, tp,
                     optim::elementwise_optimizers());
  if (again.mode != parallel::RecomputeMode::none && again.mode != parallel::RecomputeMode::stage) {
    const std::unique_ptr<model::Fp8LinearLayers> fp8 = fp8_linear_layers(s, model, plan);
    const parallel::ActivationSetup setup = keeping(s, model, plan, length, on_gpu, fp8.get());
    rules.recompute =
        parallel::recomputed_blocks({again.mode, again.modules, again.every, static_cast<int64_t>(again.budget_mib * (1 << 20))}, model,
                                    setup, parallel::rank_of_blocks(plan, model.blocks().size()));
    rules.slice = slice_of(s, model, plan, length, setup);
  }
  return rules;
}

int64_t optimizer_bytes(const Settings& settings, const model::Model& model) {
  const std::vector<bool> trained = model::trainable(model, settings.model.train);
  std::vector<optim::ParameterPiece> pieces;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!trained[i]) continue;
    const model::Parameter& parameter = model.parameters()[i];
    const at::Tensor nowhere = at::empty(parameter.shape, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
    pieces.push_back(make_piece(parameter, nowhere, nowhere));
  }
  int64_t bytes = 0;
  for (const mesh::NamedTensor& state : optim::make_optimizer(settings.optim, std::move(pieces))->state())
    bytes += static_cast<int64_t>(state.tensor.nbytes());
  return bytes;
}

Planned planned(base::Recipe recipe, int ranks, const parallel::Plan* given, bool on_gpu, const model::ContextLinks& links) {
  if (given) use_layout_of(*given, recipe, ranks);
  Planned p;
  p.settings = read_settings(recipe);
  const Settings& s = p.settings;
  p.plan = make_plan(s, ranks);
  if (given) take_from(*given, p.plan);
  p.task = task_of(s);
  const data::DataNeeds& needs = s.data.needs();
  p.batch = {.samples = s.train.global_batch,
             .rows = needs.sequences(),
             .length = needs.tokens ? s.data.length : std::max<int64_t>(1, p.task.model->positions()),
             .length_varies = needs.length_varies(),
             .documents = data::separates_documents(s.data.packing)};
  parallel::fit_to_model(p.plan, *p.task.model, s.layout.pipeline, p.batch.length, s.layout.place);
  p.context_reason = parallel::settle_context(p.plan, *p.task.model,
                                              {.sequences = p.plan.micro_batch * p.batch.rows,
                                               .length = p.batch.length,
                                               .documents = p.batch.documents,
                                               .element_bytes = parallel::compute_bytes(p.plan)},
                                              links);
  check_placements(s, *p.task.model, p.plan);
  p.rules = step_rules(s, *p.task.model, p.plan, p.batch.length, on_gpu);
  if (const auto objective = step_method(s).objective) p.task.objective = objective(s);
  p.rules.measures = static_cast<int64_t>(model::measures_of(*p.task.model, *p.task.objective).size());
  return p;
}

}  // namespace cairn::train
