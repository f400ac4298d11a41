#include "parallel/pass_run.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::parallel {

mesh::Batch ignored_sample(const mesh::Batch& like) {
  CAIRN_CHECK(like.samples() == 0, "a batch of {} samples needs none that is ignored", like.samples());
  mesh::Batch batch;
  batch.progress = like.progress;
  batch.norm_samples = like.norm_samples;
  batch.ids = at::full({1}, -1, like.ids.options());
  batch.weights = at::zeros({1}, like.ids.options().dtype(at::kFloat));
  for (const auto& [name, field] : like.fields) {
    std::vector<int64_t> shape = field.tensor.sizes().vec();
    if (field.shape == mesh::Field::Shape::whole || shape.empty()) {
      batch.fields[name] = field;
      continue;
    }
    shape.front() = 1;
    batch.fields[name] = {at::full(shape, name == "targets" ? kernels::kIgnoreTarget : 0, field.tensor.options()), field.shape};
  }
  return batch;
}

PassRun::PassRun(const Pass& pass) : pass_(pass) {
  if (runs_blocks(pass)) {
    if (pass.batch.samples() == 0) {
      ignored_ = std::make_unique<Pass>(pass);
      ignored_->batch = ignored_sample(pass.batch);
    }
    run_ = std::make_unique<StageRun>(ignored_ ? *ignored_ : pass, BlockRange{0, pass.model.blocks().size()}, /*releases=*/true);
  } else {
    for (const auto& block : pass.model.blocks()) named_.push_back(model::named_parameters(block->card()));
  }
}

// A pass without samples still fetches weights and skips gradients in the same order: ranks with samples need this one in the collectives.
void PassRun::fetch_forward() const {
  for (size_t i = 0; i < named_.size(); ++i) {
    pass_.at.fetch(named_[i]);
    pass_.at.fetch(weights_ahead(pass_, named_, 0, i, /*forward=*/true));
    if (!pass_.into || i + 1 < named_.size()) pass_.at.release(named_[i], weights_kept(pass_, named_, 0, i, /*forward=*/true));
  }
}

void PassRun::fetch_backward() const {
  if (pass_.recompute && pass_.options.recompute_stage) fetch_forward();
  for (size_t i = named_.size(); i-- > 0;) {
    if (backward_needs_weights(pass_, i)) pass_.at.fetch(named_[i]);
    pass_.at.fetch(weights_ahead(pass_, named_, 0, i, /*forward=*/false));
    for (const mesh::ParamId& id : named_[i]) pass_.into->skip(id);
    pass_.at.release(named_[i], weights_kept(pass_, named_, 0, i, /*forward=*/false));
  }
}

void PassRun::forward() { run_ ? run_->forward() : fetch_forward(); }

at::Tensor PassRun::output(const std::string& name) { return has_outputs() ? run_->output(name) : at::Tensor(); }

void PassRun::put(const std::string& name, const at::Tensor& value) {
  if (has_outputs()) run_->put(name, value);
}

model::Losses PassRun::evaluate_objective() {
  if (!run_) return no_losses(pass_);
  model::Losses losses = run_->evaluate_objective();
  return ignored_ ? no_losses(pass_) : losses;
}

at::Tensor PassRun::take_gradient(const std::string& name) {
  return has_outputs() && run_->has_gradient(name) ? run_->input_gradient(name) : at::Tensor();
}

void PassRun::put_gradient(const std::string& name, const at::Tensor& gradient) {
  if (has_outputs() && gradient.defined()) run_->put_gradient(name, gradient);
}

void PassRun::backward() {
  if (run_) {
    run_->backward();
    if (pass_.field_gradients) run_->collect_field_gradients(*pass_.field_gradients);
  } else {
    fetch_backward();
  }
  pass_.into->end_pass();
}

}  // namespace cairn::parallel
