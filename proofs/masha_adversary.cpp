// A small decoder trained against a perturbation of its embeddings, as a recipe trains it: with whole messages, with compressed ones, and
// without an adversary.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "proofs/masha_network.h"
#include "study/curves_svg.h"
#include "train/build.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kSteps = 400, kBetweenLooks = 50;
constexpr double kRadius = 0.05;
// The pull towards the reference holds the point back: on average it moves by step / (2 - refresh). Everything compared moves the same way.
constexpr double kRate = 1e-3, kRefresh = 0.5, kRateHeldBack = kRate * (2 - kRefresh);

base::Recipe hardened(const ProofOptions& options, const Assignments& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 2
    embed = 32
    heads = 2
    kv_heads = 2
    mlp = 64
    [data]
    tokenizer = "bytes"
    length = 24
    stories_bytes = 400000
    [train]
    global_batch = 16
    [optim]
    schedule = "linear"
    warmup_steps = 20
    [train.masha]
    precondition = "adam"
    halve_above = 0
    adversary = "embedding"
    adversary_rate = 25
    refresh_batches = 1
  )",
                                            "masha proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  recipe.set("train.steps", kSteps, "proof");
  recipe.set("optim.learning_rate", kRate, "proof");
  recipe.set("train.masha.radius", kRadius, "proof");
  recipe.set("data.stories_seed", static_cast<int64_t>(options.seed), "--seed");
  if (!options.data.empty()) recipe.set("data.path", options.data, "--data");
  return with(std::move(recipe), sets);
}

// The loss of held-out samples at the worst perturbation that so many steps along the signs of the gradient find.
double robust_loss(train::Job& job) {
  constexpr int kClimbs = 15;
  const data::SampleRange held = job.data.samples->held_out();
  std::vector<int64_t> ids(static_cast<size_t>(std::min<int64_t>(held.count, 64)));
  std::iota(ids.begin(), ids.end(), held.first);
  mesh::Batch batch;
  job.data.samples->fill(ids, batch);
  at::Tensor perturbation = at::zeros({job.data.length, job.config.settings.model.embed});
  parallel::GradientReducer& flow = job.engine.store->reducer();
  double worst = 0;
  for (int i = 0; i < kClimbs; ++i) {
    batch.fields["perturbation"] = {perturbation, mesh::Field::Shape::whole};
    model::Values gradients;
    parallel::Pass pass = train::pass_over(job.engine, batch);
    pass.into = &job.engine.store->sink();
    pass.field_gradients = &gradients;
    flow.begin(1, 1, [](int64_t) {});
    const model::Losses losses = parallel::execute(pass);
    flow.finish();
    worst = std::max(worst, losses.sum.item<double>() / losses.count.item<double>());
    perturbation = (perturbation + gradients.take("perturbation").sign() * (kRadius / 4)).clamp(-kRadius, kRadius);
  }
  return worst;
}

struct Hardened {
  double robust = 0, bytes = 0;                   // at the end
  std::vector<std::pair<double, double>> course;  // bytes that rank 0 sent, robust loss
};

double bytes_sent(comm::World& world) {
  int64_t bytes = 0;
  for (const comm::Purpose purpose : {comm::Purpose::gradient, comm::Purpose::parameter, comm::Purpose::state})
    bytes += world.ledger().bytes_sent(world.rank(), purpose);
  return static_cast<double>(bytes);
}

Hardened harden(const base::Recipe& recipe) {
  Hardened result;
  comm::LocalNetwork network(kRanks);
  const auto errors = network.run([&](comm::World& world) {
    const auto job = train::build(world, recipe, {.out = {}, .cache = {}, .terminal = nullptr}, {});
    while (job->progress.steps_done < kSteps) {
      train::take_step(*job);
      ++job->progress.steps_done;
      if (world.rank() == 0 && job->progress.steps_done % kBetweenLooks == 0)
        result.course.emplace_back(bytes_sent(world), robust_loss(*job));
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  result.robust = result.course.back().second;
  result.bytes = static_cast<double>(network.ledger().total().bytes);
  return result;
}

}  // namespace

void masha_adversary(const ProofOptions& options, Findings& findings, base::Log& log) {
  struct Case {
    std::string what;
    Assignments sets;
    Hardened found = {};
  };
  std::vector<Case> cases{{"whole messages", {"train.method=masha1", "train.masha.density=1", "train.masha.refresh=1"}},
                          {"masha1 rand-10%",
                           {"train.method=masha1", "train.masha.density=0.1", fmt::format("train.masha.refresh={}", kRefresh),
                            fmt::format("optim.learning_rate={}", kRateHeldBack)}},
                          {"no adversary, whole messages",
                           {"train.method=masha1", "train.masha.density=1", "train.masha.refresh=1", "train.masha.adversary=none"}}};
  CurvesPicture picture{.title = "A decoder against a perturbation of its embeddings, 4 ranks",
                        .across = "bytes that rank 0 sent",
                        .up = "held-out loss at the worst perturbation found",
                        .logarithmic_across = true};
  for (Case& one : cases) {
    one.found = harden(hardened(options, one.sets));
    picture.curves.push_back({one.what, curve_colour(picture.curves.size()), one.found.course});
    log.info("adversary, {}: robust loss {:.4f}, {:.1f} MB", one.what, one.found.robust, one.found.bytes / 1e6);
  }
  write_curves(options.pictures, "masha-adversary", picture);
  const Hardened &whole = cases[0].found, &thin = cases[1].found, &blind = cases[2].found;
  findings.at_least("5. decoder trained without an adversary: robust loss, of that with one", 1, blind.robust / whole.robust, 1.05);
  findings.at_most("5. decoder against a perturbation, masha1 rand-10%: robust loss, of that with whole messages",
                   blind.robust / whole.robust, thin.robust / whole.robust, 1.05);
  findings.at_most("5. its bytes, of those with whole messages", 1, thin.bytes / whole.bytes, 0.5);
}

}  // namespace cairn::study
