// Group relative policy optimization (GRPO, arXiv:2402.03300) on given rollouts: answers that a policy has sampled, each with its
// advantage over the other answers to its prompt. With the model's probability p of a token, p_old that of the policy that sampled it and
// p_ref that of a reference model, the loss of a token is
//
//   -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + beta (p_ref / p - log(p_ref / p) - 1),    r = p / p_old
//
// (model/losses/grpo.h). Sampling, rewards and the log-probabilities of the other models come with the data, so a step is an ordinary one.
#include "train/steps/grpo_step.h"

#include <utility>

#include "base/check.h"
#include "train/job.h"

namespace cairn::train {
namespace {

using model::GrpoOptions;

constexpr base::EnumName<GrpoOptions::Normalisation> kLossTypeNames[] = {{GrpoOptions::Normalisation::sequence, "grpo"},
                                                                         {GrpoOptions::Normalisation::tokens, "bnpo"},
                                                                         {GrpoOptions::Normalisation::length, "dr_grpo"}};

GrpoOptions options_of(const Settings& settings) {
  GrpoOptions options = settings.step_options<GrpoOptions>();
  options.length = settings.data.length;
  return options;
}

std::unique_ptr<model::Objective> grpo_objective(const Settings& settings) { return model::make_grpo(options_of(settings)); }

std::unique_ptr<Step> make_grpo_step(const StepContext& context) {
  Job& job = context.job;
  Engine& engine = job.engine;
  const GrpoOptions options = options_of(job.config.settings);
  mesh::Batch first;
  job.data.samples->fill(std::vector<int64_t>{job.data.samples->training().first}, first);
  if (options.beta > 0 && !first.fields.contains("reference_log_probs"))
    base::fail_input("train.grpo.beta = {}: {} has no \"reference_log_probs\" to stay close to. Give them, or set train.grpo.beta = 0.",
                     options.beta, job.data.origin);
  engine.objective = model::make_grpo(options);
  Execution run = in_turn(parallel::execute);
  if (engine.pipeline) run = [&engine](std::span<const parallel::Pass> passes) { return engine.pipeline->run(passes); };
  return make_step(std::move(run), job.config.settings.train.check_every);
}

}  // namespace

StepMethod grpo_method() {
  return {.name = "grpo",
          .help = "answers with advantages, which a policy gave",
          .needs = {.rollouts = true,
                    .announces_writes = true,
                    .limits = {{Feature::fp8, "probabilities in fp8 would count as a change of the policy: leave it out"},
                               {Feature::cuda_graph, "batches of rollouts have lengths of their own, which a graph has not: leave it out"}}},
          .make = make_grpo_step,
          .options = StepOptions::from(grpo_schema),
          .objective = grpo_objective};
}

base::Schema<GrpoOptions> grpo_schema() {
  using O = GrpoOptions;
  return {"train.grpo",
          "Group relative policy optimization, which data.kind = \"rollouts\" is trained by: answers with advantages and log-probabilities.",
          {{"loss_type", &O::normalisation,
            "What the loss is divided by: grpo: each answer by its tokens, then by the number of answers; bnpo: by all tokens of the step; "
            "dr_grpo: by the number of answers times data.length.",
            kLossTypeNames},
           {"clip_low", &O::clip_low, "How far the ratio of a token's probabilities may move down.", base::between(0, 1), {"epsilon"}},
           {"clip_high", &O::clip_high, "How far it may move up.", base::at_least(0), {"epsilon_high"}},
           {"beta", &O::beta, "Weight of the KL divergence from the reference model, whose log-probabilities the data give.",
            base::at_least(0)},
           {"temperature", &O::temperature, "At which the answers were sampled: logits are divided by it.", base::more_than(0)}}};
}

}  // namespace cairn::train
