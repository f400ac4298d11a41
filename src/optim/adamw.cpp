// AdamW (Loshchilov and Hutter, arXiv:1711.05101), element by element. With g the effective gradient and t the number of the update:
//
//   m <- beta1 m + (1 - beta1) g                        exp_avg, mean_
//   v <- beta2 v + (1 - beta2) g^2                      exp_avg_sq, square_
//   p <- (1 - lr weight_decay) p                        decay is decoupled from the gradient
//   p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// The arithmetic is in kernels/adamw.h. Both moments of a group of pieces lie in one buffer, so that one kernel updates many pieces.
#include "optim/adamw.h"

#include <utility>

#include "kernels/adamw.h"
#include "kernels/aten.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

class Adamw final : public Optimizer {
 public:
  Adamw(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory)
      : options_(options), pieces_(std::move(pieces)) {
    for (size_t first = 0; first < pieces_.size();) {
      size_t end = first;
      int64_t elements = 0;
      for (; end < pieces_.size() && pieces_[end].group == pieces_[first].group; ++end) elements += pieces_[end].parameter.numel();
      const auto like = pieces_[first].parameter.options().dtype(options_.moments == StateDtype::bf16 ? at::kBFloat16 : at::kFloat);
      const at::Tensor moments = state_zeros(memory, pieces_[first].group, {2 * elements}, like);
      for (int64_t at = 0; first < end; at += pieces_[first++].parameter.numel()) {
        const int64_t n = pieces_[first].parameter.numel();
        mean_.push_back(moments.narrow(0, at, n));
        square_.push_back(moments.narrow(0, elements + at, n));
      }
    }
  }

  void update(int64_t index, const UpdateFacts& facts) override { update_several(index, 1, facts); }

  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    kernels::adamw(rounded(first, count, facts), step_of(facts));
  }

  at::Tensor step_scalars(const UpdateFacts& facts) override {
    return kernels::adamw_scalars_of(rounded(0, std::ssize(pieces_), facts), step_of(facts));
  }

  mesh::NamedTensors state() override {
    mesh::NamedTensors result;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const ParameterPiece& piece = pieces_[i];
      result.push_back({"exp_avg." + piece.name, mean_[i].view(piece.parameter.sizes())});
      result.push_back({"exp_avg_sq." + piece.name, square_[i].view(piece.parameter.sizes())});
    }
    return result;
  }

 private:
  kernels::AdamwStep step_of(const UpdateFacts& facts) const {
    return {.learning_rate = facts.learning_rate,
            .beta1 = options_.beta1,
            .beta2 = options_.beta2,
            .eps = options_.eps,
            .step = facts.step,
            .gradient_scale = facts.gradient_scale,
            .gradient_factor = facts.gradient_factor,
            .scalars = facts.step_scalars};
  }

  // The pieces as the kernel takes them (made once), with the random numbers that round them in this step.
  std::span<const kernels::AdamwPiece> rounded(int64_t first, int64_t count, const UpdateFacts& facts) {
    for (size_t i = flat_.size(); i < pieces_.size(); ++i) {
      const ParameterPiece& piece = pieces_[i];
      const int64_t n = piece.parameter.numel();
      flat_.push_back({.p = piece.parameter.view({n}),
                       .m = mean_[i],
                       .v = square_[i],
                       .g = piece.gradient.view({n}),
                       .weight_decay = piece.decays ? options_.weight_decay : 0,
                       .first_index = piece.first_index});
    }
    rounding_.resize(pieces_.size());
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(first + count); ++i) {
      const auto numbers = rounding_of(pieces_[i], facts);
      if (numbers) rounding_[i] = *numbers;
      flat_[i].rounding = numbers ? &rounding_[i] : nullptr;
    }
    return std::span(flat_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }

  const OptimOptions options_;
  std::vector<ParameterPiece> pieces_;
  std::vector<at::Tensor> mean_, square_;  // by piece, flat
  std::vector<kernels::AdamwPiece> flat_;  // made at the first update
  std::vector<base::Random> rounding_;     // flat_ points to these
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) {
  return std::make_unique<Adamw>(options, std::move(pieces), memory);
}

}  // namespace cairn::optim
