#include "train/active_parts.h"

#include <algorithm>
#include <vector>

#include "mesh/write_barrier.h"
#include "train/job.h"

namespace cairn::train {

int64_t updates_done(const Job& job) { return job.progress.steps_done - job.progress.updates_skipped; }

void apply_active(Engine& engine) {
  const optim::ActiveSet& set = engine.active->set();
  const auto is_frozen = [&](const std::string& name) { return set.contains(name) && !set.members()[set.index(name)].active; };
  std::vector<bool> of_model, of_pieces;
  for (const model::Parameter& one : engine.model->parameters()) of_model.push_back(is_frozen(one.name));
  for (const mesh::NamedTensor& one : engine.trained.values) of_pieces.push_back(is_frozen(one.name));
  engine.store->set_frozen(of_model, engine.sync_writes_frozen);
  engine.sync->set_frozen(of_pieces);
}

void change_active(Engine& engine, const std::function<void(optim::ActiveOptimizer& active)>& change) {
  const auto frozen = [&] {
    std::vector<bool> result;
    for (const optim::ActiveSet::Member& one : engine.active->set().members()) result.push_back(!one.active);
    return result;
  };
  mesh::before_writing_all(engine.trained.barrier);
  const std::vector<bool> before = frozen();
  change(*engine.active);
  if (frozen() != before) apply_active(engine);
}

}  // namespace cairn::train
