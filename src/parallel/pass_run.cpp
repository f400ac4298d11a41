#include "parallel/pass_run.h"

#include "kernels/aten.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::parallel {

PassRun::PassRun(const Pass& pass) : pass_(pass) {
  if (runs_blocks(pass)) {
    run_ = std::make_unique<StageRun>(pass, BlockRange{0, pass.model.blocks().size()}, /*releases=*/true);
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

at::Tensor PassRun::output(const std::string& name) { return run_ ? run_->output(name) : at::Tensor(); }

void PassRun::put(const std::string& name, const at::Tensor& value) {
  if (run_) run_->put(name, value);
}

model::Losses PassRun::evaluate_objective() { return run_ ? run_->evaluate_objective() : no_losses(pass_); }

at::Tensor PassRun::take_gradient(const std::string& name) {
  return run_ && run_->has_gradient(name) ? run_->input_gradient(name) : at::Tensor();
}

void PassRun::put_gradient(const std::string& name, const at::Tensor& gradient) {
  if (run_ && gradient.defined()) run_->put_gradient(name, gradient);
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
