// What is trained and what stands still, on every layout: adapters, pruned models, spectral training, supernets. One rank is the
// baseline.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
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
    const std::filesystem::path copy = folder(method, "resumed");
    copy_up_to(folder(method, "one rank"), copy, kKilledAt);
    const Trained resumed = train_layout({recipe(method, {"resumed"}, kSteps), 1, copy, true});
    findings_.at_most(fmt::format("{}, killed and resumed: losses that differ", method.name), 0, differing(resumed.losses, alone.losses),
                      0);
    findings_.at_most(fmt::format("{}, killed and resumed: largest difference of parameters", method.name), 0,
                      largest_difference(resumed.parameters, alone.parameters), 0);
  }

  static double differing(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return static_cast<double>(std::max(a.size(), b.size()));
    double count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    return count;
  }

  // Two islands that synchronise seldom; then one rank goes on from their snapshot.
  void islands(const MethodRecipe& method) {
    if (const std::string why = method.refuses("islands"); !why.empty()) {
      findings_.skip(fmt::format("{}, two islands with DiLoCo", method.name), why);
      return;
    }
    const MethodLayout two{"islands", 2, {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=3"}};
    const Trained trained = train(method, two, kKilledAt);
    const std::filesystem::path copy = folder(method, "islands-alone");
    std::filesystem::copy(folder(method, "islands"), copy, std::filesystem::copy_options::recursive);
    const Trained after = train_layout({recipe(method, {"alone"}, kSteps), 1, copy, true});
    const bool goes_on = after.losses.size() == static_cast<size_t>(kSteps) &&
                         std::all_of(after.losses.begin(), after.losses.end(), [](double loss) { return std::isfinite(loss); });
    findings_.at_least(fmt::format("{}, two islands with DiLoCo, then one rank: last loss below the first, nats", method.name), 0,
                       goes_on ? after.losses.front() - after.losses.back() : -1, 1e-6);
  }

  // Gradients and parameters that a rank sends in a step: of what is trained alone.
  void traffic(const MethodRecipe& method) {
    if (method.moves_whole_model) return;
    const RunStats found = collect_stats({recipe(method, {"traffic", 2, {"mesh.dp=2", "snapshot.every=0"}}, kSteps), 2, 1});
    int64_t trained = 0, sent = 0;
    for (const RankStats& rank : found.ranks) {
      trained = std::max(trained, rank.optimizer / 2);  // two moments of each trained element
      sent = std::max(sent, bytes_sent(rank, comm::Purpose::gradient) + bytes_sent(rank, comm::Purpose::parameter));
    }
    findings_.at_most(fmt::format("{}, dp=2: gradients and parameters that a rank sends in a step, of the trained ones", method.name), 1,
                      static_cast<double>(sent) / static_cast<double>(trained), 1.05);
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
