// DiLoCo and streaming DiLoCo: islands that communicate seldom, little, and while they train. Baselines are an all-reduce at every step,
// plain averaging, and one island alone.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/island_pilot.h"
#include "proofs/island_text.h"
#include "proofs/paired_draws.h"
#include "study/claims.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

constexpr int64_t kEvery = 30;
constexpr int kIslands = 8;

double furthest(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// DiLoCo by fragments, one layer of the pilot each, by an all-reduce for each parameter: g = mean(theta - theta_m), b <- mu b + g,
// theta <- theta - eta (mu b + g). All fragments are sent at the end of a round, or one after the other.
class FragmentReference final : public sync::Sync {
 public:
  FragmentReference(const sync::Replica& replica, bool at_once) : replica_(replica), at_once_(at_once) {
    for (const mesh::NamedTensor& one : replica.parameters) {
      anchors_.push_back(one.tensor.clone());
      momenta_.push_back(at::zeros_like(one.tensor));
    }
  }
  comm::Work after_step(const sync::StepFacts& facts) override {
    constexpr double kRate = 0.7, kMomentum = 0.9;
    for (size_t i = 0; i < anchors_.size(); ++i) {
      const auto layer = static_cast<int64_t>(i / 2);  // weight and bias
      if (facts.step % kEvery != (at_once_ ? 0 : (layer + 1) * kEvery / 3 % kEvery)) continue;
      at::Tensor gradient = (anchors_[i] - replica_.parameters[i].tensor).contiguous();
      replica_.replica_group.all_reduce(gradient, comm::Reduce::sum, {comm::Purpose::gradient, "update"}).wait();
      gradient = gradient / replica_.replica_group.size();
      momenta_[i] = kMomentum * momenta_[i] + gradient;
      anchors_[i] = anchors_[i] - kRate * (kMomentum * momenta_[i] + gradient);
      replica_.parameters[i].tensor.copy_(anchors_[i]);
    }
    return comm::Work::done();
  }
  std::vector<at::Tensor> global_parameters() override { return anchors_; }
  void on_membership(const sync::Membership&) override {}

 private:
  sync::Replica replica_;
  bool at_once_;
  std::vector<at::Tensor> anchors_, momenta_;
};

// 1. What must be equal is.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("exactness");
  const PilotRun apart{.seed = options.seed, .islands = 4, .steps = kEvery, .alone = true};
  PilotRun average = apart;
  average.alone = false;
  average.sync = diloco(kEvery, 1, 0);
  findings.at_most("1. outer rate 1, momentum 0: largest difference to the mean of islands that trained alone", 0,
                   furthest(run_pilot(average).global_parameters[2], mean_of(run_pilot(apart).own)), 1e-6);

  PilotRun plain{.seed = options.seed, .islands = 4, .steps = 120, .sync = diloco(kEvery, 0.7, 0.9)};
  plain.finish = false;
  const auto by_fragments = [&](bool at_once) {
    PilotRun run = plain;
    run.reference = [at_once](const sync::Replica& replica) { return std::make_unique<FragmentReference>(replica, at_once); };
    return run_pilot(run).global_parameters[1];
  };
  PilotRun in_turn = plain;
  in_turn.sync = streaming(kEvery, 0.7, 0.9, 0, 0, "fp32");
  findings.at_most("1. plain DiLoCo: largest difference to three fragments that are all sent at the same step, written by themselves", 0,
                   furthest(run_pilot(plain).global_parameters[1], by_fragments(true)), 1e-6);
  findings.at_most("1. streaming without delay: largest difference to the same fragments, each sent at its own step", 0,
                   furthest(run_pilot(in_turn).global_parameters[1], by_fragments(false)), 1e-6);

  PilotRun coarse{.seed = options.seed, .islands = 4, .steps = 200, .sync = streaming(kEvery, 0.4, 0.9, 2, 0.5, "e3m0")};
  coarse.finish = false;
  const PilotEnd four_bits = run_pilot(coarse);
  int64_t others = 0;
  for (const at::Tensor& model : four_bits.global_parameters) others += at::equal(model, four_bits.global_parameters[0]) ? 0 : 1;
  findings.at_most("1. islands whose model differs by a bit from the first one's after 200 steps with 4-bit messages", 0,
                   static_cast<double>(others), 0);

  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "exact";
  const base::Recipe sgd = with(small_decoder(options, {"model.layers=3", "model.embed=24", "model.heads=2", "model.mlp=40"}),
                                {"optim.kind=sgd", "optim.learning_rate=0.05", "optim.max_grad_norm=0", "train.steps=10",
                                 "train.global_batch=9", "mesh.island=3", "snapshot.every=5"});
  train_layout({sgd, 3, folder / "ddp"});
  train_layout({with(sgd, {"sync.island.kind=diloco", "sync.island.every=1", "sync.island.outer_lr=1", "sync.island.outer_momentum=0"}), 3,
                folder / "each-step"});
  findings.at_most(
      "1. every step, rate 1, no momentum, inner SGD, 3 islands of a decoder: largest difference to an all-reduce at every step", 0,
      largest_difference(snapshot_tensors(folder / "ddp", "model"), snapshot_tensors(folder / "each-step", "model")), 1e-6);

  const base::Recipe late = with(sgd, {"optim.kind=adamw", "train.steps=20", "sync.island.kind=streaming_diloco", "sync.island.every=8",
                                       "sync.island.fragment_layers=1", "sync.island.delay=2", "snapshot.keep=10"});
  train_layout({late, 3, folder / "straight"});
  train_layout({late, 3, folder / "killed"});
  for (const char* of : {"snapshots", "island-1/snapshots", "island-2/snapshots"})
    for (const char* step : {"step-00000015", "step-00000020"}) std::filesystem::remove_all(folder / "killed" / of / step);
  train_layout({late, 3, folder / "killed", true});
  findings.at_most("1. killed at step 10 with a fragment under way and resumed: largest difference of the model at step 20", 0,
                   largest_difference(snapshot_tensors(folder / "straight", "model"), snapshot_tensors(folder / "killed", "model")), 0);
}

