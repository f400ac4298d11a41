// Riemannian Adam (Becigneul and Ganea, arXiv:1810.00760) on rows of parameters that are points x of the hyperboloid
// (model/hyperbolic/lorentz.h has the model of the space). With G the Euclidean gradient of a row and t the number of the update:
//
//   g = h + <x, h> x,   h = (-G_0, G_s)                 the gradient in the tangent space
//   m <- beta1 m + (1 - beta1) g
//   v <- beta2 v + (1 - beta2) <g, g>                   one number for each row
//   d = -lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//   y = exp_x(d) = cosh(|d|) x + sinh(|d|) d / |d|,     put back onto the hyperboloid by y_0 = sqrt(1 + |y_s|^2)
//   m <- m + <y, m> / (1 - <x, y>) (x + y)              carried along to y
//
// v is kept for every element, so that both moments go along where rows are moved. AdamW updates all other parameters; nothing decays here.
#include <cmath>
#include <utility>

#include "kernels/aten.h"
#include "optim/adamw.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

at::Tensor space_part(const at::Tensor& x) { return x.narrow(1, 1, x.size(1) - 1); }
at::Tensor time_part(const at::Tensor& x) { return x.narrow(1, 0, 1); }

at::Tensor minkowski(const at::Tensor& x, const at::Tensor& y) {
  return (space_part(x) * space_part(y)).sum(1, /*keepdim=*/true) - time_part(x) * time_part(y);
}

class RiemannianAdam final : public Optimizer {
 public:
  RiemannianAdam(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) : options_(options) {
    std::vector<ParameterPiece> flat;
    for (ParameterPiece& piece : pieces) {
      if (!piece.on_hyperboloid) {
        places_.push_back({false, static_cast<int64_t>(flat.size())});
        flat.push_back(std::move(piece));
        continue;
      }
      places_.push_back({true, static_cast<int64_t>(points_.size())});
      const auto zeros = [&] {
        return state_zeros(memory, piece.group, piece.parameter.sizes(), piece.parameter.options().dtype(at::kFloat));
      };
      const at::Tensor mean = zeros(), square = zeros();
      points_.push_back({std::move(piece), mean, square});
    }
    flat_ = make_adamw(options, std::move(flat), memory);
  }

  void update(int64_t index, const UpdateFacts& facts) override {
    const auto& [curved, place] = places_[static_cast<size_t>(index)];
    curved ? move(points_[static_cast<size_t>(place)], facts) : flat_->update(place, facts);
  }

  mesh::NamedTensors state() override {
    mesh::NamedTensors all = flat_->state();
    for (const Points& one : points_) {
      all.push_back({"exp_avg." + one.piece.name, one.mean});
      all.push_back({"exp_avg_sq." + one.piece.name, one.square});
    }
    return all;
  }

 private:
  struct Points {
    ParameterPiece piece;
    at::Tensor mean, square;
  };

  void move(const Points& one, const UpdateFacts& facts) const {
    const at::Tensor x = one.piece.parameter.to(at::kDouble), h = scaled_gradient(one.piece.gradient, facts).to(at::kDouble);
    time_part(h).neg_();
    const at::Tensor g = h + minkowski(x, h) * x;
    const at::Tensor mean = one.mean.to(at::kDouble) * options_.beta1 + g * (1 - options_.beta1);
    one.square.mul_(options_.beta2).add_((minkowski(g, g).clamp_min(0) * (1 - options_.beta2)).to(at::kFloat));
    const auto t = static_cast<double>(facts.step);
    const at::Tensor size = (time_part(one.square).to(at::kDouble) / (1 - std::pow(options_.beta2, t))).sqrt() + options_.eps;
    const at::Tensor d = mean / size * (-facts.learning_rate / (1 - std::pow(options_.beta1, t)));
    const at::Tensor length = minkowski(d, d).clamp_min(1e-30).sqrt();
    const at::Tensor y = length.cosh() * x + length.sinh() / length * d;
    time_part(y).copy_((space_part(y).square().sum(1, /*keepdim=*/true) + 1).sqrt());
    one.mean.copy_(mean + minkowski(y, mean) / (1 - minkowski(x, y)) * (x + y));
    one.piece.parameter.copy_(y);
    // After rounding, so that the kept point is as near as it can be.
    time_part(one.piece.parameter).copy_((space_part(one.piece.parameter).to(at::kDouble).square().sum(1, /*keepdim=*/true) + 1).sqrt());
  }

  const OptimOptions options_;
  std::vector<std::pair<bool, int64_t>> places_;  // by piece: whether it has points, and which one it is among those or the others
  std::vector<Points> points_;
  std::unique_ptr<Optimizer> flat_;
};

}  // namespace

std::unique_ptr<Optimizer> make_riemannian_adam(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) {
  return std::make_unique<RiemannianAdam>(options, std::move(pieces), memory);
}

}  // namespace cairn::optim
