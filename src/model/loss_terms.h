#pragma once
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace cairn::model {

// The loss terms that the blocks of one pass add to the objective's loss: sums over its tokens, as the objective's loss is one (router
// losses). A block makes the gradient of weight * sum itself, in its backward calls, scaled by Call::loss_weight. Every name is one of
// Model::loss_terms.
class LossTerms {
 public:
  void add(const std::string& name, const at::Tensor& sum /*0-dim*/, double weight) {
    at::Tensor& all = sums_[name];
    all = all.defined() ? all + sum : sum;
    const at::Tensor part = sum * weight;
    total_ = total_.defined() ? total_ + part : part;
  }
  // Undefined where no block has added to it.
  at::Tensor sum(const std::string& name) const {
    const auto found = sums_.find(name);
    return found == sums_.end() ? at::Tensor() : found->second;
  }
  // The sum of weight * sum; undefined where there are none.
  const at::Tensor& total() const { return total_; }

 private:
  std::map<std::string, at::Tensor> sums_;
  at::Tensor total_;
};

}  // namespace cairn::model
