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
//
// Along tp each rank holds a part of P, and all of R and C. Ranks add up their sums of G^2 over rows and columns, then the squares that
// rms(U) and rms(P) are made of: two all-reduces for many parameters.
#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/IListRef.h>

#include "comm/group.h"
#include "kernels/aten.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

constexpr double kScaleMin = 1e-3;  // least rms(P) of a relative step, so that parameters that start at 0 move

constexpr int64_t kWindowElements = int64_t{1} << 22;  // parameters are updated together up to this many elements, to send less often

// Whether the same ranks hold both together: their sums are one message.
bool share_group(const ParameterPiece& a, const ParameterPiece& b) { return a.split && b.split && &a.split->group == &b.split->group; }

at::Tensor root_mean_square(const at::Tensor& x) { return x.square().mean().sqrt(); }

class Adafactor final : public Optimizer {
 public:
  Adafactor(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory)
      : options_(options), pieces_(std::move(pieces)) {
    for (const ParameterPiece& piece : pieces_) {
      const at::Tensor& p = piece.parameter;
      const auto like = p.options().dtype(at::kFloat);
      const at::IntArrayRef shape = piece.split ? at::IntArrayRef(piece.split->shape) : p.sizes();
      State state;
      const auto zeros = [&](at::IntArrayRef sizes) { return state_zeros(memory, piece.group, sizes, like); };
      if (p.dim() == 2) {
        state.rows = zeros({shape[0], 1});
        state.columns = zeros({1, shape[1]});
      } else {
        state.square = zeros(p.sizes());
      }
      if (options_.adafactor_beta1 > 0) state.mean = zeros(p.sizes());
      states_.push_back(std::move(state));
    }
  }

