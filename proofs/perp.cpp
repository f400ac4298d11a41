// PERP: a trained decoder is pruned, and a sliver of its parameters wins the quality back. The baselines are the pruned model as it is, and
// retraining of all weights that are left.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/log.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "proofs/perp_parts.h"
#include "proofs/sampler_runs.h"

namespace cairn::study {
namespace {

// Parameters of the subsets of the model above.
int64_t biases() { return kPerpLayers * (3 * kPerpEmbed + kPerpEmbed + kPerpMlp + kPerpEmbed) + (2 * kPerpLayers + 1) * kPerpEmbed; }
int64_t gains() { return (2 * kPerpLayers + 1) * kPerpEmbed; }
// Each matrix loses the floor of its share.
int64_t removed_weights(double sparsity) {
  int64_t sum = 0;
  for (const int64_t out : {3 * kPerpEmbed, kPerpEmbed, kPerpMlp, kPerpMlp})
    sum += static_cast<int64_t>(std::floor(sparsity * static_cast<double>(kPerpEmbed * out)));
  return kPerpLayers * sum;
}

struct SubsetArm {
  std::string name, train;
  int64_t trained;  // 0: not counted
  bool norms = true, matrices = true, head = false;

  // Whether training and merging may change a parameter.
  bool changes(const std::string& parameter, const OpenedModel& model) const {
    if (name == "full" || parameter.ends_with(".bias")) return true;
    if (parameter.find("ln_") != std::string::npos) return norms;
    return parameter == "lm_head.weight" ? head : matrices && model.kept.contains(parameter);
  }
};

std::vector<SubsetArm> subset_arms(int64_t vocabulary) {
  const int64_t vectors = biases() + gains(), head = kPerpRank * (kPerpEmbed + vocabulary);
  return {{.name = "bias", .train = R"(["bias"])", .trained = biases(), .norms = false, .matrices = false},
          {.name = "bias+norm", .train = R"(["bias","norm"])", .trained = vectors, .matrices = false},
          {.name = "scale_lora", .train = R"(["bias","norm","scale_lora"])", .trained = vectors + perp_factors()},
          {.name = "mask_lora", .train = R"(["bias","norm","mask_lora"])", .trained = vectors + perp_factors()},
          {.name = "head", .train = R"(["bias","norm","head"])", .trained = vectors + head, .matrices = false, .head = true},
          {.name = "mask_lora+head",
           .train = R"(["bias","norm","head","mask_lora"])",
           .trained = vectors + head + perp_factors(),
           .head = true},
          {.name = "lora_prune", .train = R"(["bias","norm","lora_prune"])", .trained = vectors + perp_factors()},
          {.name = "full", .train = R"(["full"])", .trained = 0}};
}

// What the subsets win back at one sparsity and seed, and what merging does to it.
struct Recovered {
  std::map<std::string, PruneRound> rounds = {};  // by arm
  int64_t moved = 0, not_zero = 0, wrong_counts = 0, wrong_sparsity = 0;

