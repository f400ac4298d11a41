// What is trained and what stands still, on every layout: adapters, pruned models, spectral training, supernets, stages of unlearning. One
// rank is the baseline.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "base/metrics.h"
#include "kernels/aten.h"
#include "proofs/markov_runs.h"
#include "proofs/method_recipes.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kSteps = 12, kKilledAt = 6;

struct MethodLayout {
  std::string name;
  int ranks = 1;
  Assignments sets = {};
};

const std::vector<MethodLayout>& layouts() {
  static const std::vector<MethodLayout> list{{"dp=4", 4, {"mesh.dp=4"}},
                                              {"dp=4 with ZeRO 1", 4, {"mesh.dp=4", "memory.zero=1"}},
                                              {"dp=4 with ZeRO 2", 4, {"mesh.dp=4", "memory.zero=2"}},
                                              {"dp=4 with ZeRO 3", 4, {"mesh.dp=4", "memory.zero=3"}},
                                              {"pp=2", 2, {"mesh.pp=2", "train.micro_batch=12"}},
                                              {"tp=2", 2, {"mesh.tp=2"}},
                                              {"recomputation", 1, {"recompute.mode=full"}}};
  return list;
}

int64_t bytes_sent(const RankStats& rank, comm::Purpose purpose) { return rank.sent.contains(purpose) ? rank.sent.at(purpose) : 0; }

class MethodTable {
 public:
  MethodTable(const ProofOptions& options, Findings& findings, base::Log& log) : options_(options), findings_(findings), log_(log) {}

  void add(const MethodRecipe& method) {
    log_.info("{}", method.name);
    const Trained alone = train(method, {"one rank"}, kSteps);
    for (const MethodLayout& layout : layouts()) {
      if (const std::string why = method.refuses(layout.name); !why.empty()) {
        findings_.skip(fmt::format("{}, {}", method.name, layout.name), why);
        continue;
      }
      findings_.at_most(fmt::format("{}, {}: largest relative difference of losses", method.name, layout.name), 0,
                        largest_relative_difference(train(method, layout, kSteps).losses, alone.losses), 1e-5);
    }
    findings_.at_most(fmt::format("{}, bf16: largest relative difference of losses", method.name), 0,
                      largest_relative_difference(train(method, {"bf16", 1, {"train.precision=bf16"}}, kSteps).losses, alone.losses), 0.02);
    killed(method, alone);
    islands(method);
    traffic(method);
  }

 private:
  std::filesystem::path folder(const MethodRecipe& method, const std::string& layout) const {
    std::string name = fmt::format("{}-{}", method.name, layout);
    std::replace(name.begin(), name.end(), ' ', '-');
    return std::filesystem::path(options_.scratch) / name;
  }

  base::Recipe recipe(const MethodRecipe& method, const MethodLayout& layout, int64_t steps) const {
    base::Recipe recipe = method.recipe;
    recipe.set("train.steps", steps, "proof");
    recipe.set("snapshot.every", kKilledAt, "proof");
    return with(recipe, layout.sets);
  }

  Trained train(const MethodRecipe& method, const MethodLayout& layout, int64_t steps) const {
    return train_layout({recipe(method, layout, steps), layout.ranks, folder(method, layout.name)});
  }

  // What a kill right after a snapshot leaves behind goes on as if nothing had been.
  void killed(const MethodRecipe& method, const Trained& alone) {
    const std::filesystem::path whole = folder(method, "one rank"), copy = folder(method, "resumed");
    copy_up_to(whole, copy, kKilledAt);
    const Trained resumed = train_layout({recipe(method, {"resumed"}, kSteps), 1, copy, true});
    findings_.at_most(fmt::format("{}, killed and resumed: losses that differ", method.name), 0, differing(resumed.losses, alone.losses),
                      0);
    findings_.at_most(fmt::format("{}, killed and resumed: largest difference of parameters and moments", method.name), 0,
                      saved_difference(whole, copy), 0);
  }

  static double differing(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return static_cast<double>(std::max(a.size(), b.size()));
    double count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    return count;
  }

  // Of the last snapshots of two runs: the model, its adapters or factors, and the optimizer.
  static double saved_difference(const std::filesystem::path& a, const std::filesystem::path& b) {
    double largest = 0;
    size_t tensors = 0;
    for (const char* section : {"model", "adapter", "forms", "optimizer"}) {
      const Tensors one = snapshot_tensors(a, section), other = snapshot_tensors(b, section);
      if (one.empty() && other.empty()) continue;
      largest = std::max(largest, largest_difference(one, other));
      tensors += one.size();
    }
    return tensors > 0 ? largest : INFINITY;
  }

  // Two islands that synchronise seldom; then one rank starts from their model, with the first samples once more.
  void islands(const MethodRecipe& method) {
    if (const std::string why = method.refuses("islands"); !why.empty()) {
      findings_.skip(fmt::format("{}, two islands with DiLoCo", method.name), why);
      return;
    }
    const MethodLayout two{"islands", 2, {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=3"}};
    const Trained trained = train(method, two, kSteps);
    const std::filesystem::path run = folder(method, "islands");
    base::Recipe further = method.further ? method.further(run) : with(method.recipe, {"model.from=" + run.string()});
    further.set("train.steps", kKilledAt, "proof");
    const Trained after = train_layout({further, 1, folder(method, "islands-alone")});
    const bool goes_on = after.losses.size() == static_cast<size_t>(kKilledAt) &&
                         std::all_of(after.losses.begin(), after.losses.end(), [](double loss) { return std::isfinite(loss); });
    findings_.at_least(fmt::format("{}, two islands with DiLoCo, then one rank: its first loss below theirs, nats", method.name),
                       trained.losses.front(), goes_on ? trained.losses.front() - after.losses.front() : -1, 0.001);
  }

  // Gradients and parameters that a rank sends in a step: of what is trained and active alone.
  void traffic(const MethodRecipe& method) {
    const std::string claim = fmt::format("{}, dp=2: gradients and parameters that a rank sends in a step, of the active ones", method.name);
    if (method.trains_all) {
      findings_.skip(claim, "every parameter is trained in each step");
      return;
    }
    const RunStats found = collect_stats({recipe(method, {"traffic", 2, {"mesh.dp=2", "snapshot.every=0"}}, kSteps), 2, 1});
    int64_t trained = 0, sent = 0;
    for (const RankStats& rank : found.ranks) {
      trained = std::max(trained, rank.optimizer / 2);  // two moments of each trained element
      sent = std::max(sent, bytes_sent(rank, comm::Purpose::gradient) + bytes_sent(rank, comm::Purpose::parameter));
    }
    const double share = static_cast<double>(sent) / (active_share(method) * static_cast<double>(trained));
    findings_.at_most(claim, 1, share, 1.01);
    findings_.at_least(fmt::format("{}, dp=2: the same, so that all active ones are sent", method.name), 1, share, 0.99);
  }

  // The share of the trained elements that the second step changes, which is the one whose traffic is counted. Draws are a function of the
  // step, the same on any ranks.
  double active_share(const MethodRecipe& method) const {
    const std::vector<base::MetricsRow> rows = base::read_metrics(folder(method, "one rank") / "metrics.jsonl");
    return rows.at(1).has("active_share") ? rows.at(1).number("active_share") : 1;
  }

  const ProofOptions& options_;
  Findings& findings_;
  base::Log& log_;
};

}  // namespace

void prove_method_layouts(const ProofOptions& options, Findings& findings, base::Log& log) {
  MethodTable table(options, findings, log);
  for (const MethodRecipe& method : method_recipes(options, log)) table.add(method);
}

}  // namespace cairn::study
