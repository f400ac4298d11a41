#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/aten.h"
#include "optim/adamw.h"
#include "optim/options.h"
#include "optim/orthogonalize.h"

namespace cairn::optim {
namespace {

class Muon final : public Optimizer {
 public:
  Muon(const OptimOptions& options, std::vector<Piece> pieces) : options_(options) {
    std::vector<Piece> rest;
    for (Piece& piece : pieces) {
      if (piece.hidden && piece.parameter.dim() == 2) {
        places_.push_back({true, static_cast<int64_t>(matrices_.size())});
        momenta_.push_back(at::zeros_like(piece.parameter, at::kFloat));
        matrices_.push_back(std::move(piece));
      } else {
        places_.push_back({false, static_cast<int64_t>(rest.size())});
        rest.push_back(std::move(piece));
      }
    }
    rest_ = make_adamw(options, std::move(rest));
  }

  Unit unit() const override { return Unit::matrices; }
  bool waits_for_norm() const override { return options_.clip > 0; }

  void update(int64_t index, const UpdateFacts& facts) override {
    const Place place = places_[static_cast<size_t>(index)];
    if (place.matrix) return update_matrix(matrices_[static_cast<size_t>(place.index)], momenta_[static_cast<size_t>(place.index)], facts);
    UpdateFacts rest = facts;
    rest.learning_rate *= options_.muon_adamw_share;
    rest_->update(place.index, rest);
  }

  mesh::NamedTensors state() override {
    mesh::NamedTensors result = rest_->state();
    for (size_t i = 0; i < matrices_.size(); ++i) result.push_back({"momentum." + matrices_[i].name, momenta_[i]});
    return result;
  }

 private:
  struct Place {
    bool matrix = false;
    int64_t index = 0;  // in matrices_, or of rest_
  };

  void update_matrix(const Piece& piece, const at::Tensor& momentum, const UpdateFacts& facts) const {
    const at::Tensor gradient = counted_gradient(piece, facts);
    // A mean, not a sum: the same after orthogonalize, which divides by the norm.
    momentum.lerp_(gradient, 1 - options_.momentum);
    const at::Tensor direction =
        orthogonalize(options_.nesterov ? gradient.lerp(momentum, options_.momentum) : momentum, options_.muon_iterations);
    if (piece.decays) piece.parameter.mul_(1 - facts.learning_rate * options_.weight_decay);
    piece.parameter.add_(direction, -facts.learning_rate * scale_of(piece.parameter));
  }

  double scale_of(const at::Tensor& matrix) const {
    const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
    // rms: Liu et al., arXiv:2502.16982, section 2.2. spectral: as in Jordan's code.
    return options_.muon_scale == "rms" ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  }

  const OptimOptions options_;
  std::vector<Place> places_;  // by piece
  std::vector<Piece> matrices_;
  std::vector<at::Tensor> momenta_;
  std::unique_ptr<Optimizer> rest_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimOptions& options, std::vector<Piece> pieces) {
  return std::make_unique<Muon>(options, std::move(pieces));
}

}  // namespace cairn::optim
