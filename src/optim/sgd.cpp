// Stochastic gradient descent. With g the effective gradient and mu the momentum:
//
//   g <- g + weight_decay p                             where decay_decoupled = false (L2), as in torch.optim.SGD
//   p <- (1 - lr weight_decay) p                        where decay_decoupled = true (SGDW)
//   b <- mu b + g                                       one number per element; none without momentum
//   p <- p - lr b,   or with nesterov   p <- p - lr (g + mu b)
#include <utility>

#include "kernels/aten.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) : options_(options), pieces_(std::move(pieces)) {
    if (options_.momentum == 0) return;
    for (const ParameterPiece& piece : pieces_)
      momenta_.push_back(state_zeros(memory, piece.group, piece.parameter.sizes(), piece.parameter.options().dtype(at::kFloat)));
  }

  void update(int64_t index, const UpdateFacts& facts) override {
    const ParameterPiece& piece = pieces_[static_cast<size_t>(index)];
    const double decay = piece.decays ? options_.weight_decay : 0;
    at::Tensor step = scaled_gradient(piece.gradient, facts);
    if (decay > 0 && options_.decay_decoupled) piece.parameter.mul_(1 - facts.learning_rate * decay);
    if (decay > 0 && !options_.decay_decoupled) step.add_(piece.parameter, decay);
    if (!momenta_.empty()) {
      const at::Tensor& momentum = momenta_[static_cast<size_t>(index)];
      momentum.mul_(options_.momentum).add_(step);
      step = options_.nesterov ? step.add_(momentum, options_.momentum) : momentum;
    }
    piece.parameter.add_(step, -facts.learning_rate);
  }

  mesh::NamedTensors state() override {
    mesh::NamedTensors result;
    for (size_t i = 0; i < momenta_.size(); ++i) result.push_back({"momentum." + pieces_[i].name, momenta_[i]});
    return result;
  }

 private:
  const OptimOptions options_;
  std::vector<ParameterPiece> pieces_;
  std::vector<at::Tensor> momenta_;  // one for each piece, or none
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) {
  return std::make_unique<Sgd>(options, std::move(pieces), memory);
}

}  // namespace cairn::optim
