#include "optim/active_optimizer.h"

#include <utility>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::optim {
namespace {

constexpr const char* kMissedPrefix = "missed.";

// Bias corrections and rate of one update of one member.
UpdateFacts facts_for(const ActiveSet::Member& member, const UpdateFacts& facts, int64_t missed) {
  UpdateFacts own = facts;
  own.step = facts.step - missed;
  own.learning_rate = facts.learning_rate * member.learning_rate_factor;
  return own;
}

}  // namespace

ActiveOptimizer::ActiveOptimizer(std::unique_ptr<Optimizer> inner, std::vector<ParameterPiece> pieces,
                                 std::vector<mesh::Fragment> fragments, ActiveSet set)
    : inner_(std::move(inner)), set_(std::move(set)) {
  CAIRN_CHECK(fragments.empty() || fragments.size() == pieces.size(), "{} fragments for {} pieces", fragments.size(), pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    Piece& one = pieces_.emplace_back();
    one.piece = std::move(pieces[i]);
    one.member = set_.index(one.piece.name);
    if (!fragments.empty()) one.fragment = std::move(fragments[i]);
  }
  for (const ActiveSet::Member& member : std::vector<ActiveSet::Member>(set_.members()))
    if (member.by_element) track_elements(member.name);
}

void ActiveOptimizer::find_state() {
  for (Piece& one : pieces_) one.state.clear();
  for (const mesh::NamedTensor& tensor : inner_->state())
    for (Piece& one : pieces_)
      if (tensor.name.ends_with("." + one.piece.name) && tensor.name.find('.') + 1 + one.piece.name.size() == tensor.name.size()) {
        if (one.missed.defined() && tensor.tensor.numel() != one.piece.parameter.numel())
          base::fail_input(
              "{}: elements of it cannot be frozen one by one, because the optimizer keeps {} for several of them. Use an "
              "elementwise rule (optim.kind = adamw or sgd).",
              one.piece.name, tensor.name);
        one.state.push_back(tensor.tensor.reshape({-1}));
      }
}

void ActiveOptimizer::track_elements(std::string_view name) {
  set_.track_elements(name);
  for (Piece& one : pieces_)
    if (one.piece.name == name && !one.missed.defined())
      one.missed = at::full(one.piece.parameter.sizes(), set_.members()[one.member].missed, one.piece.parameter.options().dtype(at::kInt));
  find_state();
}

// The mask of a piece: its boxes, which the fragment says where to find.
at::Tensor ActiveOptimizer::mask_of(const Piece& piece) const {
  const ActiveSet::Member& member = set_.members()[piece.member];
  if (member.active && member.boxes.empty()) return {};
  const int64_t n = piece.piece.parameter.numel();
  const at::Tensor mask = at::zeros({n}, at::kBool);
  for (const mesh::FragmentBox& mine : mesh::boxes_of(piece.fragment))
    for (const mesh::Box& box : member.boxes)
      if (const auto part = mesh::intersect(mine.box, box)) {
        std::vector<int64_t> lengths;
        for (const mesh::Interval& dim : part->dims) lengths.push_back(dim.length());
        mask.as_strided(lengths, mine.strides, mesh::start_of(*part, mine)).fill_(true);
      }
  return mask.to(piece.piece.parameter.device());
}

void ActiveOptimizer::count_missed(std::string_view name, int64_t updates) {
  const ActiveSet::Member& member = set_.members()[set_.index(name)];
  if (!member.by_element || updates == member.since) return;
  for (Piece& one : pieces_) {
    if (one.piece.name != name) continue;
    const at::Tensor moves = mask_of(one);
    if (moves.defined()) one.missed.view({-1}).add_(moves.logical_not().to(at::kInt), updates - member.since);
  }
}

void ActiveOptimizer::freeze(std::string_view name, int64_t updates) {
  count_missed(name, updates);
  set_.freeze(name, updates);
}

void ActiveOptimizer::activate(std::string_view name, int64_t updates) {
  count_missed(name, updates);
  set_.activate(name, updates);
}

void ActiveOptimizer::activate(std::string_view name, std::vector<mesh::Box> boxes, int64_t updates) {
  count_missed(name, updates);
  set_.activate(name, std::move(boxes), updates);
}

