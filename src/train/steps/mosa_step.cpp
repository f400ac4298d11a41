#include "train/steps/mosa_step.h"

#include <utility>

#include "base/check.h"
#include "model/decoder/adapter_matrix.h"
#include "model/losses/consistency.h"
#include "model/model.h"
#include "optim/needs.h"
#include "parallel/plan.h"
#include "train/active_parts.h"
#include "train/between_steps.h"
#include "train/job.h"
#include "train/settings.h"
#include "train/step_passes.h"

namespace cairn::train {
namespace {

constexpr uint64_t kFirstDraw = 0, kSecondDraw = 1;

bool takes_two_passes(const model::AdapterOptions& adapter) { return adapter.consistency > 0 || adapter.second_loss > 0; }

std::string chosen_by_modules(const Settings& settings) { return settings.adapter.shape().in_modules() ? "model.adapter.kind = mosa" : ""; }

// The losses of both passes. The objective of each owns what it refers to.
struct TwoLosses {
  std::unique_ptr<model::Objective> first, second;
};

TwoLosses two_losses(std::shared_ptr<const model::Objective> own, const model::AdapterOptions& adapter) {
  const double half = adapter.consistency / 2;
  return {make_consistency(own, {.own = 1, .agreement = half}), make_consistency(own, {.own = adapter.second_loss, .agreement = half})};
}

std::unique_ptr<Step> make_mosa(const StepContext& context) {
  Engine& engine = context.job.engine;
  const model::AdapterOptions& adapter = context.job.config.settings.adapter;
  const bool two = takes_two_passes(adapter);
  std::shared_ptr<const model::Objective> second;
  if (two) {
    TwoLosses losses = two_losses(std::move(engine.objective), adapter);
    engine.objective = std::move(losses.first);
    second = std::move(losses.second);
  }
  StepPasses passes{.list = [second](const Engine&, const StepInput&) -> std::vector<WeightedPass> {
                      if (!second) return {{.draw = kFirstDraw}};
                      return {{.draw = kFirstDraw, .reads = {{.pass = 1, .as = model::kOtherLogits}}},
                              {.objective = second.get(), .draw = kSecondDraw, .reads = {{.pass = 0, .as = model::kOtherLogits}}}};
                    },
                    .leave_out_layers = true};
  return make_passes_step(std::move(passes), engine.pipeline.get(), context.job.config.settings.train.check_every);
}

void check_mosa(const Settings& settings, const parallel::Plan& plan) {
  const model::AdapterOptions& adapter = settings.adapter;
  if (chosen_by_modules(settings).empty()) return;
  if (settings.model.dropout > 0)
    base::fail_input(
        "model.dropout = {}: the passes of model.adapter.kind = mosa are to differ by their modules alone. Leave it out, or use "
        "model.adapter.dropout.",
        settings.model.dropout);
  if (!optim::optimizer_needs(settings.optim.kind).elementwise())
    base::fail_input(
        "optim.kind = {}: works on whole matrices, and the modules of model.adapter.kind = mosa are scattered elements. Use {}.",
        settings.optim.kind, optim::elementwise_optimizers());
  if (takes_two_passes(adapter) && plan.mesh.extent("pp") > 1 && plan.routing == parallel::Routing::random)
    base::fail_input(
        "pipeline.routing = random: each of the two passes of model.adapter.kind = mosa would end on ranks of its own. Use fixed, or "
        "model.adapter.consistency = 0.");
}

double mosa_forward_passes(const Settings& settings) { return takes_two_passes(settings.adapter) ? 6 : 3; }

int64_t mosa_passes_at_once(const Settings& settings) { return takes_two_passes(settings.adapter) ? 2 : 1; }

// The modules that passes draw, before each step.
class ModuleTurns final : public BetweenSteps {
 public:
  explicit ModuleTurns(Job& job) : job_(job), two_(takes_two_passes(job.config.settings.adapter)) {
    const std::vector<model::Parameter>& all = job.engine.model->parameters();
    for (const sync::FullParameter& trained : job.engine.trained.full)
      for (const model::Parameter& one : all)
        if (one.name == trained.name) {
          elements_ += one.elements();
          if (one.modules > 1) modules_.push_back(&one);
        }
  }

  void before_step(int64_t step) override {
    const base::Random random = job_.engine.random.for_index(static_cast<uint64_t>(step));
    const int64_t updates = updates_done(job_);
    active_ = elements_;
    change_active(job_.engine, [&](optim::ActiveOptimizer& active) {
      for (const model::Parameter* one : modules_) {
        const bool takes_turn = draws(*one, random, kFirstDraw) || (two_ && draws(*one, random, kSecondDraw));
        takes_turn ? active.activate(one->name, updates) : active.freeze(one->name, updates);
        if (!takes_turn) active_ -= one->elements();
      }
    });
  }

  sync::StepMetrics metrics() override { return {{"active_share", static_cast<double>(active_) / static_cast<double>(elements_)}}; }

 private:
  // Whether a pass with these draws computes with this module.
  bool draws(const model::Parameter& one, const base::Random& step, uint64_t draw) const {
    const int64_t fixed = job_.engine.options.module;
    return (fixed >= 0 ? fixed : model::drawn_module(random_of_pass(step, draw), one.module_of, one.modules)) == one.module;
  }

  Job& job_;
  bool two_;
  std::vector<const model::Parameter*> modules_;  // of trained matrices and biases
  int64_t elements_ = 0, active_ = 0;             // trained; of these, those that the last step has changed
};

}  // namespace

std::unique_ptr<BetweenSteps> make_module_turns(Job& job, comm::World& /*world*/) {
  const model::AdapterShape shape = job.config.settings.adapter.shape();
  return shape.in_modules() && shape.modules > 1 ? std::make_unique<ModuleTurns>(job) : nullptr;
}

StepMethod mosa_method() {
  return {.name = "mosa",
          .help = "adapters in modules that take turns",
          .needs = {.announces_writes = true,
                    .sample_losses = true,
                    .limits = several_passes_limits(
                        {{Feature::fp8, "two passes are compared, and rounding to fp8 would count as a difference: leave it out"},
                         {Feature::stream, "two passes keep each other's logits, whole: leave it out"},
                         {Feature::pairs, "pairs of answers are compared in their own way: use model.adapter.kind = lora"},
                         {Feature::rollouts, "answers with advantages are learned from in their own way: use model.adapter.kind = lora"},
                         {Feature::retrieval, "encoders have no logits: use model.adapter.kind = lora"}}),
                    .forward_passes = mosa_forward_passes,
                    .passes_at_once = mosa_passes_at_once},
          .make = make_mosa,
          .check = check_mosa,
          .chosen_by = chosen_by_modules};
}

}  // namespace cairn::train
