// The parts of train::build, in the order in which it calls them. Each part reads the fields of the job that earlier parts have set, and
// sets its own. All ranks call them in this order, because some of them are collective.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "snapshot/pretrained.h"
#include "snapshot/snapshot.h"
#include "train/job.h"
#include "train/start.h"

namespace cairn::base {
class Recipe;
}
namespace cairn::comm {
class World;
}

namespace cairn::train {

// 1. Settings, device and instruments (read_recipe.cpp). Refuses unknown keys, and settings that the device cannot do.
void read_recipe(Job& job, comm::World& world, base::Recipe recipe, const Start& start);
// 2. The plan, the step group, and this rank's share of the samples (step_group.cpp).
void lay_out(Job& job, comm::World& world, const Start& start);
// 3. What a run resumes from, if start.resume is set (resume_from.cpp): memory that outlived the ranks before, else a snapshot on disk.
struct ResumedFrom {
  std::optional<int64_t> memory_step;
  std::optional<snapshot::OpenSnapshot> disk;  // not looked for where memory has a state
  explicit operator bool() const { return memory_step || disk; }
};
ResumedFrom find_resumed(Job& job, comm::World& world, const Start& start);
// Loads it, or the newest one before it where it turns out to be damaged. `start_over` sets the values of a new run, where memory turns out
// to be unusable and the disk has nothing. A run that an agent has started again writes what it was restored from into events.jsonl.
// Collective.
void restore_newest(Job& job, comm::World& world, const Start& start, ResumedFrom found, const std::function<void()>& start_over);
// 4. The data, and the directory that model.from names (open_data.cpp).
std::optional<snapshot::Pretrained> open_inputs(Job& job, comm::World& world, const Start& start);
// 5. Model, objective and pass options, without parameter values (build_model.cpp).
void build_model(Job& job, comm::World& world, const std::optional<snapshot::Pretrained>& pretrained);
// 6. Subset and sampler (batches.cpp). With train.epochs it sets train.steps, which the parts after it read.
void build_sampler(Job& job, const data::Subset& subset);
//    Before it: clusters of queries, for a sampler that needs them and has no file (query_clusters.cpp). Collective.
void cluster_queries(Job& job, comm::World& world, const Start& start);
// 7. Memory for parameters and gradients, as the plan places them (place_parameters.cpp). `trained`: for each parameter of the model.
void place_parameters(Job& job, comm::World& world, const Start& start, const std::vector<bool>& trained);
//    The part of it that holds state: again where experts get new homes (train/experts/move_experts.h).
void place_state(Job& job, comm::World& world, const Start& start, const std::vector<bool>& trained);
// 8. Optimizer and learning-rate schedule (build_optimizer.cpp).
void build_optimizer(Job& job, comm::World& world);
//    The optimizer alone: again where experts get new homes.
void make_optimizer(Job& job, comm::World& world);
// 9. One sync rule for the replicas that step together, and one for islands that step separately (build_sync.cpp).
void build_sync(Job& job, comm::World& world, const Start& start);
//    The pool of step plans, where context.plan has them (step_plans.cpp).
void build_step_plans(Job& job, comm::World& world);
// 10. The pipeline, if mesh.pp is more than 1, and the step (build_step.cpp). `load_start_weights` sets the parameters as 11 does.
void build_step(Job& job, comm::World& world, const std::vector<bool>& trained, std::function<void()> load_start_weights);
// 11. Parameter values: initial ones, or those of model.from (starting_weights.cpp). Collective.
void start_weights(Job& job, const std::optional<snapshot::Pretrained>& pretrained, comm::World& world);
// 12. The planner of step plans: runs passes and sends messages to measure what they cost (step_plans.cpp). Collective.
void plan_by_measured_costs(Job& job, comm::World& world);

}  // namespace cairn::train