  void update(int64_t index, const UpdateFacts& facts) override { update_window(index, 1, facts); }

  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    for (const int64_t end = first + count; first < end;) {
      int64_t last = first, elements = 0;
      do elements += whole_elements(pieces_[static_cast<size_t>(last++)]);
      while (last < end && share_group(pieces_[static_cast<size_t>(first)], pieces_[static_cast<size_t>(last)]) &&
             elements + whole_elements(pieces_[static_cast<size_t>(last)]) <= kWindowElements);
      update_window(first, last - first, facts);
      first = last;
    }
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
    at::Tensor rows, columns;  // R and C of a whole matrix
    at::Tensor square;         // V of anything else
    at::Tensor mean;           // the first moment, where one is kept
  };

  static int64_t whole_elements(const ParameterPiece& piece) { return piece.split ? piece.split->elements() : piece.parameter.numel(); }

  // Several split parameters, or one parameter.
  void update_window(int64_t first, int64_t count, const UpdateFacts& facts) {
    const auto t = static_cast<double>(facts.step);
    const double fresh = std::pow(t, -options_.adafactor_decay_rate);
    std::vector<at::Tensor> gradients, updates;
    for (int64_t i = first; i < first + count; ++i) gradients.push_back(scaled_gradient(pieces_[static_cast<size_t>(i)].gradient, facts));
    add_factors(static_cast<size_t>(first), gradients, fresh);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const size_t at = static_cast<size_t>(first) + i;
      const at::Tensor second = second_moment(pieces_[at], states_[at], gradients[i], fresh);
      updates.push_back(gradients[i].mul_(second.clamp_min_(options_.eps * options_.eps).rsqrt_()));
    }
    const std::vector<Scales> scales = scales_of(static_cast<size_t>(first), updates);
    for (size_t i = 0; i < updates.size(); ++i) {
      const ParameterPiece& piece = pieces_[static_cast<size_t>(first) + i];
      const State& state = states_[static_cast<size_t>(first) + i];
      at::Tensor size = (scales[i].update / options_.adafactor_clip_threshold).clamp_min_(1.0).reciprocal_(), update = updates[i];
      if (options_.relative_step) {
        size.mul_(scales[i].parameter.clamp_min(kScaleMin)).mul_(std::min(facts.learning_rate, 1 / std::sqrt(t)));
      } else {
        size.mul_(facts.learning_rate);
      }
      update.mul_(size);
      if (state.mean.defined()) update = state.mean.lerp_(update, 1 - options_.adafactor_beta1);
      if (piece.decays) piece.parameter.mul_(1 - facts.learning_rate * options_.weight_decay);
      piece.parameter.sub_(update);
    }
  }

  // Moves R and C of every matrix by the weight `fresh` towards the means of the squared gradient. Collective where matrices are split.
  void add_factors(size_t first, const std::vector<at::Tensor>& gradients, double fresh) const {
    std::vector<at::Tensor> rows, columns, all;  // sums of the split ones, one after the other
    for (size_t i = 0; i < gradients.size(); ++i) {
      const ParameterPiece& piece = pieces_[first + i];
      const State& state = states_[first + i];
      rows.emplace_back(), columns.emplace_back();
      if (!state.rows.defined()) continue;
      const at::Tensor squares = gradients[i].square();
      if (!piece.split) {
        state.rows.lerp_(squares.mean(1, /*keepdim=*/true), fresh);
        state.columns.lerp_(squares.mean(0, /*keepdim=*/true), fresh);
        continue;
      }
      const TensorShard& of = *piece.split;
      rows.back() = at::zeros({of.shape[0]}, squares.options()), columns.back() = at::zeros({of.shape[1]}, squares.options());
      put_dim(rows.back(), of.mine().dims[0], squares.sum(1).mul_(of.weight() / static_cast<double>(of.shape[1])));
      put_dim(columns.back(), of.mine().dims[1], squares.sum(0).mul_(of.weight() / static_cast<double>(of.shape[0])));
      all.push_back(rows.back());
      all.push_back(columns.back());
    }
    if (all.empty()) return;
    const at::Tensor sums = at::cat(all);
    const ParameterPiece& piece = pieces_[first];
    piece.split->group.all_reduce(sums, comm::Reduce::sum, {comm::Purpose::gradient, piece.name}).wait();
    int64_t next = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!rows[i].defined()) continue;
      const State& state = states_[first + i];
      state.rows.lerp_(sums.narrow(0, next, state.rows.numel()).view({-1, 1}), fresh);
      state.columns.lerp_(sums.narrow(0, next + state.rows.numel(), state.columns.numel()).view({1, -1}), fresh);
      next += state.rows.numel() + state.columns.numel();
    }
  }

  // V of every element that this rank holds, a new tensor. A vector's moves by the weight `fresh` towards the squared gradient.
  at::Tensor second_moment(const ParameterPiece& piece, const State& state, const at::Tensor& gradient, double fresh) const {
    if (state.square.defined()) return state.square.lerp_(gradient.square(), fresh).clone();
    const at::Tensor mean = state.rows.mean().clamp_min_(options_.eps * options_.eps);
    if (!piece.split) return state.rows.mm(state.columns).div_(mean);
    const std::vector<std::vector<mesh::Interval>>& held = piece.split->mine().dims;
    return cut_dim(state.rows, 0, held[0]).mm(cut_dim(state.columns, 1, held[1])).div_(mean);
  }

  // Root mean squares over the whole parameter. Collective where parameters are split.
  struct Scales {
    at::Tensor update, parameter;
  };
  std::vector<Scales> scales_of(size_t first, const std::vector<at::Tensor>& updates) const {
    std::vector<Scales> scales;
    if (!pieces_[first].split) {
      scales.push_back({root_mean_square(updates[0]), options_.relative_step ? root_mean_square(pieces_[first].parameter) : at::Tensor()});
      return scales;
    }
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < updates.size(); ++i) {
      const ParameterPiece& piece = pieces_[first + i];
      const double share = piece.split->weight() / static_cast<double>(piece.split->elements());
      const auto mean = [&](const at::Tensor& x) { return x.square().sum(at::kDouble).mul_(share); };
      parts.push_back(mean(updates[i]));
      parts.push_back(options_.relative_step ? mean(piece.parameter) : at::zeros({}, parts.back().options()));
    }
    const at::Tensor means = at::stack(parts);
    pieces_[first].split->group.all_reduce(means, comm::Reduce::sum, {comm::Purpose::gradient, pieces_[first].name}).wait();
    const at::Tensor roots = means.sqrt().to(at::kFloat);
    for (size_t i = 0; i < updates.size(); ++i)
      scales.push_back({roots[static_cast<int64_t>(2 * i)], roots[static_cast<int64_t>(2 * i + 1)]});
    return scales;
  }

  const OptimOptions options_;
  std::vector<ParameterPiece> pieces_;
  std::vector<State> states_;  // by piece
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) {
  return std::make_unique<Adafactor>(options, std::move(pieces), memory);
}

}  // namespace cairn::optim
