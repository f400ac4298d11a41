// Muon (Jordan et al., kellerjordan.github.io/posts/muon): the step of a hidden matrix is its momentum, made orthogonal. With G the
// effective gradient and mu the momentum:
//
//   M <- mu M + (1 - mu) G                              one number per element
//   O <- orthogonalize(nesterov ? mu M + (1 - mu) G : M)   Newton-Schulz (orthogonalize.h): U V^T of the singular value decomposition
//   P <- (1 - lr weight_decay) P - lr s O
//
// muon_scale sets s for a layer from c inputs to r outputs: "rms" is 0.2 sqrt(max(r, c)), which gives steps as large as AdamW's (Liu et
// al., arXiv:2502.16982, section 2.2); "spectral" is sqrt(max(1, r / c)), as in Jordan's code. The matrix may be stored r x c or c x r
// (fan_in_fan_out, GPT-2): orthogonalize(G^T) = orthogonalize(G)^T, so only "spectral" depends on which it is. AdamW updates everything
// that is no hidden matrix, with learning rate lr * muon_adamw_lr_ratio.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>

#include "kernels/aten.h"
#include "optim/adamw.h"
#include "optim/optimizer.h"
#include "optim/options.h"
#include "optim/orthogonalize.h"

namespace cairn::optim {
namespace {

// Matrices of one size are batched on a GPU up to this many elements. Small matrices one at a time leave most of the GPU idle; batching
// large ones gains nothing and takes more memory.
constexpr int64_t kBatchedElements = int64_t{1} << 24;

class Muon final : public Optimizer {
 public:
  Muon(const OptimOptions& options, std::vector<ParameterPiece> pieces) : options_(options) {
    std::vector<ParameterPiece> rest;
    for (ParameterPiece& piece : pieces) {
      if (piece.hidden && piece.parameter.dim() == 2) {
        places_.push_back({true, matrices_.size()});
        add_to_group(piece, matrices_.size());
        matrices_.push_back(std::move(piece));
      } else {
        places_.push_back({false, rest.size()});
        rest.push_back(std::move(piece));
      }
    }
    for (Group& group : groups_) {
      const ParameterPiece& like = matrices_[group.members[0]];
      group.momenta = at::zeros({static_cast<int64_t>(group.members.size()), like.parameter.size(0), like.parameter.size(1)},
                                like.parameter.options().dtype(at::kFloat));
    }
    rest_ = make_adamw(options, std::move(rest));
  }

  void update(int64_t index, const UpdateFacts& facts) override {
    const Place place = places_[static_cast<size_t>(index)];
    if (!place.matrix) return rest_->update(static_cast<int64_t>(place.index), facts_of_rest(facts));
    update_batch({&place.index, 1}, momentum_of(place.index).unsqueeze(0), facts);
  }

  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    if (count < static_cast<int64_t>(places_.size())) return Optimizer::update_several(first, count, facts);
    for (const Group& group : groups_) update_batch(group.members, group.momenta, facts);
    rest_->update_several(0, static_cast<int64_t>(places_.size() - matrices_.size()), facts_of_rest(facts));
  }

  mesh::NamedTensors state() override {
    mesh::NamedTensors result = rest_->state();
    for (size_t i = 0; i < matrices_.size(); ++i) result.push_back({"momentum." + matrices_[i].name, momentum_of(i)});
    return result;
  }

 private:
  struct Place {
    bool matrix = false;
    size_t index = 0;  // in matrices_, or of rest_
  };
  // Matrices of one size and one order of storage.
  struct Group {
    std::vector<size_t> members;  // in matrices_
    at::Tensor momenta = {};      // [member, rows, columns]
  };

  void add_to_group(const ParameterPiece& piece, size_t index) {
    const auto has_room = [&](const Group& group) {
      const ParameterPiece& like = matrices_[group.members[0]];
      return piece.parameter.is_cuda() && like.parameter.sizes() == piece.parameter.sizes() &&
             like.fan_in_fan_out == piece.fan_in_fan_out &&
             static_cast<int64_t>(group.members.size() + 1) * piece.parameter.numel() <= kBatchedElements;
    };
    size_t group = 0;
    while (group < groups_.size() && !has_room(groups_[group])) ++group;
    if (group == groups_.size()) groups_.emplace_back();
    in_group_.push_back({group, groups_[group].members.size()});
    groups_[group].members.push_back(index);
  }

  at::Tensor momentum_of(size_t matrix) const {
    const auto [group, member] = in_group_[matrix];
    return groups_[group].momenta.select(0, static_cast<int64_t>(member));
  }

  UpdateFacts facts_of_rest(UpdateFacts facts) const {
    facts.learning_rate *= options_.muon_adamw_lr_ratio;
    return facts;
  }

  void update_batch(std::span<const size_t> members, const at::Tensor& momenta, const UpdateFacts& facts) const {
    std::vector<at::Tensor> gradients, parameters, decayed;
    for (const size_t member : members) {
      const ParameterPiece& piece = matrices_[member];
      gradients.push_back(piece.gradient);
      parameters.push_back(wide(piece.parameter));
      if (piece.decays) decayed.push_back(parameters.back());
    }
    const at::Tensor gradient = scaled_gradient(gradients.size() > 1 ? at::stack(gradients) : gradients[0].unsqueeze(0), facts);
    // A mean instead of Jordan's sum: orthogonalize divides by the norm, so the result is the same.
    momenta.lerp_(gradient, 1 - options_.momentum);
    const at::Tensor directions =
        orthogonalize(options_.nesterov ? gradient.lerp(momenta, options_.momentum) : momenta, options_.muon_iterations);
    if (!decayed.empty()) at::_foreach_mul_(decayed, 1 - facts.learning_rate * options_.weight_decay);
    at::_foreach_add_(parameters, directions.unbind(0), -facts.learning_rate * scale_of(matrices_[members[0]]));
    for (size_t i = 0; i < members.size(); ++i) put(matrices_[members[i]], parameters[i], facts);
  }

  // Updates are computed in fp32: on the parameter itself, or on a copy of a bf16 parameter, which `put` rounds back.
  static at::Tensor wide(const at::Tensor& parameter) { return parameter.to(at::kFloat); }
  static void put(const ParameterPiece& piece, const at::Tensor& wide, const UpdateFacts& facts) {
    if (!wide.is_same(piece.parameter)) round_into(piece.parameter, wide, rounding_of(piece, facts));
  }

  double scale_of(const ParameterPiece& matrix) const {
    const auto outputs = static_cast<double>(matrix.parameter.size(matrix.fan_in_fan_out ? 1 : 0));
    const auto inputs = static_cast<double>(matrix.parameter.size(matrix.fan_in_fan_out ? 0 : 1));
    return options_.muon_scale == MuonScale::rms ? 0.2 * std::sqrt(std::max(outputs, inputs)) : std::sqrt(std::max(1.0, outputs / inputs));
  }

  const OptimOptions options_;
  std::vector<Place> places_;  // by piece
  std::vector<ParameterPiece> matrices_;
  std::vector<std::pair<size_t, size_t>> in_group_;  // by matrix: its group, its number there
  std::vector<Group> groups_;
  std::unique_ptr<Optimizer> rest_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimOptions& options, std::vector<ParameterPiece> pieces) {
  return std::make_unique<Muon>(options, std::move(pieces));
}

}  // namespace cairn::optim
