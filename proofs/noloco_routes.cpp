#include "proofs/noloco_routes.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "proofs/island_text.h"
#include "proofs/layout_run.h"
#include "snapshot/snapshot.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/evaluate.h"

namespace cairn::study {
namespace {

constexpr int kIslands = 4, kStages = 2;

// What each island trains on, rather than what it calls the model: between rounds islands differ in it.
std::vector<Tensors> live_weights(const std::filesystem::path& run) {
  std::vector<Tensors> all;
  for (int island = 0; island < kIslands; ++island)
    all.push_back(snapshot_tensors(island == 0 ? run : run / fmt::format("island-{}", island), "live"));
  return all;
}

bool in_first_stage(const std::string& name) {  // as pipeline.split = ["2", "2"] has it
  for (const char* part : {"embed_tokens", "layers.0.", "layers.1."})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

struct Chains {
  double same = 0, crossed = 0;  // mean held-out loss of chains whose stages are of one island, and of two
};

// Every first stage with every second one.
Chains judge(const base::Recipe& alone, const std::vector<Tensors>& islands) {
  Chains chains;
  comm::LocalNetwork network(1);
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         const auto job = train::build(world, alone, {.out = {}, .cache = {}, .terminal = nullptr}, {});
         for (int first = 0; first < kIslands; ++first)
           for (int second = 0; second < kIslands; ++second) {
             for (size_t i = 0; i < job->engine.model->parameters().size(); ++i) {
               const std::string& name = job->engine.model->parameters()[i].name;
               job->engine.store->load(i, islands[static_cast<size_t>(in_first_stage(name) ? first : second)].at(name));
             }
             job->engine.store->updated();
             const double loss = train::evaluate_held_out(*job).loss;
             (first == second ? chains.same : chains.crossed) += loss / (first == second ? kIslands : kIslands * (kIslands - 1));
           }
       }))
    if (error) std::rethrow_exception(error);
  return chains;
}

}  // namespace

void prove_routes(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "routes";
  const Assignments layout{fmt::format("mesh.island={}", kIslands), fmt::format("mesh.pp={}", kStages), "pipeline.micro_batches=4",
                           "pipeline.split=[\"2\", \"2\"]"};
  const base::Recipe sgd = with(with(island_decoder(options, 6), {"model.layers=4", "model.tied=false", "optim.kind=sgd",
                                                                  "optim.learning_rate=0.05", "optim.max_grad_norm=0", "snapshot.every=6"}),
                                layout);
  train_layout({sgd, kIslands * kStages, folder / "ddp"});
  train_layout({with(sgd, {"sync.island.kind=diloco", "sync.island.every=1", "sync.island.outer_lr=1", "sync.island.outer_momentum=0",
                           "pipeline.routing=random"}),
                kIslands * kStages, folder / "identical"});
  findings.at_most(
      "5. 4 islands x 2 stages that are identical after every step, routes at random: largest difference to an all-reduce at every step", 0,
      largest_difference(snapshot_tensors(folder / "ddp", "model"), snapshot_tensors(folder / "identical", "model")), 1e-5);

  // The last round is long past when the chains are judged.
  constexpr int64_t kSteps = 299, kRound = 150;
  const base::Recipe alone = with(island_decoder(options, kSteps), {"model.layers=4", "model.tied=false"});
  const auto chains = [&](const std::string& routing) {
    train_layout({with(with(alone, layout), {"sync.island.kind=noloco", fmt::format("sync.island.every={}", kRound),
                                             "sync.island.final=one", "pipeline.routing=" + routing, "snapshot.every=299"}),
                  kIslands * kStages, folder / routing});
    const Chains found = judge(alone, live_weights(folder / routing));
    log.info("routing {}: held-out loss of islands {:.4f}, of chains over two islands {:.4f}", routing, found.same, found.crossed);
    return found;
  };
  const Chains fixed = chains("fixed"), routed = chains("random");
  findings.at_most("5. 149 steps after a round, routed: loss of a first stage with another island's second to that with its own", 1,
                   routed.crossed / routed.same, 1.05);
  findings.at_least("5. likewise without routes: worse", routed.crossed / routed.same, fixed.crossed / fixed.same,
                    routed.crossed / routed.same);
}

}  // namespace cairn::study
