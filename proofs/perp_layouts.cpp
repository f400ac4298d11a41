// PERP: masks and factors on every layout, what ranks send, and islands.
#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "kernels/aten.h"
#include "proofs/perp_parts.h"

namespace cairn::study {

void prove_perp_layouts(const PruneTrials& trials, Findings& findings) {
  constexpr int64_t kSteps = 8;
  const fs::path pruned = trials.scratch() / "mask_lora-50" / "pruned";
  const Assignments form{"model.from=" + pruned.string(),
                         "model.sparse.form=mask_lora",
                         fmt::format("model.sparse.rank={}", kPerpRank),
                         fmt::format("train.steps={}", kSteps),
                         "optim.learning_rate=0.002",
                         "snapshot.every=4",
                         "optim.weight_decay=0",
                         "eval.samples=4"};
  const auto run = [&](const std::string& name, int ranks, const Assignments& sets, bool resume = false) {
    Assignments all = form;
    all.insert(all.end(), sets.begin(), sets.end());
    return train_layout({trials.recipe(all), ranks, trials.scratch() / ("layout-" + name), resume});
  };
  const Trained alone = run("1", 1, {});
  for (const auto& [name, ranks, sets] :
       std::vector<std::tuple<std::string, int, Assignments>>{{"dp=4, ZeRO 0", 4, {"mesh.dp=4", "memory.zero=0"}},
                                                              {"dp=4, ZeRO 1", 4, {"mesh.dp=4", "memory.zero=1"}},
                                                              {"dp=4, ZeRO 2", 4, {"mesh.dp=4", "memory.zero=2"}},
                                                              {"dp=4, ZeRO 3", 4, {"mesh.dp=4", "memory.zero=3"}},
                                                              {"pp=2", 2, {"mesh.pp=2", "train.micro_batch=24"}},
                                                              {"tp=2", 2, {"mesh.tp=2"}},
                                                              {"recomputation", 1, {"recompute.mode=full"}}})
    findings.at_most("6. " + name + " against one rank: largest relative difference of losses", 0,
                     largest_relative_difference(run(name, ranks, sets).losses, alone.losses), 1e-5);
  findings.at_most("6. bf16 against fp32: largest relative difference of losses", 0,
                   largest_relative_difference(run("bf16", 1, {"train.precision=bf16"}).losses, alone.losses), 0.02);
  copy_up_to(trials.scratch() / "layout-1", trials.scratch() / "layout-killed", kSteps / 2);
  findings.at_most("6. killed and resumed: largest difference of factors and weights", 0,
                   largest_difference(snapshot_tensors(trials.scratch() / "layout-1", "forms"),
                                      [&] {
                                        run("killed", 1, {}, /*resume=*/true);
                                        return snapshot_tensors(trials.scratch() / "layout-killed", "forms");
                                      }()),
                   0);
  // Two islands; then one rank starts from their model, with the first samples once more.
  const Trained together = run("islands", 2, {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=4"});
  const fs::path islands = trials.scratch() / "layout-islands", further = trials.scratch() / "layout-islands-alone";
  findings.at_most("6. two islands with DiLoCo, opened on one rank: pruned weights that are not 0", 0,
                   static_cast<double>(filled(open_model(islands))), 0);
  const Trained after = run("islands-alone", 1, {"model.from=" + islands.string()});
  findings.at_least("6. one rank that trains on from them: its first loss below theirs, nats", together.losses.front(),
                    together.losses.front() - after.losses.front(), 0.001);
  findings.at_most("6. and its pruned weights that are not 0", 0, static_cast<double>(filled(open_model(further))), 0);

  Assignments pair = form;
  pair.push_back("mesh.dp=2");
  const RunStats stats = collect_stats({.recipe = trials.recipe(pair), .ranks = 2, .steps = 2});
  // Of n ranks each sends 2 (n - 1) / n of the gradient, fp32.
  const double sent = static_cast<double>(stats.ranks[0].sent.at(comm::Purpose::gradient)) / static_cast<double>(4 * perp_factors());
  findings.at_most("6. gradient bytes that a rank of two sends in a step, in units of the trained factors", 1, sent, 1.01);
  findings.at_least("6. the same, so that all of them are sent", 1, sent, 0.99);
}

}  // namespace cairn::study
