#include "proofs/costed_model.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/clock.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/generate/sharded_generator.h"
#include "parallel/layout/make_plan.h"
#include "parallel/pass.h"
#include "parallel/state/parameter_store.h"
#include "proofs/hand_built.h"

namespace cairn::study {
namespace {

class CostedBlock final : public model::Block {
 public:
  CostedBlock(comm::World& world, const model::Block& inner, double seconds, std::vector<TimeSpan>* computed)
      : world_(world), inner_(inner), seconds_(seconds), computed_(computed) {}

  const model::Card& card() const override { return inner_.card(); }
  void forward(model::Values& values, model::Saved* keep, const model::Call& call) const override {
    if (seconds_ > 0) values.get(card().reads.front());  // what else it reads it only adds to
    take("");
    inner_.forward(values, keep, call);
  }
  void backward_input(model::Values& gradients, model::Saved& saved, const model::Call& call) const override {
    if (seconds_ > 0) gradients.get(card().writes.front());
    take(" input gradient");
    inner_.backward_input(gradients, saved, call);
  }
  void backward_weight(model::Saved&& saved, mesh::Gradients& into, const model::Call& call) const override {
    take(" weight gradient");
    inner_.backward_weight(std::move(saved), into, call);
  }
  void plain(model::Values& values, const model::Call& call) const override { inner_.plain(values, call); }

 private:
  void take(const char* what) const {
    if (seconds_ <= 0) return;
    const auto begun = world_.clock().now();
    world_.timer(begun + std::chrono::nanoseconds(static_cast<int64_t>(seconds_ * 1e9))).wait();
    if (computed_) computed_->push_back({card().name + what, base::seconds(begun), base::seconds(world_.clock().now())});
  }

  comm::World& world_;
  const model::Block& inner_;
  double seconds_;
  std::vector<TimeSpan>* computed_;
};

class CostedModel final : public model::Model {
 public:
  explicit CostedModel(std::unique_ptr<model::Model> inner) : inner_(std::move(inner)) {
    for (const model::Parameter& parameter : inner_->parameters()) add(parameter);
  }
  using model::Model::add;
  const model::Model& inner() const { return *inner_; }
  model::Buffers make_buffers(const at::TensorOptions& options) const override { return inner_->make_buffers(options); }

 private:
  std::unique_ptr<model::Model> inner_;
};

void on_links(int ranks, const comm::LinkModel& link, const std::function<void(comm::World&)>& body) {
  comm::LocalOptions options;
  options.link = link;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, options).run(body))
    if (error) std::rethrow_exception(error);
}

}  // namespace

std::unique_ptr<model::Model> make_costed_model(comm::World& world, std::unique_ptr<model::Model> inner, double block_s,
                                                std::vector<TimeSpan>* computed) {
  auto model = std::make_unique<CostedModel>(std::move(inner));
  for (const auto& block : model->inner().blocks()) {
    const std::string& name = block->card().name;
    const bool costs = name.ends_with(".attention") || name.ends_with(".mlp");
    model->add(std::make_unique<CostedBlock>(world, *block, costs ? block_s : 0, computed));
  }
  return model;
}

TpStepTimes time_tp_step(const TpStepRun& run) {
  TpStepTimes times;
  on_links(run.tp, run.link, [&](comm::World& world) {
    std::vector<TimeSpan> computed;
    const auto model = make_costed_model(world, model::make_decoder(run.shape), run.block_s, &computed);
    parallel::LayoutOptions options;
    options.mesh.tp = run.tp;
    parallel::Plan plan = parallel::make_plan(options, run.tp);
    parallel::fit_to_model(plan, *model, {}, run.length);
    const auto kept = at::TensorOptions().dtype(at::kFloat);
    parallel::ParameterStore store({.world = world,
                                    .model = *model,
                                    .plan = plan,
                                    .trained = std::vector<bool>(model->parameters().size(), true),
                                    .master = kept,
                                    .compute = kept,
                                    .accumulate_unsharded = true});
    for (const parallel::ParameterSlice& piece : store.pieces()) piece.value.fill_(0.01);
    store.updated();
    mesh::Axes axes;
    comm::Group& tp = world.everyone();
    if (run.tp > 1) axes.put("tp", tp);
    model::Buffers buffers = model->make_buffers(kept);
    const auto objective = model::make_next_token();
    const mesh::Batch batch = random_tokens({.samples = run.batch, .length = run.length, .vocab = run.shape.vocab});
    model::PassOptions pass_options;
    pass_options.overlap_residual_sums = run.overlap_residual_sums;
    parallel::Pass pass{.model = *model,
                        .at = store.weights(),
                        .buffers = buffers,
                        .axes = axes,
                        .batch = batch,
                        .objective = *objective,
                        .options = pass_options};
    if (run.training) pass.into = &store.sink();
    for (const bool counts : {false, true}) {
      computed.clear();
      tp.barrier("step").wait_host();
      const auto begun = world.clock().now();
      if (run.training) store.reducer().begin(1, 1, nullptr);
      parallel::execute(pass);
      if (run.training) store.reducer().finish();
      const double end_s = base::seconds(world.clock().now() - begun);
      tp.barrier("step").wait_host();
      if (!counts || world.rank() != 0) continue;
      times.step_s = end_s;
      for (TimeSpan& one : computed) one.begin_s -= base::seconds(begun), one.end_s -= base::seconds(begun);
      times.computed = computed;
      for (const comm::OperationRecord& one : tp.history())
        if (one.begun >= begun && one.purpose == comm::Purpose::activation)
          times.summed.push_back({one.name, base::seconds(one.begun - begun), base::seconds(one.ended - begun)});
    }
  });
  return times;
}

double time_tp_token(const TpStepRun& run) {
  constexpr int64_t kTimed = 4;
  std::vector<double> at;
  on_links(run.tp, run.link, [&](comm::World& world) {
    const auto model = make_costed_model(world, model::make_decoder(run.shape), run.block_s);
    const parallel::Plan plan = parallel::generation_plan({.axes = {{"tp", run.tp}}, .ranks = {}, .parts = {}}, *model);
    const auto weights =
        parallel::allocate_shards(*model, plan, parallel::model_shard(*model, plan, world.rank()), at::TensorOptions().dtype(at::kFloat));
    weights->flat().fill_(0.01);
    model::Buffers buffers = model->make_buffers(at::kFloat);
    parallel::ShardedGenerator sharded({.world = world, .model = *model, .plan = plan, .weights = *weights, .buffers = buffers});
    if (!sharded.drives()) return sharded.follow();
    const model::GenerateRequest request{{1, 2, 3}};
    const model::GenerateOptions options{.tokens = kTimed + 1, .length_max = run.shape.length, .sampling = {.temperature = 0}};
    sharded.generate({&request, 1}, options, [&](int64_t, int32_t) {
      at.push_back(base::seconds(world.clock().now()));
      return true;
    });
    sharded.close();
  });
  return (at.back() - at.front()) / kTimed;
}

double time_one_sum(const TpStepRun& run) {
  double seconds = 0;
  on_links(run.tp, run.link, [&](comm::World& world) {
    const at::Tensor x = at::zeros({run.batch * run.length, run.shape.embed});
    comm::Group& tp = world.everyone();
    tp.barrier("before").wait_host();
    const auto begun = world.clock().now();
    tp.all_reduce(x, comm::Reduce::sum, {comm::Purpose::activation, "x"}).wait_host();
    if (world.rank() == 0) seconds = base::seconds(world.clock().now() - begun);
  });
  return seconds;
}

}  // namespace cairn::study
