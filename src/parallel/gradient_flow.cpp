#include "parallel/gradient_flow.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/memory_scope.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "parallel/group_memory.h"
#include "parallel/lent_memory.h"

namespace cairn::parallel {
namespace {

constexpr size_t kBuffersOnTheirWay = 2;

}  // namespace

GradientFlow::GradientFlow(Parts parts) : parts_(std::move(parts)) {
  me_ = parts_.keepers ? parts_.keepers->rank() : 0;
  unit_of_.resize(parts_.layout.pieces.size());
  open_.resize(parts_.units.size());
  parts_of_unit_.resize(parts_.units.size());
  has_kept_.assign(parts_.units.size(), 0);
  if (!parts_.keepers) parts_.whole = true;
  CAIRN_CHECK(!parts_.lent || (is_alone() && !parts_.memory), "memory that comes and goes, for gradients that other ranks have a part in");
  if (parts_.whole && !parts_.lent) whole_ = group_memory(parts_.memory, parts_.layout.elements, parts_.options);
  int64_t mine = 0;
  for (size_t u = 0; u < parts_.units.size(); ++u) {
    mine += parts_.units[u].part_of(me_).length();
    for (int64_t i = parts_.units[u].first; i < parts_.units[u].last; ++i) unit_of_[static_cast<size_t>(i)] = static_cast<int64_t>(u);
  }
  const at::Tensor own = parts_.whole ? at::Tensor() : at::empty({mine}, parts_.options);
  int64_t next = 0;
  for (size_t u = 0; u < parts_.units.size(); ++u) {
    const Unit& unit = parts_.units[u];
    const mesh::Interval part = unit.part_of(me_);
    kept_.push_back(parts_.lent    ? without_memory(unit.elements, parts_.options)
                    : parts_.whole ? whole_.narrow(0, unit.offset + part.begin, part.length())
                                   : own.narrow(0, next, part.length()));
    next += part.length();
  }
  const std::vector<KeptPart> kept = kept_by(parts_.layout, parts_.units, me_);
  for (size_t i = 0; i < kept.size(); ++i) parts_of_unit_[static_cast<size_t>(kept[i].unit)].push_back(static_cast<int64_t>(i));
  held_ = bytes_most_ = parts_.lent ? 0 : bytes();
}

bool GradientFlow::is_alone() const {
  return !parts_.keepers && std::none_of(parts_.copies.begin(), parts_.copies.end(), [](const comm::Group* c) { return c; });
}

void GradientFlow::count_held(int64_t bytes) {
  held_ += bytes;
  bytes_most_ = std::max(bytes_most_, held_);
}

GradientFlow::~GradientFlow() = default;

int64_t GradientFlow::bytes() const {
  if (parts_.whole && !parts_.lent) return static_cast<int64_t>(whole_.nbytes());
  int64_t n = 0;
  for (const at::Tensor& one : kept_) n += static_cast<int64_t>(one.nbytes());
  return n;
}

bool GradientFlow::forget_copies(const std::string& parameter) {
  bool found = false;
  for (size_t i = 0; i < parts_.layout.pieces.size(); ++i) {
    if (parts_.layout.pieces[i].name != parameter) continue;
    found = parts_.copies[i] != nullptr;
    parts_.copies[i] = nullptr;
  }
  return found;
}

void GradientFlow::begin(int64_t passes, int64_t passes_most, Announce announce) {
  CAIRN_CHECK(passes <= passes_most, "{} passes where at most {} were said", passes, passes_most);
  passes_ = passes;
  passes_most_ = passes_most;
  passes_done_ = 0;
  rounds_ = stays_whole() ? 1 : std::max<int64_t>(1, passes_most);
  round_ = 0;
  announce_ = std::move(announce);
  if (stays_whole() && !whole_.defined() && !parts_.lent) {
    const base::MemoryScope purpose("gradients");
    whole_ = group_memory(parts_.memory, parts_.layout.elements, parts_.options);
    count_held(static_cast<int64_t>(whole_.nbytes()));
  }
  for (size_t u = 0; parts_.lent && u < kept_.size(); ++u) {
    if (!has_memory(kept_[u])) continue;
    take_memory_back(kept_[u]);
    count_held(-static_cast<int64_t>(kept_[u].nbytes()));
  }
  has_kept_.assign(parts_.units.size(), 0);
  next_ = static_cast<int64_t>(parts_.units.size()) - 1;
}

void GradientFlow::open_unit(int64_t u) {
  Open& one = open_[static_cast<size_t>(u)];
  const Unit& unit = parts_.units[static_cast<size_t>(u)];
  if (parts_.lent) {
    one.buffer = kept_[static_cast<size_t>(u)];
    const base::MemoryScope purpose("gradients");
    lend_memory(one.buffer);
    count_held(static_cast<int64_t>(one.buffer.nbytes()));
  } else if (stays_whole()) {
    one.buffer = whole_.narrow(0, unit.offset, unit.elements);
  } else {
    // Others wait for units of this rank before they go on: all that can leave must have left by here, not when somebody happens to look.
    wait_for_copies();
    keep_room(kBuffersOnTheirWay - 1);
    for (size_t i = 0; i < spare_.size() && !one.buffer.defined(); ++i)
      if (spare_[i].numel() >= unit.elements) {
        one.buffer = spare_[i];
        spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    if (!one.buffer.defined()) {  // those that wait are too small: this one takes their place
      for (const at::Tensor& small : spare_) held_ -= static_cast<int64_t>(small.nbytes());
      spare_.clear();
      const base::MemoryScope purpose("gradients");
      one.buffer = group_memory(parts_.memory, unit.elements, parts_.options);
      count_held(static_cast<int64_t>(one.buffer.nbytes()));
    }
  }
  if (!one.sink || !stays_whole()) {  // otherwise its buffer is where it was
    std::vector<int32_t> uses(parts_.uses.begin() + unit.first, parts_.uses.begin() + unit.last);
    one.sink =
        std::make_unique<mesh::FlatGradients>(layout_of(parts_.layout, unit), one.buffer.narrow(0, 0, unit.elements), std::move(uses));
  }
  one.missing = unit.last - unit.first;
  const int64_t due = stays_whole() ? passes_ : passes_done_ < passes_ ? 1 : 0;
  one.sink->begin(due, [this, first = unit.first](int64_t i) { completed(first + i); });
}

mesh::ParamId GradientFlow::local(mesh::ParamId id) const {
  const Unit& unit = parts_.units[static_cast<size_t>(unit_of(id))];
  CAIRN_CHECK(id.first + id.count <= unit.last, "{} and its neighbours are in different units",
              parts_.layout.pieces[static_cast<size_t>(id.first)].name);
  return {static_cast<int32_t>(id.first - unit.first), id.count};
}

mesh::Gradients& GradientFlow::open(mesh::ParamId id) {
  const int64_t u = unit_of(id);
  if (open_[static_cast<size_t>(u)].missing == kShut) open_unit(u);
  return *open_[static_cast<size_t>(u)].sink;
}

void GradientFlow::outer_fp8(mesh::ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) {
  open(id).outer_fp8(local(id), in, dout);
}
void GradientFlow::outer(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout) { open(id).outer(local(id), in, dout); }
void GradientFlow::add(mesh::ParamId id, const at::Tensor& gradient) { open(id).add(local(id), gradient); }
void GradientFlow::add_rows(mesh::ParamId id, const at::Tensor& rows, const at::Tensor& values) {
  open(id).add_rows(local(id), rows, values);
}

void GradientFlow::completed(int64_t piece) {
  comm::Group* copies = parts_.copies[static_cast<size_t>(piece)];
  if (!copies) {
    summed(piece);
    return;
  }
  const int64_t u = unit_of_[static_cast<size_t>(piece)];
  const auto& of = parts_.layout.pieces[static_cast<size_t>(piece)];
  const int64_t begin = of.offset - parts_.units[static_cast<size_t>(u)].offset;
  const at::Tensor gradient = open_[static_cast<size_t>(u)].buffer.narrow(0, begin, of.elements);
  over_copies_.emplace_back(piece, copies->all_reduce(gradient, comm::Reduce::sum, {comm::Purpose::gradient, of.name}));
  copies->progress();
  take_ready();
}

// Never waits: a copy on another stage of a pipeline may still need what this rank computes next.
void GradientFlow::take_ready() {
  while (!over_copies_.empty() && over_copies_.front().second.ready()) {
    const auto [piece, work] = std::move(over_copies_.front());
    over_copies_.pop_front();
    work.wait();
    summed(piece);
  }
  while (!on_their_way_.empty() && on_their_way_.front().work.ready()) keep_room(on_their_way_.size() - 1);
}

void GradientFlow::wait_for_copies() {
  while (!over_copies_.empty()) {
    const auto [piece, work] = std::move(over_copies_.front());
    over_copies_.pop_front();
    work.wait();
    summed(piece);
  }
}

void GradientFlow::summed(int64_t piece) {
  const int64_t u = unit_of_[static_cast<size_t>(piece)];
  --open_[static_cast<size_t>(u)].missing;
  if (!parts_.keepers && announce_) {  // nothing more happens to it; pieces are kept whole, so kept parts count as pieces do
    const Unit& unit = parts_.units[static_cast<size_t>(u)];
    announce_(parts_of_unit_[static_cast<size_t>(u)][static_cast<size_t>(piece - unit.first)]);
  }
  send_ready_units();
}

void GradientFlow::send_ready_units() {
  while (next_ >= 0 && open_[static_cast<size_t>(next_)].missing == 0) {
    const int64_t u = next_--;
    Open& one = open_[static_cast<size_t>(u)];
    const Unit& unit = parts_.units[static_cast<size_t>(u)];
    one.missing = kShut;
    OnItsWay sent{.unit = u, .last = round_ + 1 == rounds_, .buffer = std::exchange(one.buffer, {})};
    if (parts_.keepers) {
      const mesh::Interval mine = unit.part_of(me_);
      const std::string& name = parts_.layout.pieces[static_cast<size_t>(unit.first)].name;
      sent.work = parts_.keepers->reduce_scatter(sent.buffer.narrow(0, mine.begin, mine.length()), sent.buffer.narrow(0, 0, unit.elements),
                                                 comm::Reduce::sum, {comm::Purpose::gradient, name}, unit.counts);
      parts_.keepers->progress();
    }
    on_their_way_.push_back(std::move(sent));
    take_ready();
  }
  if (next_ < 0 && round_ + 1 < rounds_) {  // the next pass sends its own
    ++round_;
    next_ = static_cast<int64_t>(parts_.units.size()) - 1;
  }
}

void GradientFlow::keep_room(size_t most) {
  while (on_their_way_.size() > most) {
    OnItsWay one = std::move(on_their_way_.front());
    on_their_way_.pop_front();
    one.work.wait();
    arrived(one);
  }
}

void GradientFlow::arrived(OnItsWay& one) {
  const auto u = static_cast<size_t>(one.unit);
  const mesh::Interval mine = parts_.units[u].part_of(me_);
  if (!parts_.whole) {
    const at::Tensor own = one.buffer.narrow(0, mine.begin, mine.length());
    has_kept_[u] ? kept_[u].add_(own) : kept_[u].copy_(own);
    has_kept_[u] = 1;
    if (!stays_whole()) spare_.push_back(std::move(one.buffer));
  }
  if (one.last && parts_.keepers && announce_)
    for (const int64_t kept : parts_of_unit_[u]) announce_(kept);
}

void GradientFlow::skip(mesh::ParamId id) {
  // Units leave from the last to the first, as backward goes: those of others that make this pass wait for this rank's.
  if (!stays_whole() && unit_of(id) == next_) close(next_);
}

void GradientFlow::end_pass() {
  // (Where every unit has left already, the round is the next pass's.)
  if (!stays_whole() && round_ + 1 < rounds_)
    for (const int64_t round = passes_done_; next_ >= 0 && round_ == round;) close(next_);
  ++passes_done_;
}

void GradientFlow::all_came() {
  CAIRN_CHECK(is_alone() && !parts_.lent, "gradients that other ranks have a part in, or that have not kept their memory");
  for (const std::vector<int64_t>& kept : parts_of_unit_)
    for (const int64_t index : kept)
      if (announce_) announce_(index);
  next_ = -1;
  passes_done_ = passes_;
}

// Whatever did not come for a unit counts as zero.
void GradientFlow::close(int64_t u) {
  Open& one = open_[static_cast<size_t>(u)];
  if (one.missing == kShut) open_unit(u);
  if (one.missing > 0) one.sink->finish();
  wait_for_copies();
}

void GradientFlow::finish() {
  if (stays_whole()) {  // everything is started before anything is waited for
    for (int64_t u = static_cast<int64_t>(parts_.units.size()); u-- > 0;) {
      Open& one = open_[static_cast<size_t>(u)];
      if (u > next_) continue;
      if (one.missing == kShut) open_unit(u);
      if (one.missing > 0) one.sink->finish();
    }
    wait_for_copies();
  } else {
    while (next_ >= 0) close(next_);
  }
  CAIRN_CHECK(next_ < 0, "unit {} of {} has not left", next_, parts_.units.size());
  keep_room(0);
  announce_ = nullptr;
  if (parts_.whole || !whole_.defined()) return;
  for (Open& one : open_) one = {};
  held_ -= static_cast<int64_t>(whole_.nbytes());
  whole_ = at::Tensor();  // others may have the memory between steps
}

}  // namespace cairn::parallel