  double recovery(const std::string& arm) const {
    const double pruned = rounds.at("full").pruned_loss;
    return (pruned - rounds.at(arm).merged_loss) / (pruned - rounds.at("full").merged_loss);
  }
  double jump(const std::string& arm) const { return rounds.at(arm).merged_loss - rounds.at(arm).recovered_loss; }
};

Recovered recover(const PruneTrials& trials, const fs::path& dense, double sparsity, base::Log& log) {
  const std::vector<SubsetArm> arms = subset_arms(open_model(dense).shape.vocab);
  Recovered all;
  std::mutex guard;
  in_parallel(std::ssize(arms), [&](int64_t job) {
    const SubsetArm& arm = arms[static_cast<size_t>(job)];
    const std::string name = fmt::format("{}-{:.0f}", arm.name, 100 * sparsity);
    const PruneResult result =
        trials.prune(name, dense, {fmt::format("prune.sparsity={}", sparsity), "prune.recover.train=" + arm.train});
    const PruneRound& round = result.rounds.back();
    const OpenedModel before = open_model(trials.scratch() / name / "pruned"), after = open_model(result.model);
    const std::lock_guard lock(guard);
    all.rounds[arm.name] = round;
    all.not_zero += filled(after);
    all.wrong_sparsity += std::abs(round.removed - removed_weights(sparsity));
    if (arm.trained > 0) all.wrong_counts += std::abs(round.trained - arm.trained);
    for (const auto& [parameter, value] : after.tensors)
      if (!arm.changes(parameter, after)) all.moved += !at::equal(value, before.tensors.at(parameter));
    log.info("at {:.0f} % {}: trained share {:.2f} %", 100 * sparsity, arm.name,
             100.0 * static_cast<double>(round.trained) / static_cast<double>(result.parameters));
  });
  return all;
}

double mean_over(const std::vector<Recovered>& seeds, const std::function<double(const Recovered&)>& value) {
  double sum = 0;
  for (const Recovered& one : seeds) sum += value(one);
  return sum / static_cast<double>(seeds.size());
}

// 1, 2. With several seeds: means of what is won back, and the worst of what must hold exactly.
void judge_recoveries(double sparsity, const std::vector<Recovered>& seeds, Findings& findings, base::Log& log) {
  const std::string at = fmt::format("at {:.0f} %{}", 100 * sparsity,
                                     seeds.size() > 1 ? fmt::format(", mean of {} seeds", seeds.size()) : std::string());
  const auto recovery = [&](const char* arm) { return mean_over(seeds, [&](const Recovered& one) { return one.recovery(arm); }); };
  const auto total = [&](int64_t Recovered::*count) {
    return static_cast<double>(seeds.size()) * mean_over(seeds, [&](const Recovered& one) { return static_cast<double>(one.*count); });
  };
  double jump = 0;
  for (const Recovered& one : seeds)
    for (const char* arm : {"mask_lora", "scale_lora", "mask_lora+head"}) jump = std::max(jump, std::abs(one.jump(arm)));
  findings.at_least(fmt::format("1. {}: share of what full retraining wins back, biases and norms", at), 1, recovery("bias+norm"), 0.25);
  findings.at_least(fmt::format("1. {}: the same with MaskLoRA", at), 1, recovery("mask_lora"), sparsity < 0.6 ? 0.65 : 0.55);
  findings.at_least(fmt::format("1. {}: the same with MaskLoRA and LoRA on the head, the default", at), 1, recovery("mask_lora+head"),
                    sparsity < 0.6 ? 0.65 : 0.55);
  log.info("{} (reported): recovery of biases {:.3f}, with ScaleLoRA {:.3f}, with LoRA on the head alone {:.3f}", at, recovery("bias"),
           recovery("scale_lora"), recovery("head"));
  findings.at_least(fmt::format("2. {}: LoRA that is masked when merged loses there, nats", at), 0,
                    mean_over(seeds, [](const Recovered& one) { return one.jump("lora_prune"); }), 0.2);
  findings.at_most(fmt::format("2. {}: MaskLoRA and ScaleLoRA, largest change of the loss by merging, nats", at), 0, jump, 1e-4);
  findings.at_most(fmt::format("2. {}: pruned weights that are not 0 after merging, all subsets", at), 0, total(&Recovered::not_zero), 0);
  findings.at_most(fmt::format("2. {}: removed weights, difference to the floor of the share of each matrix", at), 0, total(&Recovered::wrong_sparsity),
                   0);
  findings.at_most(fmt::format("2. {}: trained parameters, difference to the formula", at), 0, total(&Recovered::wrong_counts), 0);
  findings.at_most(fmt::format("2. {}: tensors outside of the subset that changed", at), 0, total(&Recovered::moved), 0);
}

void recoveries(const ProofOptions& options, const PruneTrials& trials, const fs::path& dense, Findings& findings, base::Log& log) {
  std::map<double, std::vector<Recovered>> found;
  const auto add = [&](const PruneTrials& of_seed, const fs::path& model) {
    for (const double sparsity : {0.5, 0.7}) found[sparsity].push_back(recover(of_seed, model, sparsity, log));
  };
  add(trials, dense);
  for (uint64_t more = 1; options.full && more < 3; ++more) {
    ProofOptions seeded = options;
    seeded.seed += more, seeded.scratch = (fs::path(options.scratch) / fmt::format("seed-{}", seeded.seed)).string();
    const PruneTrials others(seeded, log);
    add(others, others.dense());
  }
  for (const auto& [sparsity, seeds] : found) judge_recoveries(sparsity, seeds, findings, log);
  if (!options.full) findings.skip("1, 2. means of 3 seeds", "three times as long: --full");
}

// 4. Layer by layer.
void reconstruction(const PruneTrials& trials, const fs::path& dense, Findings& findings, base::Log& log) {
  const auto errors = [](const PruneRound& round) {
    std::pair<double, double> sums;
    for (const LayerPruned& layer : round.pruned.layers) sums.first += layer.error_before, sums.second += layer.error_after;
    return sums;
  };
  const Assignments repaired{"prune.recover.mode=reconstruct", R"(prune.recover.train=["bias","norm","mask_lora"])"};
  for (const double sparsity : {0.5, 0.7}) {
    Assignments sets = repaired;
    sets.insert(sets.end(), {fmt::format("prune.sparsity={}", sparsity), "prune.recover.steps=800"});
    const std::string at = fmt::format("at {:.0f} %", 100 * sparsity);
    const PruneRound round = trials.prune(fmt::format("reconstructed-{:.0f}", 100 * sparsity), dense, sets).rounds.back();
    const double pruned = trials
                              .prune(fmt::format("pruned-{:.0f}", 100 * sparsity), dense,
                                     {fmt::format("prune.sparsity={}", sparsity), "prune.recover.mode=none"})
                              .rounds.back()
                              .merged_loss;
    const auto [before, after] = errors(round);
    findings.at_least(fmt::format("4. {}: share of the layers' errors that repair takes away", at), 0, 1 - after / before, 0.5);
    findings.at_most(fmt::format("4. {}: loss with repaired layers, against layers that are only pruned", at), pruned, round.merged_loss,
                     pruned - 1e-6);
  }
  for (const char* method : {"wanda", "sparsegpt"}) {
    Assignments sets = repaired;
    sets.push_back(fmt::format("prune.method={}", method));
    const double loss = trials.prune(fmt::format("{}-repaired", method), dense, sets).rounds.back().merged_loss;
    const double alone =
        trials.prune(fmt::format("{}-alone", method), dense, {fmt::format("prune.method={}", method), "prune.recover.mode=none"})
            .rounds.back()
            .merged_loss;
    findings.at_most(fmt::format("4. {} at 50 %: loss with repaired layers, against the criterion alone", method), alone, loss,
                     alone - 1e-6);
    log.info("{} at 50 % (reported): {:.4f} alone, {:.4f} repaired", method, alone, loss);
  }
  const OpenedModel one = open_model(trials.scratch() / "wanda-alone" / "model"),
                    two = open_model(trials.prune("wanda-ranks", dense, {"prune.method=wanda", "prune.recover.mode=none"}, 2).model);
  int64_t differ = 0, all = 0;
  for (const auto& [name, kept] : one.kept) {
    differ += kept.ne(two.kept.at(name)).sum().item<int64_t>();
    all += kept.numel();
  }
  findings.at_most("4. Wanda on two ranks: share of the mask that differs from one rank's", 0,
                   static_cast<double>(differ) / static_cast<double>(all), 1e-3);
}

// 5. A model that does not fit into the memory that it is pruned and repaired in.
void memory_bound(const PruneTrials& trials, Findings& findings) {
  const fs::path large = trials.scratch() / "large";
  train_layout({trials.recipe({"model.kind=gpt2", "model.layers=40", "model.embed=128", "model.heads=4", "model.kv_heads=4",
                               "model.mlp=512", "model.tied=false", "train.steps=1", "train.global_batch=2", "snapshot.every=1"}),
                1, large});
  const auto decoder = model::make_decoder(open_model(large).shape);
  const double model_mb = 4.0 * static_cast<double>(decoder->elements()) / 1048576;
  const Assignments sets{"prune.recover.mode=reconstruct", R"(prune.recover.train=["bias","norm","mask_lora"])",
                         "prune.recover.steps=4",          "prune.calibration=256",
                         "prune.calibration_batch=2",      "eval.samples=4"};
  Assignments bound = sets;
  bound.push_back(fmt::format("prune.memory_limit_mb={}", model_mb / 3));
  const LayerwiseResult result = trials.prune("large-pruned", large, bound).rounds.back().pruned;
  const auto allowed = static_cast<double>(result.largest_part_bytes + result.activation_bytes);
  findings.at_least("5. model, in units of the memory that it was pruned and repaired in", 1,
                    static_cast<double>(result.model_bytes) / static_cast<double>(result.peak_bytes), 3);
  findings.at_most("5. peak of tensors, in units of the largest part and two sets of activations", 1,
                   static_cast<double>(result.peak_bytes) / allowed, 1.3);
  Assignments disk = sets;
  disk.push_back("prune.activations=disk");
  const LayerwiseResult on_disk = trials.prune("large-on-disk", large, disk).rounds.back().pruned;
  findings.at_most("5. peak with activations on disk, in units of the peak with them in memory", 1,
                   static_cast<double>(on_disk.peak_bytes) / static_cast<double>(result.peak_bytes), 1);
}

}  // namespace

void prove_perp(const ProofOptions& options, Findings& findings, base::Log& log) {
  const PruneTrials trials(options, log);
  const fs::path dense = trials.dense();
  recoveries(options, trials, dense, findings, log);
  prove_perp_exactly(options, trials, dense, findings);
  reconstruction(trials, dense, findings, log);
  memory_bound(trials, findings);
  prove_perp_layouts(trials, findings);
}

}  // namespace cairn::study
