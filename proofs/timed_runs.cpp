// Steps over blocks that take time: pipelines, and ranks that share state out.
#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "parallel/pass.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/schedule/extra_actions.h"
#include "parallel/state/parameter_store.h"
#include "proofs/timed_model.h"

namespace cairn::study {
namespace {

void on_local(int ranks, const comm::LinkModel& link, const std::function<void(comm::World&)>& body) {
  comm::LocalOptions options;
  options.link = link;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, options).run(body))
    if (error) std::rethrow_exception(error);
}

mesh::Batch timed_batch(const TimedBlocks& blocks) {
  mesh::Batch batch;
  batch.ids = at::arange(1);
  batch.fields["value.0"] = {at::zeros({1, blocks.boundary_elements})};
  return batch;
}

}  // namespace

PipelineTimes time_pipeline(const PipelineRun& run) {
  PipelineTimes times;
  times.peak_in_flight.resize(static_cast<size_t>(run.ranks));
  std::mutex mutex;
  on_local(run.ranks * run.dp * run.tp, run.link, [&](comm::World& world) {
    const std::unique_ptr<model::Model> model = make_timed_model(world, run.blocks);
    const std::unique_ptr<model::Objective> objective = make_timed_objective(run.blocks);
    const auto schedule = [&](int micro_batches) {
      return parallel::add_actions(
          parallel::make_schedule(
              {.name = run.schedule, .ranks = run.ranks, .stages_per_rank = run.stages_per_rank, .micro_batches = micro_batches}),
          {.recompute = run.recompute && run.recompute_ahead});
    };
    const parallel::Schedule first = schedule(run.micro_batches);
    parallel::Plan plan;
    plan.mesh.axes = {{"pp", run.ranks}, {"dp", run.dp}, {"tp", run.tp}};
    plan.rank_of_stage = first.rank_of_stage;
    plan.stage_blocks.assign(first.rank_of_stage.size(), run.blocks.blocks / static_cast<int64_t>(first.rank_of_stage.size()));
    comm::Group& along = world.group(plan.mesh.peers(world.rank(), "pp"), "pipeline");
    parallel::Pipeline pipeline(*model, plan, parallel::single_pipeline(along), schedule);
    const model::FlatWeights weights(model->layout(), at::empty({model->elements()}));
    mesh::FlatGradients sink(model->layout(), at::empty({model->elements()}), model->uses());
    mesh::Axes axes;
    if (run.tp > 1) axes.put("tp", world.group(plan.mesh.peers(world.rank(), "tp")));
    model::Buffers buffers;
    const mesh::Batch batch = timed_batch(run.blocks);
    const model::PassOptions options{.recompute_stage = run.recompute, .scatter_boundaries = run.scatter_boundaries};
    const std::vector<parallel::Pass> passes(static_cast<size_t>(run.micro_batches), parallel::Pass{.model = *model,
                                                                                                    .at = weights,
                                                                                                    .buffers = buffers,
                                                                                                    .axes = axes,
                                                                                                    .batch = batch,
                                                                                                    .objective = *objective,
                                                                                                    .into = &sink,
                                                                                                    .options = options,
                                                                                                    .recompute = run.recompute});
    double step_s = 0;
    std::vector<int64_t> before(static_cast<size_t>(world.size()), 0), sent(static_cast<size_t>(world.size()), 0);
    for (const bool counts : {false, true}) {
      for (int to = 0; to < world.size(); ++to)
        before[static_cast<size_t>(to)] = world.ledger().between(world.rank(), to, comm::Purpose::activation).bytes;
      world.everyone().barrier("step").wait_host();
      const auto begun = world.clock().now();
      sink.begin(run.micro_batches, nullptr);
      pipeline.run(passes);
      world.everyone().barrier("step").wait_host();
      if (counts) step_s = base::seconds(world.clock().now() - begun);
    }
    const std::lock_guard lock(mutex);
    times.step_s = std::max(times.step_s, step_s);
    times.peak_in_flight[static_cast<size_t>(along.rank())] = pipeline.peak_in_flight();
    for (int to = 0; to < world.size(); ++to)
      times.boundary_bytes_most =
          std::max(times.boundary_bytes_most,
                   world.ledger().between(world.rank(), to, comm::Purpose::activation).bytes - before[static_cast<size_t>(to)]);
  });
  return times;
}

double time_sharded_step(const ShardedRun& run) {
  constexpr int kSteps = 3;
  double longest = 0;
  std::mutex mutex;
  on_local(run.ranks, run.link, [&](comm::World& world) {
    const std::unique_ptr<model::Model> model = make_timed_model(world, run.blocks);
    const std::unique_ptr<model::Objective> objective = make_timed_objective(run.blocks);
    parallel::Plan plan;
    plan.mesh.axes = {{"shard", run.ranks}};
    plan.zero = run.zero;
    const auto options = at::TensorOptions().dtype(at::kFloat);
    parallel::ParameterStore store({.world = world,
                                    .model = *model,
                                    .plan = plan,
                                    .trained = std::vector<bool>(model->parameters().size(), true),
                                    .master = options,
                                    .compute = options,
                                    .accumulate_unsharded = false});
    for (const parallel::ParameterSlice& piece : store.pieces()) piece.value.zero_();
    store.updated();
    const model::Weights& weights = store.weights();
    const model::PassOptions pass_options{.prefetch_blocks = run.prefetches ? 1 : 0};
    mesh::FlatGradients held(model->layout(), at::empty({model->elements()}), model->uses());  // until backward is over
    const mesh::Axes axes;
    model::Buffers buffers;
    const mesh::Batch batch = timed_batch(run.blocks);
    const auto step = [&] {
      store.reducer().begin(1, 1, nullptr);
      parallel::Pass pass{.model = *model,
                          .at = weights,
                          .buffers = buffers,
                          .axes = axes,
                          .batch = batch,
                          .objective = *objective,
                          .options = pass_options};
      pass.into = &store.sink();
      if (!run.reduces_early) {
        held.begin(1, nullptr);
        pass.into = &held;
      }
      parallel::execute(pass);
      for (size_t i = model->parameters().size(); !run.reduces_early && i-- > 0;) {
        const mesh::ParamId id{static_cast<int32_t>(i)};
        store.sink().add(id, held.layout().view(held.flat(), id));
      }
      store.reducer().finish();
      store.updated();
      if (!run.reduces_early && run.zero < 3)
        for (size_t i = 0; i < model->parameters().size(); ++i) weights.get({static_cast<int32_t>(i)});
    };
    step();
    world.everyone().barrier("steps").wait_host();
    const auto begun = world.clock().now();
    for (int i = 0; i < kSteps; ++i) step();
    world.everyone().barrier("steps").wait_host();
    const double step_s = base::seconds(world.clock().now() - begun) / kSteps;
    const std::lock_guard lock(mutex);
    longest = std::max(longest, step_s);
  });
  return longest;
}

}  // namespace cairn::study