// 2. Test loss of the pilot, over three draws; over more where the claim is a difference of a few percent.
void quality(const ProofOptions& options, Findings& findings, base::Log& log) {
  struct Case {
    std::string name;
    sync::SyncOptions sync;
    bool alone = false;
    int draws = 3;
    double loss = 0, of_three = 0;
    std::vector<double> losses = {};
    std::vector<std::pair<double, double>> curve = {};
  };
  std::vector<Case> cases{{"an all-reduce at every step", {}},
                          {"DiLoCo 0.7", diloco(kEvery, 0.7, 0.9)},
                          {"DiLoCo 0.4", diloco(kEvery, 0.4, 0.9)},
                          {"streaming 0.4", streaming(kEvery, 0.4, 0.9, 0, 0, "fp32"), false, 6},
                          {"streaming, 2 late", streaming(kEvery, 0.4, 0.9, 2, 0.5, "fp32"), false, 6},
                          {"streaming, 2 late, 4 bits", streaming(kEvery, 0.4, 0.9, 2, 0.5, "e3m0")},
                          {"plain averaging", diloco(kEvery, 1, 0)},
                          {"one island alone", {}, true}};
  for (Case& one : cases) {
    log.info("quality: {}", one.name);
    for (int draw = 0; draw < one.draws; ++draw) {
      const PilotRun run{.seed = options.seed * 10 + static_cast<uint64_t>(draw),
                         .islands = one.alone ? 1 : kIslands,
                         .sync = one.sync,
                         .alone = one.alone,
                         .loss_every = draw == 0 ? 60 : 0};
      const PilotEnd end = run_pilot(run);
      const double loss = score_of(run, end.global_parameters[0]).loss;
      one.loss += loss / one.draws;
      one.losses.push_back(loss);
      if (draw < 3) one.of_three += loss / 3;
      if (draw == 0) one.curve = end.losses[0];
    }
    log.info("  test loss {:.4f}", one.loss);
  }
  const auto loss = [&](size_t i) { return cases[i].of_three; };  // of the draws that all have in common
  findings.at_most("2. pilot, 8 islands, 30 steps a round: test loss of DiLoCo to that of an all-reduce at every step", loss(0), loss(1),
                   1.15 * loss(0));
  findings.at_most("2. pilot: test loss of DiLoCo to that of plain averaging", loss(6), loss(1), 0.90 * loss(6));
  findings.at_most("2. pilot: streaming without delay to DiLoCo at the same outer rate (relative difference)", loss(2),
                   std::abs(loss(3) - loss(2)) / loss(2), 0.02);
  findings.at_most("2. pilot: 4-bit messages to fp32 (relative difference)", loss(4), std::abs(loss(5) - loss(4)) / loss(4), 0.02);
  at_most_ratio(findings, "2. pilot: 2 steps late, half blended, to no delay", cases[4].losses, cases[3].losses, 1.10);
  findings.at_most("2. pilot: DiLoCo to one island alone", loss(7), loss(1), 0.90 * loss(7));
  CurvesPicture picture{.title = "Pilot, 8 islands: test loss of the model", .across = "step", .up = "test loss"};
  for (const Case& one : cases) picture.curves.push_back({one.name, curve_colour(picture.curves.size()), one.curve});
  write_curves(options.pictures, "streaming-diloco-loss", picture);
}

