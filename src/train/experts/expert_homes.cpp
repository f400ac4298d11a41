#include "train/experts/expert_homes.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "comm/world.h"
#include "parallel/expert_copies/reshard.h"
#include "train/experts/move_experts.h"
#include "train/job.h"

namespace cairn::train {
namespace {

class ExpertHomes final : public BetweenSteps {
 public:
  ExpertHomes(Job& job, comm::World& world) : job_(job), world_(world) {}

  // A function of the loads, which snapshots hold.
  void before_step(int64_t step) override {
    moved_ = 0;
    const int64_t every = job_.config.settings.layout.expert.reshard_every;
    if (every == 0 || step == 1 || (step - 1) % every != 0) return;
    parallel::CopiedExperts& copies = *job_.engine.owned.copies;
    const std::vector<mesh::Ragged> before = copies.homes(), after = copies.planned_homes();
    moved_ = parallel::moved_experts(before, after);
    if (moved_ == 0) return;
    const int64_t sent = move_experts(job_, world_, after);
    if (world_.rank() == 0)
      world_.log().info("step {}: {} experts have new homes; this rank has sent {}", step, moved_, base::human_bytes(sent));
  }

  sync::StepMetrics metrics() override {
    sync::StepMetrics all;
    for (auto& one : job_.engine.owned.copies->metrics()) all.push_back(std::move(one));
    all.emplace_back("expert_moved", static_cast<double>(moved_));
    return all;
  }

 private:
  Job& job_;
  comm::World& world_;
  int64_t moved_ = 0;
};

}  // namespace

std::unique_ptr<BetweenSteps> make_expert_homes(Job& job, comm::World& world) {
  if (!job.engine.owned.copies) return nullptr;
  if (job.config.settings.layout.expert.reshard_every > 0) check_experts_can_move(job);
  return std::make_unique<ExpertHomes>(job, world);
}

}  // namespace cairn::train
