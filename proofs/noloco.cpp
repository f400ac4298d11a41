// NoLoCo: islands that only ever talk with one other, drawn anew. The baseline is DiLoCo with heavy-ball momentum, written here by itself.
#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/island_latency.h"
#include "proofs/island_pilot.h"
#include "proofs/noloco_routes.h"
#include "study/claims.h"
#include "study/curves_svg.h"
#include "sync/islands/pairing.h"

namespace cairn::study {
namespace {

constexpr int64_t kEvery = 30;
constexpr int kIslands = 8, kDraws = 3;

sync::SyncOptions pairs(double momentum, double pull) {
  sync::SyncOptions options{.kind = "noloco"};
  options.noloco = {.every = kEvery, .outer_lr = 0.7, .outer_momentum = momentum, .pull = pull};
  options.noloco.final_model = sync::NolocoFinal::one;
  return options;
}

// DiLoCo with heavy-ball momentum, by one all-reduce a round: d <- alpha d + beta mean(theta - phi), phi <- phi + d, theta <- phi.
class HeavyBallDiloco final : public sync::Sync {
 public:
  HeavyBallDiloco(const sync::Replica& replica, double lr, double momentum) : replica_(replica), lr_(lr), momentum_(momentum) {
    for (const mesh::NamedTensor& one : replica.parameters) {
      slow_.push_back(one.tensor.clone());
      moves_.push_back(at::zeros_like(one.tensor));
    }
  }
  comm::Work after_step(const sync::StepFacts& facts) override {
    if (facts.step % kEvery != 0) return comm::Work::done();
    for (size_t i = 0; i < slow_.size(); ++i) {
      const at::Tensor& fast = replica_.parameters[i].tensor;
      at::Tensor progress = (fast - slow_[i]).contiguous();
      replica_.replica_group.all_reduce(progress, comm::Reduce::sum, {comm::Purpose::gradient, "progress"}).wait();
      moves_[i] = momentum_ * moves_[i] + lr_ * progress / replica_.replica_group.size();
      slow_[i] = slow_[i] + moves_[i];
      fast.copy_(slow_[i]);
    }
    return comm::Work::done();
  }
  void on_membership(const sync::Membership&) override {}

