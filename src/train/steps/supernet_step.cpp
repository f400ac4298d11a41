#include "train/steps/supernet_step.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "model/losses/distillation.h"
#include "model/model.h"
#include "parallel/layout/model_shard.h"
#include "parallel/plan.h"
#include "train/job.h"
#include "train/settings.h"
#include "train/step_passes.h"
#include "train/supernet/shrinking.h"
#include "train/supernet/subnet_space.h"

namespace cairn::train {
namespace {

std::string chosen_by_supernet(const Settings& settings) {
  const model::SupernetOptions& o = settings.model.supernet;
  if (!o.any()) return "";
  return !o.depth.empty() ? "supernet.depth" : !o.expand.empty() ? "supernet.expand" : "supernet.mlp";
}

// What the list of a step refers to, and the numbers of the last step.
class SupernetPasses {
 public:
  explicit SupernetPasses(Job& job)
      : job_(job),
        options_(job.config.settings.model.supernet),
        space_(subnet_space(job)),
        random_(base::Random(static_cast<uint64_t>(job.config.settings.train.seed)).for_purpose("supernet")) {
    if (options_.distill) distillation_ = model::make_distillation(options_.temperature, job.engine.objective->separates());
  }

  // The same on all ranks: subnets are drawn by the number of the step.
  std::vector<WeightedPass> list(const Engine& engine, const StepInput& input) {
    weight_ = subnet_weight(options_, job_.schedule, input.batch.progress, input.learning_rate);
    learning_rate_ = input.learning_rate;
    subnets_.clear();
    std::vector<WeightedPass> passes{{.name = "whole"}};
    for (int64_t i = 1; i < options_.nets_per_step && weight_ > 0; ++i) {
      const base::Random random = random_.for_index(static_cast<uint64_t>(input.step)).for_index(static_cast<uint64_t>(i));
      const model::Subnet& subnet = subnets_.emplace_back(i == 1 ? space_.smallest() : space_.draw(random));
      WeightedPass& pass = passes.emplace_back(WeightedPass{.name = i == 1 ? "smallest" : fmt::format("random_{}", i - 1)});
      pass.weight = weight_;
      pass.draw = static_cast<uint64_t>(i);
      pass.options = engine.options;
      pass.options->subnet = &subnet;
      if (!distillation_) continue;
      pass.objective = distillation_.get();
      pass.reads = {{.pass = 0, .as = model::kTeacherLogits}};
    }
    return passes;
  }

  std::vector<std::string> measured() const { return {"smallest"}; }

  sync::StepMetrics metrics() const {
    double work = 1;
    for (const model::Subnet& one : subnets_) work += flops_of(one, space_.shape) / flops_of(space_.whole(), space_.shape);
    return {{"nets", static_cast<double>(subnets_.size() + 1)},
            {"subnet_weight", weight_},
            {"subnet_learning_rate", weight_ * learning_rate_},
            {"subnet_work", work}};
  }

 private:
  Job& job_;
  model::SupernetOptions options_;
  SubnetSpace space_;
  base::Random random_;
  std::unique_ptr<model::Objective> distillation_;  // null: subnets learn the labels
  std::deque<model::Subnet> subnets_;               // of this step
  double weight_ = 0, learning_rate_ = 0;           // of this step
};

std::unique_ptr<Step> make_supernet(const StepContext& context) {
  Engine& engine = context.job.engine;
  const auto passes = std::make_shared<SupernetPasses>(context.job);
  engine.objective = with_pass_losses(std::move(engine.objective), passes->measured());
  StepPasses several{.list = [passes](const Engine& of, const StepInput& input) { return passes->list(of, input); },
                     .measured = passes->measured(),
                     .leave_out_layers = true,
                     .metrics = [passes] { return passes->metrics(); }};
  return make_passes_step(std::move(several), engine.pipeline.get(), context.job.config.settings.train.check_every);
}

void check_supernet_step(const Settings& settings, const parallel::Plan& plan) {
  check_shrinking(settings);
  const model::SupernetOptions& o = settings.model.supernet;
  if (o.any() && plan.mesh.extent("pp") > 1 && plan.routing == parallel::Routing::random)
    base::fail_input("pipeline.routing = random: the networks of a supernet's step would end on ranks of their own. Use fixed.");
}

// On average over the run.
double supernet_forward_passes(const Settings& settings) {
  const model::SupernetOptions& o = settings.model.supernet;
  const model::SubnetShares shares = model::subnet_shares(o);
  const double subnets = shares.smallest + static_cast<double>(o.nets_per_step - 2) * shares.mean;
  return 3 * (1 + (1 - shrinking_begins(o)) * subnets);
}

}  // namespace

StepMethod supernet_method() {
  return {.name = "supernet",
          .help = "a network that contains smaller ones",
          .needs = {.announces_writes = true,
                    .sample_losses = true,
                    .limits = several_passes_limits(
                        {{Feature::fp8, "parts of weights have no fp8 codes: leave it out"},
                         {Feature::stream, "the networks of a step read whole logits: leave it out"},
                         {Feature::pairs, "pairs of answers are compared in their own way: leave supernet out"},
                         {Feature::rollouts, "answers with advantages are learned from in their own way: leave supernet out"},
                         {Feature::retrieval, "encoders have no logits: leave supernet out"}}),
                    .forward_passes = supernet_forward_passes},
          .make = make_supernet,
          .check = check_supernet_step,
          .chosen_by = chosen_by_supernet};
}

void check_elastic_stages(const Settings& settings, const model::Model& model, const parallel::Plan& plan) {
  const std::vector<int64_t>& depth = settings.model.supernet.depth;
  if (depth.empty() || plan.mesh.extent("pp") == 1) return;
  const int64_t always = *std::ranges::min_element(depth);
  const std::vector<int> ranks = parallel::rank_of_blocks(plan, model.blocks().size());
  const model::ElasticShape shape = model.elastic();
  std::map<int64_t, int> pipeline_rank;  // by stage of the model, of its layers that may be left out
  for (const model::ElasticLayer& layer : shape.layers) {
    if (layer.place < always) continue;
    for (size_t b = 0; b < ranks.size(); ++b) {
      const std::string& name = model.blocks()[b]->card().name;
      if (name != layer.name && !name.starts_with(layer.name + ".")) continue;
      const auto [found, first] = pipeline_rank.try_emplace(layer.stage, ranks[b]);
      if (found->second != ranks[b])
        base::fail_input(
            "mesh.pp = {}: supernet.depth leaves out layers from {} on, and {} is in another pipeline stage than those before it: layers "
            "that "
            "may be left out must share one. Use mesh.dp, or leave supernet.depth out.",
            plan.mesh.extent("pp"), always, layer.name);
    }
  }
}

}  // namespace cairn::train