void ActiveOptimizer::restart(std::string_view name, int64_t updates) {
  set_.restart(name, updates);
  for (Piece& one : pieces_)
    if (one.piece.name == name && one.missed.defined()) one.missed.fill_(updates);
}

void ActiveOptimizer::replace_set(ActiveSet set) {
  CAIRN_CHECK(set.members().size() == set_.members().size(), "an active set of {} parameters in place of one of {}", set.members().size(),
              set_.members().size());
  set_ = std::move(set);
  changed_by_surgery();
}

void ActiveOptimizer::changed_by_surgery() {
  for (Piece& one : pieces_) one.version = -1;
}

// What moves of a piece, by the updates that it missed. Boxes change seldom, so the values are looked for then alone.
void ActiveOptimizer::make_groups(Piece& piece) const {
  if (piece.version == set_.version()) return;
  piece.version = set_.version();
  piece.groups.clear();
  const at::Tensor moves = mask_of(piece), missed = piece.missed.view({-1});
  const at::Tensor values = (moves.defined() ? missed.masked_select(moves) : missed).to(at::kCPU);
  if (values.numel() == 0) return;
  const int64_t least = values.min().item<int64_t>(), most = values.max().item<int64_t>();
  if (least == most) {
    piece.groups.push_back({least, moves});
    return;
  }
  std::vector<int64_t> found;
  for (at::Tensor rest = values; rest.numel() > 0; rest = rest.masked_select(rest.ne(found.back())))
    found.push_back(rest[0].item<int64_t>());
  for (const int64_t value : found) {
    const at::Tensor mask = missed.eq(value);
    piece.groups.push_back({value, moves.defined() ? mask.logical_and(moves) : mask});
  }
}

void ActiveOptimizer::update_by_element(int64_t index, const UpdateFacts& facts) {
  Piece& piece = pieces_[static_cast<size_t>(index)];
  make_groups(piece);
  const ActiveSet::Member& member = set_.members()[piece.member];
  std::vector<at::Tensor> written{piece.piece.parameter.view({-1})};
  written.insert(written.end(), piece.state.begin(), piece.state.end());
  for (const Piece::Group& group : piece.groups) {
    std::vector<at::Tensor> before;
    if (group.mask.defined())
      for (const at::Tensor& one : written) before.push_back(one.clone());
    inner_->update(index, facts_for(member, facts, group.missed));
    for (size_t i = 0; i < before.size(); ++i) written[i].copy_(written[i].where(group.mask, before[i]));
  }
}

void ActiveOptimizer::update_several(int64_t first, int64_t count, const UpdateFacts& facts) {
  if (set_.trivial()) return inner_->update_several(first, count, facts);
  CAIRN_CHECK(facts.step_scalars == nullptr, "an update in a CUDA graph, of which some parameters are frozen");
  const auto member_of = [&](int64_t i) -> const ActiveSet::Member& { return set_.members()[pieces_[static_cast<size_t>(i)].member]; };
  const auto by_element = [&](int64_t i) { return pieces_[static_cast<size_t>(i)].missed.defined(); };
  for (int64_t i = first; i < first + count;) {
    const ActiveSet::Member& member = member_of(i);
    if (!member.active) {
      ++i;
    } else if (by_element(i)) {
      update_by_element(i++, facts);
    } else {
      int64_t end = i + 1;
      for (; end < first + count && !by_element(end); ++end) {
        const ActiveSet::Member& next = member_of(end);
        if (!next.active || next.missed != member.missed || next.learning_rate_factor != member.learning_rate_factor) break;
      }
      inner_->update_several(i, end - i, facts_for(member, facts, member.missed));
      i = end;
    }
  }
}

at::Tensor ActiveOptimizer::step_scalars(const UpdateFacts& facts) { return set_.trivial() ? inner_->step_scalars(facts) : at::Tensor(); }

mesh::NamedTensors ActiveOptimizer::state() {
  mesh::NamedTensors all = inner_->state();
  for (const Piece& one : pieces_)
    if (one.missed.defined()) all.push_back({kMissedPrefix + one.piece.name, one.missed});
  return all;
}

}  // namespace cairn::optim