 private:
  sync::Replica replica_;
  double lr_, momentum_;
  std::vector<at::Tensor> slow_, moves_;
};

std::unique_ptr<sync::Sync> heavy_ball(const sync::Replica& replica) { return std::make_unique<HeavyBallDiloco>(replica, 0.7, 0.5); }

// Mean square distance from the mean, of rows.
double spread(const std::vector<at::Tensor>& all) {
  const at::Tensor mean = mean_of(all);
  double sum = 0;
  for (const at::Tensor& one : all) sum += (one - mean).square().sum().item<double>();
  return sum / static_cast<double>(all.size());
}

// How much of the spread of islands that learn nothing is left after some rounds, on average over draws.
double left_of_spread(int islands, double momentum, double pull, int64_t rounds, uint64_t seed) {
  constexpr int kTries = 16;  // numbers, which meet in the same groups
  sync::SyncOptions options = pairs(momentum, pull);
  options.noloco.every = 1;
  double left = 0;
  const int runs = islands == 4 ? 1000 : 100;  // with few islands some draws are far off: 100 would leave an error of a quarter of the mean
  for (int run = 0; run < runs; ++run) {
    std::vector<at::Tensor> first(static_cast<size_t>(islands)), last(static_cast<size_t>(islands));
    comm::LocalNetwork network(islands, {.seed = seed});
    for (const std::exception_ptr& error : network.run([&](comm::World& world) {
           const auto me = static_cast<size_t>(world.rank());
           mesh::NamedTensors parameters{{"x", at::empty({kTries}, at::kFloat)}};
           const std::vector<sync::FullParameter> whole{{"x", kTries}};
           base::Random(seed)
               .for_index(static_cast<uint64_t>(run))
               .for_index(me)
               .fill_normal({parameters[0].tensor.mutable_data_ptr<float>(), kTries});
           first[me] = parameters[0].tensor.clone();
           const auto rule = sync::make_sync(options, {.replica_group = world.everyone(),
                                                       .model_group = world.alone(),
                                                       .parameters = parameters,
                                                       .gradients = {},
                                                       .model = whole,
                                                       .steps = rounds,
                                                       .seed = seed * 100 + static_cast<uint64_t>(run)});
           rule->begin(0);
           for (int64_t step = 1; step <= rounds; ++step) rule->after_step({.step = step}).wait();
           last[me] = parameters[0].tensor.clone();
         }))
      if (error) std::rethrow_exception(error);
    left += spread(last) / spread(first) / runs;
  }
  return left;
}

void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("exactness");
  PilotRun run{.seed = options.seed, .islands = 2, .steps = 120, .sync = pairs(0.5, 0.7)};
  const PilotEnd two = run_pilot(run);
  run.reference = heavy_ball;
  findings.at_most("1. two islands, 4 rounds: largest difference to DiLoCo with heavy-ball momentum, written by itself", 0,
                   (two.own[0] - run_pilot(run).own[0]).abs().max().item<double>(), 1e-6);
  for (const int islands : {4, 8, 16}) {
    const double left = left_of_spread(islands, 0.5, 0.7, 10, options.seed);
    findings.at_most(
        fmt::format("1. {} islands without gradients, momentum 0.5, pull 0.7: share of the spread left after 10 rounds", islands), 1, left,
        0.03);
    findings.at_least(fmt::format("1. likewise, at least ({} islands)", islands), 1, left, 0.004);
  }
  findings.at_most("1. 8 islands, momentum 0, pull 1: share of the spread left after 6 rounds", 1, left_of_spread(8, 0, 1, 6, options.seed),
                   0.02);
}

struct Quality {
  double of_islands = 0, of_mean = 0, spread = 0;
};

Quality quality_of(const ProofOptions& options, const sync::SyncOptions& sync, bool reference,
                   std::vector<std::pair<double, double>>* curve) {
  Quality quality;
  for (int draw = 0; draw < kDraws; ++draw) {
    PilotRun run{
        .seed = options.seed * 10 + static_cast<uint64_t>(draw), .islands = kIslands, .sync = sync, .loss_every = draw == 0 ? 60 : 0};
    if (reference) run.reference = heavy_ball;
    const PilotEnd end = run_pilot(run);
    for (const at::Tensor& one : end.global_parameters) quality.of_islands += score_of(run, one).loss / kIslands / kDraws;
    const at::Tensor mean = mean_of(end.global_parameters);
    quality.of_mean += score_of(run, mean).loss / kDraws;
    for (const at::Tensor& one : end.global_parameters)
      quality.spread += ((one - mean).norm() / mean.norm()).item<double>() / kIslands / kDraws;
    if (draw == 0 && curve) *curve = end.losses[0];
  }
  return quality;
}

void training(const ProofOptions& options, Findings& findings, base::Log& log) {
  CurvesPicture picture{.title = "Pilot, 8 islands: test loss of the first one's model", .across = "step", .up = "test loss"};
  const auto measured = [&](const char* name, const sync::SyncOptions& sync, bool reference = false) {
    Curve curve{name, curve_colour(picture.curves.size()), {}};
    const Quality quality = quality_of(options, sync, reference, &curve.points);
    picture.curves.push_back(std::move(curve));
    log.info("{}: test loss of islands {:.4f}, of their mean {:.4f}, spread {:.4f}", name, quality.of_islands, quality.of_mean,
             quality.spread);
    return quality;
  };
  const Quality all = measured("DiLoCo, heavy ball", {}, /*reference=*/true);
  const Quality two = measured("pairs", pairs(0.5, 0.7));
  const Quality loose = measured("pairs without a pull", pairs(0.5, 1e-4));
  findings.at_most("2. pilot, 8 islands: mean test loss of the islands to that of DiLoCo with heavy-ball momentum", all.of_islands,
                   two.of_islands, 1.03 * all.of_islands);
  findings.at_most("2. likewise, to pairs without a pull", loose.of_islands, two.of_islands, 0.92 * loose.of_islands);
  findings.at_most("2. distance of islands from their mean, relative", 0, two.spread, 0.03);
  findings.at_least("2. likewise, without a pull", 0, loose.spread, 0.10);
  write_curves(options.pictures, "noloco-loss", picture);
}

// 3. Nobody ever calls a collective, and in each round two tensors go each way.
void no_collective(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("messages");
  std::mutex lock;
  int64_t collectives = 0;
  PilotRun run{.seed = options.seed, .islands = kIslands, .steps = 300, .sync = pairs(0.5, 0.7)};
  run.before_collective = [&](int64_t) {
    const std::lock_guard guard(lock);
    ++collectives;
  };
  const PilotEnd end = run_pilot(run);
  const double rounds = 10, bytes = static_cast<double>(Perceptron(1).flat().numel()) * 4;
  double least = 1e300, most = 0;
  for (int island = 0; island < kIslands; ++island)
    for (const comm::Purpose purpose : {comm::Purpose::gradient, comm::Purpose::parameter}) {
      const double tensors = static_cast<double>(end.ledger.bytes_sent(island, purpose)) / bytes / rounds;
      least = std::min(least, tensors), most = std::max(most, tensors);
    }
  findings.at_most("3. collectives in 300 steps of 8 islands", 0, static_cast<double>(collectives), 0);
  findings.at_least("3. copies of the model sent by an island in a round: of progress, and of slow weights (least)", 1, least, 1);
  findings.at_most("3. likewise (most, with headers)", 1, most, 1.01);
}

// 4. Links whose delays vary: a pair waits for each other, a tree for the slowest of all.
void latency(const ProofOptions& options, Findings& findings, base::Log& log) {
  const comm::LinkModel link = varying_links();
  double before = 1e300;
  CurvesPicture picture{.title = "Time of one synchronisation, log-normal delays of 100 ms", .across = "islands", .up = "seconds"};
  picture.logarithmic_across = true;
  Curve of_pairs{"pairs", curve_colour(0), {}}, of_trees{"tree over all", curve_colour(1), {}};
  for (const int islands : {8, 32, 256, 1024}) {
    const int rounds = islands > 100 ? 3 : 100;
    const bool bare = islands > 100 && !options.full;
    const double pair = bare ? bare_pair_time(islands, rounds, link, options.seed) : pair_time(islands, rounds, link, options.seed),
                 tree = tree_time(islands, rounds, link, options.seed);
    of_pairs.points.emplace_back(islands, pair), of_trees.points.emplace_back(islands, tree);
    log.info("{} islands: pairs {:.3f} s, tree {:.3f} s", islands, pair, tree);
    if (islands == 8)
      findings.at_most("4. 8 islands: time of a round to that of the same messages without the rule",
                       bare_pair_time(8, rounds, link, options.seed), pair / bare_pair_time(8, rounds, link, options.seed), 1.1);
    if (islands == 8) findings.at_most("4. 8 islands: time of a round in pairs to that of a sum over a tree", tree, pair / tree, 0.5);
    if (islands >= 256)
      findings.at_most(fmt::format("4. {} islands: time of a round in pairs to that of a sum over a tree", islands), tree, pair / tree,
                       0.2);
    if (islands >= 256) findings.at_most(fmt::format("4. likewise, falling ({} islands)", islands), before, pair / tree, before);
    if (islands != 8) before = pair / tree;
  }
  picture.curves = {of_pairs, of_trees};
  write_curves(options.pictures, "noloco-latency", picture);

  // One island stands still for 10 s.
  std::mutex lock;
  std::vector<double> waits(kIslands);
  PilotRun run{.seed = options.seed, .islands = kIslands, .steps = 90, .sync = pairs(0.5, 0.7)};
  run.step_s = 0.01;
  run.after = [&](comm::World& world, sync::Sync& rule, int64_t step) {
    for (const auto& [name, value] : rule.metrics())
      if (name == "stall_s" && step == 60) {
        const std::lock_guard guard(lock);
        waits[static_cast<size_t>(world.rank())] = value;
      }
    if (world.rank() == 3 && step == 45) world.timer(world.clock().now() + std::chrono::seconds(10)).wait();
  };
  run_pilot(run);
  double late = 0;
  for (int island = 0; island < kIslands; ++island) late += island != 3 && waits[static_cast<size_t>(island)] > 5 ? 1 : 0;
  findings.at_most("4. one of 8 islands stands still for 10 s: others that wait for it in that round", kIslands - 1, late, 1);
}

}  // namespace

void prove_noloco(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  training(options, findings, log);
  no_collective(options, findings, log);
  latency(options, findings, log);
  prove_routes(options, findings, log);
}

}  // namespace cairn::study
