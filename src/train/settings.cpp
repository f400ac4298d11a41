#include "train/settings.h"

namespace cairn::train {

Settings read_settings(base::Recipe& recipe) {
  Settings s;
  s.model = recipe.read(model::model_schema());
  s.data = recipe.read(data::data_schema());
  s.train = recipe.read(train_schema());
  s.optim = recipe.read(optim::optim_schema());
  s.mesh = recipe.read(mesh_schema());
  s.sync = recipe.read(sync::sync_schema());
  s.snapshot = recipe.read(snapshot::snapshot_schema());
  s.eval = recipe.read(eval_schema());
  s.log = recipe.read(log_schema());
  recipe.check_all_used();
  return s;
}

std::vector<base::Section> recipe_sections() {
  return {model::model_schema().section(),       data::data_schema().section(), train_schema().section(),
          optim::optim_schema().section(),       mesh_schema().section(),       sync::sync_schema().section(),
          snapshot::snapshot_schema().section(), eval_schema().section(),       log_schema().section()};
}

}  // namespace cairn::train