// 3. Virtual time on links over which one sum of all gradients takes as long as 15 steps.
void wall_clock(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int kFew = 4;
  constexpr double kStep = 0.01;
  PilotRun run{.seed = options.seed, .islands = kFew, .steps = 240, .finish = false, .step_s = kStep};
  const double elements = static_cast<double>(Perceptron(1).flat().numel());
  run.link = {.latency = std::chrono::milliseconds(1), .jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  run.link.bytes_per_s = 2.0 * (kFew - 1) / kFew * 4 * elements / (15 * kStep);
  const auto relative = [&](const char* name, const sync::SyncOptions& sync) {
    PilotRun own = run;
    own.sync = sync;
    const PilotEnd end = run_pilot(own);
    const double ratio = end.seconds[0] / (kStep * static_cast<double>(run.steps));
    log.info("{}: {:.3f} of the time without communication, {:.2f} s of stall", name, ratio, end.stalls[0]);
    return std::pair(ratio, end);
  };
  const auto [ddp, of_ddp] = relative("an all-reduce at every step", {});
  const auto [plain, of_plain] = relative("DiLoCo", diloco(kEvery, 0.7, 0.9));
  const auto [blocking, of_blocking] = relative("streaming that waits", streaming(kEvery, 0.4, 0.9, 0, 0, "fp32"));
  const auto [stream, of_stream] = relative("streaming, fp32, 15 steps late", streaming(kEvery, 0.4, 0.9, 15, 0.5, "fp32"));
  const auto [coarse, of_coarse] = relative("streaming, 4 bits, 5 steps late", streaming(kEvery, 0.4, 0.9, 5, 0.5, "e3m0"));
  findings.at_least("3. time of a step to one without communication, an all-reduce at every step (4 islands, virtual time)", 1, ddp, 5);
  findings.at_least("3. likewise, DiLoCo", 1, plain, 1.3);
  findings.at_least("3. likewise, streaming that waits for what it sent (a fake must show)", 1, blocking, 1.2);
  findings.at_most("3. likewise, streaming, fp32, 15 steps late", 1, stream, 1.10);
  findings.at_most("3. likewise, streaming, 4 bits, 5 steps late", 1, coarse, 1.10);
  findings.at_most("3. share of the time that an island waits, streaming, 4 bits", of_plain.stalls[0] / of_plain.seconds[0],
                   of_coarse.stalls[0] / of_coarse.seconds[0], 0.05);
  CurvesPicture picture{.title = "Bytes that an island sends, by step", .across = "step", .up = "bytes"};
  for (const auto& [name, end] : {std::pair{"DiLoCo", &of_plain}, {"streaming, fp32", &of_stream}, {"streaming, 4 bits", &of_coarse}}) {
    Curve curve{name, curve_colour(picture.curves.size()), {}};
    for (size_t step = 60; step < 130; ++step)
      curve.points.emplace_back(static_cast<double>(step + 1), static_cast<double>(end->bytes[0][step]));
    picture.curves.push_back(std::move(curve));
  }
  write_curves(options.pictures, "streaming-diloco-bytes", picture);
}

// 4. What travels, by step: twelve identical layers, no training.
std::vector<int64_t> bytes_by_step(int islands, const sync::SyncOptions& options, int64_t steps) {
  std::vector<int64_t> bytes;
  comm::LocalNetwork network(islands, {.seed = 1});
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         mesh::NamedTensors parameters;
         std::vector<sync::FullParameter> whole;
         for (int layer = 0; layer < 12; ++layer) {
           whole.push_back({fmt::format("layers.{}.weight", layer), 10'007});
           parameters.push_back({whole.back().name, at::full({10'007}, static_cast<float>(layer), at::kFloat)});
         }
         const auto rule = sync::make_sync(options, {.replica_group = world.everyone(),
                                                     .model_group = world.alone(),
                                                     .parameters = parameters,
                                                     .gradients = {},
                                                     .model = whole,
                                                     .steps = steps});
         rule->begin(0);
         int64_t sent = 0;
         for (int64_t step = 1; step <= steps; ++step) {
           rule->after_step({.step = step, .tokens = 1}).wait();
           const int64_t all = world.ledger().total().bytes;
           if (world.rank() == 0) bytes.push_back(all - sent);
           sent = all;
         }
       }))
    if (error) std::rethrow_exception(error);
  return bytes;
}

void traffic(Findings& findings, base::Log& log) {
  log.info("traffic");
  constexpr int64_t kSteps = 96, kRound = 24;
  sync::SyncOptions fragments = streaming(kRound, 0.4, 0.9, 1, 0.5, "fp32");
  fragments.outer.fragment_layers = 3;  // twelve layers: four fragments
  const auto most = [](const std::vector<int64_t>& bytes) { return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())); };
  const auto sum = [](const std::vector<int64_t>& bytes) {
    double all = 0;
    for (const int64_t one : bytes) all += static_cast<double>(one);
    return all;
  };
  const double burst = most(bytes_by_step(2, diloco(kRound, 0.7, 0.9), kSteps));
  findings.at_most("4. most bytes in one step, 4 fragments, to plain DiLoCo", burst, most(bytes_by_step(2, fragments, kSteps)) / burst,
                   1.3 / 4);
  sync::SyncOptions coarse = fragments;
  coarse.exchange.wire = "e3m0";
  const double exact = sum(bytes_by_step(2, fragments, kSteps));
  findings.at_most("4. bytes with 4 bits, 2 islands, to fp32", exact, sum(bytes_by_step(2, coarse, kSteps)) / exact, 0.16);
}

// 5. One island of four dies with a fragment under way.
void loss_of_an_island(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("loss of an island");
  constexpr int64_t kKilled = 611;  // fragments are sent at 10, 20, 30 of every 30 steps and are 2 steps under way
  PilotRun run{.seed = options.seed, .islands = 4, .sync = streaming(kEvery, 0.4, 0.9, 2, 0.5, "e3m0"), .loss_every = 5};
  run.after = [&](comm::World& world, sync::Sync&, int64_t step) {
    if (world.rank() == 2 && step == kKilled) throw comm::Killed();
  };
  const PilotEnd end = run_pilot(run);
  int64_t failed = 0;
  double jump = 0, steps = 0, usual = 0;
  for (const int island : {0, 1, 3}) {
    const auto& losses = end.losses[static_cast<size_t>(island)];
    failed += end.errors[static_cast<size_t>(island)] ? 1 : 0;
    steps = losses.empty() ? 0 : losses.back().first;
    for (size_t i = 1; i < losses.size(); ++i) {
      if (losses[i].first < kKilled - 200) continue;
      double& most = losses[i].first < kKilled ? usual : jump;
      most = std::max(most, losses[i].second / losses[i - 1].second - 1);
    }
  }
  findings.at_most("5. one of 4 islands killed between sending and arrival: survivors that failed", 0, static_cast<double>(failed), 0);
  findings.at_least("5. likewise: last step of the survivors", static_cast<double>(run.steps), steps, static_cast<double>(run.steps));
  findings.at_most("5. likewise: largest rise of the loss from then on, within 5 steps", usual, jump, 0.05);
}

// 2, on text, through the trainer.
void text(const ProofOptions& options, Findings& findings, base::Log& log) {
  const int64_t steps = options.full ? 600 : 300;
  const int draws = options.full ? 1 : 4;  // short runs differ by chance
  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "text";
  const auto loss = [&](const std::string& name, const std::string& kind, const Assignments& more, int draw = 0) {
    ProofOptions drawn = options;
    drawn.seed = options.seed * 10 + static_cast<uint64_t>(draw);
    const base::Recipe recipe = with(island_decoder(drawn, steps), {"mesh.island=4"});
    Assignments sets = more;
    if (!kind.empty()) sets.insert(sets.end(), {"sync.island.kind=" + kind, fmt::format("sync.island.every={}", kEvery)});
    const double found = held_out_loss(with(recipe, sets), 4, folder / (name + std::to_string(draw)));
    log.info("text, {}: held-out loss {:.4f}", name, found);
    return found;
  };
  const std::string layers = "sync.island.fragment_layers=" + std::string(options.full ? "2" : "1"), extras = "sync.island.extras=smallest";
  std::vector<double> plain, exact, coarse;
  for (int draw = 0; draw < draws; ++draw) {
    plain.push_back(loss("diloco at 0.4", "diloco", {"sync.island.outer_lr=0.4"}, draw));
    exact.push_back(loss("streaming fp32", "streaming_diloco", {layers, extras, "sync.island.wire=fp32"}, draw));
    coarse.push_back(loss("streaming 4 bits", "streaming_diloco", {layers, extras, "sync.island.wire=e3m0"}, draw));
  }
  ratio_near_one(findings, "2. text, 4 islands: held-out loss of streaming, 4 bits, to fp32", coarse, exact, 0.02);
  at_most_ratio(findings, "2. text: streaming, 4 bits, one step late, to DiLoCo at the same outer rate", coarse, plain, 1.10);
  const std::string to_sum = "2. text: held-out loss of DiLoCo to that of an all-reduce at every step",
                    to_mean = "2. text: held-out loss of DiLoCo to that of plain averaging",
                    no_delay = "2. text: streaming without delay to DiLoCo at the same outer rate (relative difference)",
                    two_late = "2. text: streaming, 2 steps late, half blended, to no delay";
  if (!options.full) {
    for (const std::string& claim : {to_sum, to_mean, no_delay, two_late}) findings.skip(claim, "takes longer runs: --full");
    return;
  }
  const double sum = loss("an all-reduce at every step", "", {}), diloco = loss("diloco", "diloco", {}),
               mean = loss("plain averaging", "diloco", {"sync.island.outer_lr=1", "sync.island.outer_momentum=0"}),
               at_once = loss("streaming fp32, no delay", "streaming_diloco",
                              {layers, extras, "sync.island.wire=fp32", "sync.island.delay=0", "sync.island.blend=0"}),
               late = loss("streaming fp32, 2 late", "streaming_diloco", {layers, extras, "sync.island.wire=fp32", "sync.island.delay=2"});
  findings.at_most(to_sum, sum, diloco, 1.15 * sum);
  findings.at_most(to_mean, mean, diloco, 0.90 * mean);
  findings.at_most(no_delay, plain[0], std::abs(at_once - plain[0]) / plain[0], 0.02);
  findings.at_most(two_late, at_once, late / at_once, 1.10);
}

}  // namespace

void prove_streaming_diloco(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  quality(options, findings, log);
  wall_clock(options, findings, log);
  traffic(findings, log);
  loss_of_an_island(options, findings, log);
  text(options, findings, log);
}

}  // namespace cairn::study
