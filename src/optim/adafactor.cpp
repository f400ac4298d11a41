// Adafactor (Shazeer and Stern, arXiv:1804.04235): the second moment of an r x c matrix G is kept as the means of its rows and columns,
// r + c numbers instead of r c. With t the number of the update, d = adafactor_decay_rate and w = t^-d:
//
//   R <- (1 - w) R + w mean_columns(G^2)                row_mean [r, 1]
//   C <- (1 - w) C + w mean_rows(G^2)                   column_mean [1, c]
//   V = R C / mean(R)                                   of a vector: V itself is kept (exp_avg_sq)
//   U = G / max(sqrt(V), eps)
//   U <- U / max(1, rms(U) / adafactor_clip_threshold)  update clipping
//   P <- (1 - lr weight_decay) P - a U                  U is averaged first where adafactor_beta1 > 0 (exp_avg)
//
// a = lr; with relative_step a = min(lr, 1 / sqrt(t)) * max(rms(P), 0.001), as torch.optim.Adafactor has it. mean(R) is at
// least eps^2 here, and at least eps there: gradients with a root mean square below sqrt(eps) give other steps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/aten.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

constexpr double kScaleMin = 1e-3;  // least rms(P) of a relative step, so that parameters that start at 0 move

at::Tensor root_mean_square(const at::Tensor& x) { return x.square().mean().sqrt(); }

class Adafactor final : public Optimizer {
 public:
  Adafactor(const OptimOptions& options, std::vector<ParameterPiece> pieces) : options_(options), pieces_(std::move(pieces)) {
    for (const ParameterPiece& piece : pieces_) {
      const at::Tensor& p = piece.parameter;
      const auto like = p.options().dtype(at::kFloat);
      State state;
      if (p.dim() == 2) {
        state.rows = at::zeros({p.size(0), 1}, like);
        state.columns = at::zeros({1, p.size(1)}, like);
      } else {
        state.square = at::zeros(p.sizes(), like);
      }
      if (options_.adafactor_beta1 > 0) state.mean = at::zeros(p.sizes(), like);
      states_.push_back(std::move(state));
    }
  }

  void update(int64_t index, const UpdateFacts& facts) override {
    const ParameterPiece& piece = pieces_[static_cast<size_t>(index)];
    const State& state = states_[static_cast<size_t>(index)];
    const auto t = static_cast<double>(facts.step);
    const at::Tensor gradient = scaled_gradient(piece.gradient, facts);
    at::Tensor update =
        gradient *
        second_moment(state, gradient, std::pow(t, -options_.adafactor_decay_rate)).clamp_min_(options_.eps * options_.eps).rsqrt_();
    at::Tensor size = (root_mean_square(update) / options_.adafactor_clip_threshold).clamp_min_(1.0).reciprocal_();
    if (options_.relative_step) {
      size.mul_(root_mean_square(piece.parameter).clamp_min_(kScaleMin)).mul_(std::min(facts.learning_rate, 1 / std::sqrt(t)));
    } else {
      size.mul_(facts.learning_rate);
    }
    update.mul_(size);
    if (state.mean.defined()) update = state.mean.lerp_(update, 1 - options_.adafactor_beta1);
    if (piece.decays) piece.parameter.mul_(1 - facts.learning_rate * options_.weight_decay);
    piece.parameter.sub_(update);
  }

  mesh::NamedTensors state() override {
    mesh::NamedTensors result;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const State& state = states_[i];
      if (state.rows.defined()) result.push_back({"row_mean." + pieces_[i].name, state.rows});
      if (state.columns.defined()) result.push_back({"column_mean." + pieces_[i].name, state.columns});
      if (state.square.defined()) result.push_back({"exp_avg_sq." + pieces_[i].name, state.square});
      if (state.mean.defined()) result.push_back({"exp_avg." + pieces_[i].name, state.mean});
    }
    return result;
  }

 private:
  struct State {
    at::Tensor rows, columns;  // R and C of a matrix
    at::Tensor square;         // V of anything else
    at::Tensor mean;           // the first moment, where one is kept
  };

  // Moves the second moment by the weight `fresh` towards the squared gradient. Returns V for every element, a new tensor.
  at::Tensor second_moment(const State& state, const at::Tensor& gradient, double fresh) const {
    const at::Tensor squares = gradient.square();
    if (state.square.defined()) return state.square.lerp_(squares, fresh).clone();
    state.rows.lerp_(squares.mean(1, /*keepdim=*/true), fresh);
    state.columns.lerp_(squares.mean(0, /*keepdim=*/true), fresh);
    return state.rows.mm(state.columns).div_(state.rows.mean().clamp_min_(options_.eps * options_.eps));
  }

  const OptimOptions options_;
  std::vector<ParameterPiece> pieces_;
  std::vector<State> states_;  // by piece
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimOptions& options, std::vector<ParameterPiece> pieces) {
  return std::make_unique<Adafactor>(options, std::move(pieces));
}

}  // namespace cairn::optim
