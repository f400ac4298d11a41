#pragma once
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace cairn::model {

// The activations that a block's forward call keeps for its gradients, by name. The gradients consume them. Recomputation and offload work
// on this value.
class Saved {
 public:
  void put(const std::string& name, at::Tensor tensor) { tensors_.insert_or_assign(name, std::move(tensor)); }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const at::Tensor& get(const std::string& name) const { return tensors_.at(name); }
  at::Tensor take(const std::string& name) { return std::move(tensors_.extract(name).mapped()); }
  int64_t bytes() const {
    int64_t n = 0;
    for (const auto& [name, tensor] : tensors_) n += static_cast<int64_t>(tensor.nbytes());
    return n;
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace cairn::model
