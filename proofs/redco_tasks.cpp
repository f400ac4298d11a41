// Redco's three functions: one trainer for language models, meta-learning, reinforcement, privacy and federations; predictions in order;
// the same curve on any number of ranks. The baselines are those of each method, and one process.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "examples/blobs.h"
#include "examples/examples.h"
#include "study/claims.h"
#include "task/predictor.h"
#include "task/trainer.h"

namespace cairn::study {
namespace {

// The body on ranks that are threads of this process.
void on_ranks(int ranks, uint64_t seed, const std::function<void(task::Deployer&)>& body, int tp = 1) {
  const auto ended = comm::LocalNetwork(ranks).run([&](comm::World& world) {
    task::Deployer deployer(world, {.seed = seed, .tp = tp});
    body(deployer);
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
}

// 5. Each example reaches what was set for it.
void examples_reach(const ProofOptions& options, Findings& findings, base::Log& log) {
  for (const examples::Example& example : examples::examples()) {
    for (uint64_t seed = options.seed; seed < options.seed + (options.full ? 5 : 1); ++seed) {
      log.info("{}, seed {}", example.name, seed);
      examples::Outcome outcome;
      on_ranks(1, seed, [&](task::Deployer& deployer) { outcome = example.run(deployer, /*quick=*/false); });
      const std::string claim =
          fmt::format("5. {}{}: {}", example.name, options.full ? fmt::format(", seed {}", seed) : "", outcome.measure);
      if (outcome.at_most) {
        findings.at_most(claim, outcome.baseline, outcome.reached, outcome.target);
      } else {
        findings.at_least(claim, outcome.baseline, outcome.reached, outcome.target);
      }
    }
  }
}

// 5. What private SGD promises: no example moves the sum by more than the clip, and the noise is as large as said.
void privacy(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("privacy");
  const base::Random random = base::Random(options.seed).for_purpose("privacy");
  const task::TrainStep step = examples::private_step();
  const task::Task<examples::Point> task = examples::classification();
  const task::Params params = task::mlp({8, 32, 4}, random.for_name("start"));
  const auto examples = examples::blobs(random.for_name("centres"), random.for_name("points"), 64, 4, 8, 3);
  const auto norm_of = [](const task::Params& sums) {
    double squares = 0;
    for (const mesh::NamedTensor& one : sums.all()) squares += one.tensor.square().sum().item<double>();
    return std::sqrt(squares);
  };
  const auto sums_of = [&](const std::vector<examples::Point>& of) { return step.part(random, params, task.collate(of)).sums; };
  const task::Params all = sums_of(examples);
  double most = 0;
  for (size_t left_out = 0; left_out < examples.size(); ++left_out) {
    std::vector<examples::Point> others = examples;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(left_out));
    most = std::max(most, norm_of(task::add_scaled(all, sums_of(others), -1)));
  }
  findings.at_most("5. private_sgd: most that one example changes the sum of gradients (baseline: the sum itself)", norm_of(all), most,
                   examples::kPrivateClip * (1 + 1e-4));
  const task::Params nothing = all.map([](const at::Tensor& tensor) { return at::zeros_like(tensor); });
  double squares = 0, numbers = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    const double norm = norm_of(step.finish(random.for_index(i), nothing));
    squares += norm * norm;
  }
  for (const mesh::NamedTensor& one : all.all()) numbers += 50 * static_cast<double>(one.tensor.numel());
  findings.at_most("5. private_sgd: deviation of the noise, off by (as a share)", 0,
                   std::abs(std::sqrt(squares / numbers) / (examples::kPrivateNoise * examples::kPrivateClip) - 1), 0.02);
}

// 9. The same sources along tp: no line of them knows of it.
void along_tp(const ProofOptions& options, Findings& findings, base::Log& log) {
  for (const examples::Example& example : examples::examples()) {
    if (example.name == "language_model") continue;
    log.info("{} along tp=2", example.name);
    examples::Outcome two;
    on_ranks(
        2, options.seed,
        [&](task::Deployer& deployer) {
          const examples::Outcome own = example.run(deployer, /*quick=*/false);
          if (deployer.world().rank() == 0) two = own;
        },
        /*tp=*/2);
    const std::string claim = fmt::format("9. {} along tp=2, sources unchanged: {}", example.name, two.measure);
    two.at_most ? findings.at_most(claim, two.baseline, two.reached, two.target)
                : findings.at_least(claim, two.baseline, two.reached, two.target);
  }
}

std::vector<examples::Point> points(uint64_t seed, int64_t n) {
  return examples::blobs(base::Random(seed).for_purpose("centres"), base::Random(seed).for_purpose("points"), n, 5, 7, 3);
}

task::Params network(uint64_t seed) { return task::mlp({7, 33, 5}, base::Random(seed).for_purpose("start")); }

// 6. 103 examples in batches of 8 on 3 ranks.
void order(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("order of predictions");
  constexpr int64_t kExamples = 103, kBatch = 8;
  task::Task<examples::Point> task = examples::classification();
  task.predict = [](const base::Random& random, const task::Params& params, const task::Batch& batch) -> task::Outputs {
    return {{"logits", task::run_mlp(params, batch.field("x"))},
            {"drawn", task::normal(random, {batch.samples(), 3})},
            {"place", batch.ids.clone()}};
  };
  const auto examples = points(options.seed, kExamples);
  const auto predicted = [&](int ranks) {
    task::Outputs outputs;
    on_ranks(ranks, options.seed, [&](task::Deployer& deployer) {
      const task::Outputs found = task::Predictor(deployer, task, kBatch).predict(network(options.seed), examples);
      if (deployer.replica() == deployer.dp() - 1) outputs = found;
    });
    return outputs;
  };
  const task::Outputs one = predicted(1), three = predicted(3);
  int64_t differing = 0, moved = 0;
  for (const auto& [name, tensor] : one) differing += three.at(name).ne(tensor).sum().item<int64_t>();
  moved = three.at("place").ne(at::arange(kExamples, at::kLong)).sum().item<int64_t>();
  findings.at_most("6. 103 examples, batch 8, dp 3: outputs missing or too many", 0,
                   static_cast<double>(std::abs(three.at("logits").size(0) - kExamples)), 0);
  findings.at_most("6. outputs that are not in the order of the examples", 0, static_cast<double>(moved), 0);
  findings.at_most("6. numbers whose bits differ from one process", 0, static_cast<double>(differing), 0);
}

// 7. The same curve for every dp, with random numbers in the loss and weights that differ from example to example.
void determinism(const ProofOptions& options, Findings& findings, base::Log& log) {
  task::Task<examples::Point> task = examples::classification();
  task.loss = [](const base::Random& random, const task::Params& params, const task::Batch& batch, bool training) -> task::Loss {
    at::Tensor x = batch.field("x");
    if (training) x = x + 0.1 * task::normal(random, x.sizes());
    const at::Tensor weight = x.square().sum(-1);
    const at::Tensor losses = at::cross_entropy_loss(task::run_mlp(params, x), batch.field("label"), {}, at::Reduction::None);
    return {(losses * weight).sum(), weight.sum()};
  };
  const auto examples = points(options.seed, 500);
  const auto curve = [&](int ranks, uint64_t seed, int tp = 1) {
    log.info("determinism: {} ranks, tp {}", ranks, tp);
    std::vector<double> losses;
    const auto train = [&](task::Deployer& deployer) {
      task::Trainer trainer(
          deployer, task, network(options.seed),
          {.per_device_batch = 4, .global_batch = 48, .epochs = 10, .learning_rate = 3e-3, .max_grad_norm = 1, .warmup_ratio = 0.1});
      const task::Report report = trainer.fit(examples);
      if (deployer.world().rank() != 0) return;
      for (const task::StepReport& step : report.steps) losses.push_back(step.loss);
    };
    on_ranks(ranks, seed, train, tp);
    return losses;
  };
  const auto furthest = [](const std::vector<double>& a, const std::vector<double>& b) {
    double most = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  };
  const std::vector<double> one = curve(1, options.seed);
  const double shuffled = furthest(one, curve(1, options.seed + 1));
  findings.at_least("7. 100 steps: largest difference that another order of examples makes, which must be seen", 0, shuffled, 1e-2);
  for (const int ranks : {2, 3, 6, 12})
    findings.at_most(
        fmt::format("7. dp {}, the same global batch: largest loss difference to one process (baseline: another order)", ranks), shuffled,
        furthest(one, curve(ranks, options.seed)), 1e-5);
  for (const auto& [ranks, tp] : {std::pair{2, 2}, std::pair{3, 3}, std::pair{4, 2}})
    findings.at_most(fmt::format("9. {} ranks, tp {}: largest loss difference to one process (baseline: another order)", ranks, tp),
                     shuffled, furthest(one, curve(ranks, options.seed, tp)), 1e-5);
}

}  // namespace

void prove_redco_tasks(const ProofOptions& options, Findings& findings, base::Log& log) {
  examples_reach(options, findings, log);
  privacy(options, findings, log);
  along_tp(options, findings, log);
  order(options, findings, log);
  determinism(options, findings, log);
}

}  // namespace cairn::study
