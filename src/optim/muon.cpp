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
//
// Along tp each rank holds a part of a matrix and of M. Every matrix has an owner among the ranks: all send it their part of what is to be
// made orthogonal, it runs Newton-Schulz on the whole, and sends the parts of O back. Two all-to-all for many matrices, and no matrix is
// made orthogonal twice.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/core/IListRef.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>

#include "comm/group.h"
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
  Muon(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) : options_(options) {
    std::vector<ParameterPiece> rest;
    for (ParameterPiece& piece : pieces) {
      if (piece.hidden && piece.parameter.dim() == 2) {
        places_.push_back({true, matrices_.size()});
        add_to_group(piece, matrices_.size());
        split_number_.push_back(split_count_);
        if (piece.split) ++split_count_;
        matrices_.push_back(std::move(piece));
      } else {
        places_.push_back({false, rest.size()});
        rest.push_back(std::move(piece));
      }
    }
    for (Group& group : groups_) {
      const ParameterPiece& like = matrices_[group.members[0]];
      group.momenta =
          state_zeros(memory, like.group, {static_cast<int64_t>(group.members.size()), like.parameter.size(0), like.parameter.size(1)},
                      like.parameter.options().dtype(at::kFloat));
    }
    rest_ = make_adamw(options, std::move(rest), memory);
  }

  void update(int64_t index, const UpdateFacts& facts) override {
    const Place place = places_[static_cast<size_t>(index)];
    if (!place.matrix) return rest_->update(static_cast<int64_t>(place.index), facts_of_rest(facts));
    if (matrices_[place.index].split) return update_split({&place.index, 1}, facts);
    update_batch({&place.index, 1}, momentum_of(place.index).unsqueeze(0), facts);
  }

  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    if (count < static_cast<int64_t>(places_.size())) return Optimizer::update_several(first, count, facts);
    std::vector<size_t> split;
    int64_t elements = 0;  // of whole matrices, for each rank
    const auto send = [&] {
      update_split(split, facts);
      split.clear();
      elements = 0;
    };
    for (const Group& group : groups_) {
      const ParameterPiece& one = matrices_[group.members[0]];
      if (!one.split) {
        update_batch(group.members, group.momenta, facts);
        continue;
      }
      split.push_back(group.members[0]);
      elements += one.split->elements() / one.split->group.size();
      if (elements >= kBatchedElements) send();
    }
    if (!split.empty()) send();
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
      return piece.parameter.is_cuda() && !piece.split && !like.split && like.parameter.sizes() == piece.parameter.sizes() &&
             like.fan_in_fan_out == piece.fan_in_fan_out && like.group == piece.group &&
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

  // Split matrix k belongs to rank k modulo the number of ranks. How far the first matrix of a rank is from matrix `number`.
  static size_t first_owned(size_t number, int rank, int ranks) {
    const auto n = static_cast<size_t>(ranks);
    return (static_cast<size_t>(rank) + n - number % n) % n;
  }

  // Matrices that the ranks of one group hold together, neighbours in the order of split matrices. Collective.
  void update_split(std::span<const size_t> members, const UpdateFacts& facts) const {
    comm::Group& group = matrices_[members[0]].split->group;
    const int me = group.rank(), ranks = group.size();
    const size_t number = split_number_[members[0]];
    const auto owner = [&](size_t i) { return static_cast<int>((number + i) % static_cast<size_t>(ranks)); };
    // By rank: what this rank sends to it and gets from it; the way back is the other way round.
    std::vector<int64_t> to_owner(static_cast<size_t>(ranks), 0), from_parts(static_cast<size_t>(ranks), 0);
    std::vector<std::vector<at::Tensor>> parts(static_cast<size_t>(ranks));
    for (size_t i = 0; i < members.size(); ++i) {
      const ParameterPiece& piece = matrices_[members[i]];
      const at::Tensor gradient = scaled_gradient(piece.gradient, facts), momentum = momentum_of(members[i]);
      momentum.lerp_(gradient, 1 - options_.momentum);
      parts[static_cast<size_t>(owner(i))].push_back(
          (options_.nesterov ? gradient.lerp(momentum, options_.momentum) : momentum).reshape({-1}));
      to_owner[static_cast<size_t>(owner(i))] += piece.parameter.numel();
      for (int rank = 0; owner(i) == me && rank < ranks; ++rank) from_parts[static_cast<size_t>(rank)] += piece.split->elements_of(rank);
    }
    std::vector<at::Tensor> in_order;
    for (const std::vector<at::Tensor>& of : parts) in_order.insert(in_order.end(), of.begin(), of.end());
    const at::Tensor mine = at::cat(in_order);
    const at::Tensor owned = at::empty({std::accumulate(from_parts.begin(), from_parts.end(), int64_t{0})}, mine.options());
    const comm::Label label{comm::Purpose::gradient, matrices_[members[0]].name};
    group.all_to_all(owned, mine, label, from_parts, to_owner).wait();
    orthogonalize_owned(owned, members, group, from_parts);
    group.all_to_all(mine, owned, label, to_owner, from_parts).wait();
    int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (size_t i = first_owned(number, rank, ranks); i < members.size(); i += static_cast<size_t>(ranks)) {
        const ParameterPiece& piece = matrices_[members[i]];
        const at::Tensor direction = mine.narrow(0, next, piece.parameter.numel()).view(piece.parameter.sizes()), p = wide(piece.parameter);
        next += piece.parameter.numel();
        if (piece.decays) p.mul_(1 - facts.learning_rate * options_.weight_decay);
        p.add_(direction, -facts.learning_rate * scale_of(piece));
        put(piece, p, facts);
      }
  }

  // `owned` holds for each rank its parts of this rank's matrices. Replaces them by the parts of the orthogonal matrices.
  void orthogonalize_owned(const at::Tensor& owned, std::span<const size_t> members, const comm::Group& group,
                           const std::vector<int64_t>& from_parts) const {
    std::vector<int64_t> next(from_parts.size(), 0);  // by rank: where its next part begins
    for (size_t rank = 1; rank < next.size(); ++rank) next[rank] = next[rank - 1] + from_parts[rank - 1];
    const size_t number = split_number_[members[0]];
    for (size_t i = first_owned(number, group.rank(), group.size()); i < members.size(); i += static_cast<size_t>(group.size())) {
      const TensorShard& of = *matrices_[members[i]].split;
      const at::Tensor whole = at::empty(of.shape, owned.options());
      const auto part = [&](size_t rank) {
        return owned.narrow(0, next[rank], of.elements_of(static_cast<int>(rank))).view(of.shards[rank].local_shape());
      };
      for (size_t rank = 0; rank < next.size(); ++rank) mesh::put_back(whole, of.shards[rank], part(rank));
      const at::Tensor direction = orthogonalize(whole, options_.muon_iterations);
      for (size_t rank = 0; rank < next.size(); ++rank) {
        part(rank).copy_(mesh::cut_out(direction, of.shards[rank]));
        next[rank] += of.elements_of(static_cast<int>(rank));
      }
    }
  }

  // Updates are computed in fp32: on the parameter itself, or on a copy of a bf16 parameter, which `put` rounds back.
  static at::Tensor wide(const at::Tensor& parameter) { return parameter.to(at::kFloat); }
  static void put(const ParameterPiece& piece, const at::Tensor& wide, const UpdateFacts& facts) {
    if (!wide.is_same(piece.parameter)) round_into(piece, wide, facts);
  }

  double scale_of(const ParameterPiece& matrix) const {
    const at::IntArrayRef shape = matrix.split ? at::IntArrayRef(matrix.split->shape) : matrix.parameter.sizes();
    const auto outputs = static_cast<double>(shape[matrix.fan_in_fan_out ? 1 : 0]);
    const auto inputs = static_cast<double>(shape[matrix.fan_in_fan_out ? 0 : 1]);
    return options_.muon_scale == MuonScale::rms ? 0.2 * std::sqrt(std::max(outputs, inputs)) : std::sqrt(std::max(1.0, outputs / inputs));
  }

  const OptimOptions options_;
  std::vector<Place> places_;  // by piece
  std::vector<ParameterPiece> matrices_;
  std::vector<std::pair<size_t, size_t>> in_group_;  // by matrix: its group, its number there
  std::vector<size_t> split_number_;                 // by matrix: how many split matrices come before it
  std::vector<Group> groups_;
  size_t split_count_ = 0;
  std::unique_ptr<Optimizer> rest_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimOptions& options, std::vector<ParameterPiece> pieces, StateMemory* memory) {
  return std::make_unique<Muon>(options, std::move(pieces), memory);
}

}  // namespace cairn::optim
