#include "study/prune/input_statistics.h"

#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::study {

// Neighbours are multiplied one right after the other, by the same tensor. It is held, so that no other one can have its address.
void InputStatistics::see(const std::string& weight, const at::Tensor& x) {
  const bool same =
      weight != last_ && last_input_.defined() && x.const_data_ptr() == last_input_.const_data_ptr() && x.sizes() == last_input_.sizes();
  if (const auto found = shares_.find(weight); found == shares_.end()) shares_[weight] = same ? shares_.at(last_) : weight;
  last_ = weight, last_input_ = x;
  if (shares_.at(weight) != weight) return;
  std::shared_ptr<Sum>& sum = sums_[weight];
  if (!sum) sum = std::make_shared<Sum>();
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor added = kind_ == Kind::squares ? wide.square().sum(0) : at::mm(wide.t(), wide).mul_(2);
  sum->sum = sum->sum.defined() ? sum->sum.add_(added) : added;
  sum->rows += static_cast<double>(x.size(0));
}

void InputStatistics::reduce(comm::Group& group) {
  last_input_.reset();
  if (group.size() == 1) return;
  for (const auto& [weight, sum] : sums_) {
    group.all_reduce(sum->sum, comm::Reduce::sum, {comm::Purpose::state, weight}).wait();
    group.all_reduce({&sum->rows, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::state, weight}).wait_host();
  }
}

at::Tensor InputStatistics::mean(const std::string& weight) const {
  const auto shares = shares_.find(weight);
  CAIRN_CHECK(shares != shares_.end(), "{} was not multiplied", weight);
  const Sum& sum = *sums_.at(shares->second);
  return sum.sum / sum.rows;
}

namespace {

class ObservedWeight final : public model::WeightForm {
 public:
  ObservedWeight(std::shared_ptr<const model::WeightForm> own, InputStatistics*& into) : own_(std::move(own)), into_(into) {}

  void product(const at::Tensor& y, const at::Tensor& x, const model::Call& call, const at::Tensor* onto) const override {
    if (into_) into_->see(own_->dense_parameter().name, x);
    own_->product(y, x, call, onto);
  }
  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const model::Call& call, bool accumulate) const override {
    own_->input_gradient(dx, dy, call, accumulate);
  }
  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const model::Call& call) const override {
    own_->weight_gradient(into, x, dy, call);
  }
  at::Tensor plain(const at::Tensor& x, const model::Call& call) const override { return own_->plain(x, call); }
  at::Tensor dense(const model::Call& call) const override { return own_->dense(call); }
  const model::Parameter& dense_parameter() const override { return own_->dense_parameter(); }
  bool stores_dense() const override { return own_->stores_dense(); }
  std::vector<mesh::ParamId> parameters() const override { return own_->parameters(); }
  Widths widths(const model::Call& call) const override { return own_->widths(call); }
  void describe(model::BlockOp& operation) const override { own_->describe(operation); }
  const char* name() const override { return own_->name(); }

 private:
  std::shared_ptr<const model::WeightForm> own_;
  InputStatistics*& into_;
};

class ObservingRule final : public model::WeightFormRule {
 public:
  explicit ObservingRule(InputStatistics*& into) : into_(into) {}
  Kind kind_of(const model::Parameter&) const override { return Kind::stored; }
  std::shared_ptr<const model::WeightForm> make(model::Model&, const model::Parameter& dense,
                                                std::optional<mesh::ParamId> weight) const override {
    return std::make_shared<ObservedWeight>(model::make_plain_weight(dense, *weight), into_);
  }

 private:
  InputStatistics*& into_;
};

}  // namespace

std::shared_ptr<const model::WeightFormRule> make_observing_rule(InputStatistics*& into) { return std::make_shared<ObservingRule>(into); }

}  // namespace cairn::study
