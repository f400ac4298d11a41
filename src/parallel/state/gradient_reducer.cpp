// Gradient reduction, overlapped with backward.
//
// Blocks contribute to pieces (parameters). When a piece has all its contributions (`completed`), its all-reduce over copies starts. When
// all pieces of a unit are summed, the unit is reduce-scattered. Units leave strictly from the last to the first (`next_`), because ranks
// pair collectives by their order; backward completes units in about that order. A pass without contributions to a unit closes it with
// zeros, so that every rank starts the same collectives.
//
// With unsharded buffers nothing waits while backward runs: in a pipeline, a copy on another stage may need what this rank computes next
// before it can take part in a sum. With sharded buffers, opening a unit waits until fewer than kBuffersInFlight units are being reduced.
//
// Pieces that are not active (set_active) take no contributions and are not waited for. A unit with some of them is reduced packed
// (active_unit.h); one without active pieces is passed over, and its gradients become zero.
#include "parallel/state/gradient_reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "base/check.h"
#include "base/memory_scope.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "parallel/state/group_buffer.h"

namespace cairn::parallel {
namespace {

constexpr size_t kBuffersInFlight = 2;

// Gradient buffer reuse: a tensor whose storage is freed between its uses, so that activations have the memory meanwhile (FSDP's
// _alloc_storage and _free_storage). Views of the tensor stay valid; reading one while there is no storage reads address 0.
bool has_storage(const at::Tensor& tensor) { return tensor.storage().data() != nullptr; }

void free_storage(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
}

void allocate_storage(const at::Tensor& tensor) {  // its contents are undefined
  CAIRN_CHECK(!has_storage(tensor), "storage for a tensor that has some");
  const c10::DeviceGuard device(tensor.device());
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
}

// Before their unit is reduced.
bool announces_pieces(const GradientReducer::Parts& parts) { return !parts.shard_group && !parts.swapper; }

at::Tensor unallocated_tensor(int64_t elements, const at::TensorOptions& options) {
  const at::Tensor tensor = at::empty({elements}, options);
  free_storage(tensor);
  return tensor;
}

}  // namespace

GradientReducer::GradientReducer(Parts parts) : parts_(std::move(parts)) {
  me_ = parts_.shard_group ? parts_.shard_group->rank() : 0;
  unit_of_.resize(parts_.layout.pieces.size());
  open_.resize(parts_.units.size());
  parts_of_unit_.resize(parts_.units.size());
  has_shard_.assign(parts_.units.size(), 0);
  held_back_.assign(parts_.layout.pieces.size(), 0);
  if (!parts_.shard_group) parts_.unsharded = !parts_.swapper;
  CAIRN_CHECK(!parts_.swapper || !stays_unsharded(), "swapped gradients in an unsharded buffer");
  CAIRN_CHECK(!parts_.reuse_memory || (is_single_rank() && !parts_.memory),
              "gradient buffer reuse with gradients that other ranks take part in");
  if (parts_.unsharded && !parts_.reuse_memory) whole_ = group_buffer(parts_.memory, parts_.layout.elements, parts_.options);
  int64_t mine = 0;
  for (size_t u = 0; u < parts_.units.size(); ++u) {
    mine += parts_.units[u].part_of(me_).length();
    for (int64_t i = parts_.units[u].first; i < parts_.units[u].last; ++i) {
      unit_of_[static_cast<size_t>(i)] = static_cast<int64_t>(u);
      if (parts_.units[u].of_many_layers && parts_.copies[static_cast<size_t>(i)]) ordered_.push_back(i);
    }
  }
  const at::Tensor own = parts_.unsharded || parts_.swapper ? at::Tensor() : at::empty({mine}, parts_.options);
  int64_t next = 0;
  for (size_t u = 0; u < parts_.units.size(); ++u) {
    const ShardUnit& unit = parts_.units[u];
    const mesh::Interval part = unit.part_of(me_);
    if (parts_.swapper) {
      shards_.push_back(parts_.swapper->make({.name = "gradients." + parts_.layout.pieces[static_cast<size_t>(unit.first)].name,
                                              .home = parts_.home,
                                              .use = base::MemoryUse::gradients,
                                              .io_class = memory::IoClass::states},
                                             part.length(), parts_.options));
      continue;
    }
    shards_.push_back(parts_.reuse_memory ? unallocated_tensor(unit.elements, parts_.options)
                      : parts_.unsharded  ? whole_.narrow(0, unit.offset + part.begin, part.length())
                                          : own.narrow(0, next, part.length()));
    next += part.length();
  }
  const std::vector<ShardSlice> kept = shard_slices(parts_.layout, parts_.units, me_);
  for (size_t i = 0; i < kept.size(); ++i) parts_of_unit_[static_cast<size_t>(kept[i].unit)].push_back(static_cast<int64_t>(i));
  held_ = peak_bytes_ = parts_.reuse_memory ? 0 : bytes();
}

bool GradientReducer::is_single_rank() const {
  return !parts_.shard_group && std::none_of(parts_.copies.begin(), parts_.copies.end(), [](const comm::Group* c) { return c; });
}

void GradientReducer::count_held(int64_t bytes) {
  held_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, held_);
}

GradientReducer::~GradientReducer() = default;

int64_t GradientReducer::bytes() const {
  if (parts_.unsharded && !parts_.reuse_memory) return static_cast<int64_t>(whole_.nbytes());
  int64_t n = 0;
  if (parts_.swapper) return n;
  for (const at::Tensor& one : shards_) n += static_cast<int64_t>(one.nbytes());
  return n;
}

bool GradientReducer::skip_copy_reduction(const std::string& parameter) {
  bool found = false;
  for (size_t i = 0; i < parts_.layout.pieces.size(); ++i) {
    if (parts_.layout.pieces[i].name != parameter) continue;
    found = parts_.copies[i] != nullptr;
    parts_.copies[i] = nullptr;
  }
  return found;
}

void GradientReducer::begin(int64_t passes, int64_t max_passes, Announce announce, std::vector<char> with_samples, bool some_leave_out) {
  CAIRN_CHECK(passes <= max_passes, "{} passes, and at most {} were announced", passes, max_passes);
  CAIRN_CHECK(with_samples.empty() || std::count(with_samples.begin(), with_samples.end(), 1) == passes,
              "{} passes with samples, and another number of marks", passes);
  passes_ = passes;
  const bool stayed_unsharded = stays_unsharded();
  max_passes_ = max_passes;
  if (stays_unsharded() != stayed_unsharded)
    for (Open& one : open_) one.sink.reset();  // it writes to the buffer of the other kind
  with_samples_ = std::move(with_samples);
  some_leave_out_ = some_leave_out;
  passes_done_ = 0;
  rounds_ = stays_unsharded() ? 1 : std::max<int64_t>(1, max_passes);
  round_ = 0;
  announce_ = std::move(announce);
  held_back_.assign(parts_.layout.pieces.size(), 0);
  waiting_.clear();
  complete_.clear();
  next_ordered_ = static_cast<int64_t>(ordered_.size()) - 1;
  if (stays_unsharded() && !whole_.defined() && !parts_.reuse_memory) {
    const base::MemoryScope purpose("gradients");
    whole_ = group_buffer(parts_.memory, parts_.layout.elements, parts_.options);
    count_held(static_cast<int64_t>(whole_.nbytes()));
  }
  for (size_t u = 0; parts_.reuse_memory && u < shards_.size(); ++u) {
    if (!has_storage(shards_[u])) continue;
    free_storage(shards_[u]);
    count_held(-static_cast<int64_t>(shards_[u].nbytes()));
  }
  has_shard_.assign(parts_.units.size(), 0);
  next_ = static_cast<int64_t>(parts_.units.size()) - 1;
  if (!active_.empty()) send_ready_units();
}

void GradientReducer::set_active(const std::vector<bool>& pieces) {
  CAIRN_CHECK(pieces.empty() || pieces.size() == parts_.layout.pieces.size(), "{} active of {} pieces", pieces.size(),
              parts_.layout.pieces.size());
  active_ = pieces;
  active_units_.clear();
  if (!active_.empty()) active_units_ = active_units(parts_.layout, parts_.units, active_, me_);
  for (Open& one : open_) one.sink.reset();  // it knows how many contributions are due
}

bool GradientReducer::is_ready(int64_t unit) const {
  const int64_t missing = open_[static_cast<size_t>(unit)].missing;
  return missing == 0 || (missing == kNotStarted && !active_units_.empty() && active_units_[static_cast<size_t>(unit)].none());
}

void GradientReducer::open_unit(int64_t u) {
  Open& one = open_[static_cast<size_t>(u)];
  const ShardUnit& unit = parts_.units[static_cast<size_t>(u)];
  if (parts_.reuse_memory) {
    one.buffer = shards_[static_cast<size_t>(u)];
    const base::MemoryScope purpose("gradients");
    allocate_storage(one.buffer);
    count_held(static_cast<int64_t>(one.buffer.nbytes()));
  } else if (stays_unsharded()) {
    one.buffer = whole_.narrow(0, unit.offset, unit.elements);
  } else {
    // Other ranks wait for this rank's units: start everything that can start before this rank may block.
    wait_for_copies();
    limit_in_flight(kBuffersInFlight - 1);
    for (size_t i = 0; i < spare_.size() && !one.buffer.defined(); ++i)
      if (spare_[i].numel() >= unit.elements) {
        one.buffer = spare_[i];
        spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    if (!one.buffer.defined()) {  // the spare ones are too small: a new buffer replaces them
      for (const at::Tensor& small : spare_) held_ -= static_cast<int64_t>(small.nbytes());
      spare_.clear();
      const base::MemoryScope purpose("gradients");
      one.buffer = group_buffer(parts_.memory, unit.elements, parts_.options);
      count_held(static_cast<int64_t>(one.buffer.nbytes()));
    }
  }
  if (!one.sink || !stays_unsharded()) {  // otherwise its buffer has not moved
    std::vector<int32_t> uses(parts_.uses.begin() + unit.first, parts_.uses.begin() + unit.last);
    for (int64_t i = unit.first; i < unit.last; ++i)
      if (!is_active(i)) uses[static_cast<size_t>(i - unit.first)] = 0;
    one.sink =
        std::make_unique<mesh::FlatGradients>(layout_of(parts_.layout, unit), one.buffer.narrow(0, 0, unit.elements), std::move(uses));
  }
  one.missing = unit.last - unit.first;
  for (int64_t i = unit.first; i < unit.last && !active_.empty(); ++i) {
    if (is_active(i)) continue;
    --one.missing;
    const auto& piece = parts_.layout.pieces[static_cast<size_t>(i)];
    one.buffer.narrow(0, piece.offset - unit.offset, piece.elements).zero_();
  }
  const auto now = static_cast<size_t>(passes_done_);
  const bool has_samples = with_samples_.empty() ? passes_done_ < passes_ : now < with_samples_.size() && with_samples_[now] != 0;
  const int64_t due = stays_unsharded() ? passes_ : has_samples ? 1 : 0;
  one.sink->begin(
      due,
      [this, first = unit.first](int64_t i) {
        if (is_active(first + i)) completed(first + i);
      },
      some_leave_out_);
}

mesh::ParamId GradientReducer::local(mesh::ParamId id) const {
  const ShardUnit& unit = parts_.units[static_cast<size_t>(unit_of(id))];
  CAIRN_CHECK(id.first + id.count <= unit.last, "{} and its neighbours are in different units",
              parts_.layout.pieces[static_cast<size_t>(id.first)].name);
  return {static_cast<int32_t>(id.first - unit.first), id.count};
}

mesh::Gradients& GradientReducer::open(mesh::ParamId id) {
  const int64_t u = unit_of(id);
  if (open_[static_cast<size_t>(u)].missing == kNotStarted) open_unit(u);
  return *open_[static_cast<size_t>(u)].sink;
}

void GradientReducer::outer_fp8(mesh::ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) {
  open(id).outer_fp8(local(id), in, dout);
}
void GradientReducer::outer(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout) { open(id).outer(local(id), in, dout); }
void GradientReducer::outer_grouped(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) {
  open(id).outer_grouped(local(id), in, dout, groups);
}
void GradientReducer::add(mesh::ParamId id, const at::Tensor& gradient) { open(id).add(local(id), gradient); }
void GradientReducer::add_rows(mesh::ParamId id, const at::Tensor& rows, const at::Tensor& values) {
  open(id).add_rows(local(id), rows, values);
}

void GradientReducer::hold(mesh::ParamId id) {
  if (!stays_unsharded()) return;
  for (int32_t i = id.first; i < id.first + id.count; ++i) held_back_[static_cast<size_t>(i)] = 1;
}

void GradientReducer::reduce(mesh::ParamId id) {
  for (int32_t i = id.first; i < id.first + id.count; ++i) held_back_[static_cast<size_t>(i)] = 0;
  reduce_released();
}

void GradientReducer::reduce_released() {
  for (size_t i = 0; i < waiting_.size();) {
    if (held_back_[static_cast<size_t>(waiting_[i])]) {
      ++i;
      continue;
    }
    const int64_t piece = waiting_[i];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    completed(piece);
  }
}

void GradientReducer::completed(int64_t piece) {
  if (held_back_[static_cast<size_t>(piece)])
    waiting_.push_back(piece);
  else if (std::binary_search(ordered_.begin(), ordered_.end(), piece))
    start_in_order(piece);
  else
    start_reduction(piece);
}

void GradientReducer::start_in_order(int64_t piece) {
  complete_.insert(piece);
  while (complete_.erase(ordered_[static_cast<size_t>(next_ordered_)]) > 0) {
    start_reduction(ordered_[static_cast<size_t>(next_ordered_)]);
    next_ordered_ = next_ordered_ == 0 ? static_cast<int64_t>(ordered_.size()) - 1 : next_ordered_ - 1;
  }
}

void GradientReducer::start_reduction(int64_t piece) {
  comm::Group* copies = parts_.copies[static_cast<size_t>(piece)];
  if (!copies) {
    summed(piece);
    return;
  }
  const int64_t u = unit_of_[static_cast<size_t>(piece)];
  const auto& of = parts_.layout.pieces[static_cast<size_t>(piece)];
  const int64_t begin = of.offset - parts_.units[static_cast<size_t>(u)].offset;
  const at::Tensor gradient = open_[static_cast<size_t>(u)].buffer.narrow(0, begin, of.elements);
  copy_reductions_.emplace_back(piece, copies->all_reduce(gradient, comm::Reduce::sum, {comm::Purpose::gradient, of.name}));
  copies->progress();
  collect_finished();
}

// Never waits.
void GradientReducer::collect_finished() {
  while (!copy_reductions_.empty() && copy_reductions_.front().second.ready()) {
    const auto [piece, work] = std::move(copy_reductions_.front());
    copy_reductions_.pop_front();
    work.wait();
    summed(piece);
  }
  while (!in_flight_.empty() && in_flight_.front().work.ready()) limit_in_flight(in_flight_.size() - 1);
}

void GradientReducer::wait_for_copies() {
  while (!copy_reductions_.empty()) {
    const auto [piece, work] = std::move(copy_reductions_.front());
    copy_reductions_.pop_front();
    work.wait();
    summed(piece);
  }
}

void GradientReducer::summed(int64_t piece) {
  const int64_t u = unit_of_[static_cast<size_t>(piece)];
  --open_[static_cast<size_t>(u)].missing;
  if (announces_pieces(parts_) && announce_) {  // nothing is sharded: slices are whole pieces, and this one is final
    const ShardUnit& unit = parts_.units[static_cast<size_t>(u)];
    announce_(parts_of_unit_[static_cast<size_t>(u)][static_cast<size_t>(piece - unit.first)]);
  }
  send_ready_units();
}

void GradientReducer::send_ready_units() {
  while (next_ >= 0 && is_ready(next_)) {
    const int64_t u = next_--;
    Open& one = open_[static_cast<size_t>(u)];
    if (one.missing == kNotStarted) pass_over(u);
    one.missing = kNotStarted;
    start_unit_reduction(u, std::exchange(one.buffer, {}));
    collect_finished();
  }
  if (next_ < 0 && round_ + 1 < rounds_) {  // the next pass reduces its own
    ++round_;
    next_ = static_cast<int64_t>(parts_.units.size()) - 1;
  }
}

// A unit without active pieces.
void GradientReducer::pass_over(int64_t u) {
  if (parts_.reuse_memory) return open_unit(u);
  const auto there = mesh::hold(parts_.swapper, shards_[static_cast<size_t>(u)], mesh::TensorSwapper::Access::overwrite);
  shards_[static_cast<size_t>(u)].zero_();
  has_shard_[static_cast<size_t>(u)] = 1;
}

void GradientReducer::start_unit_reduction(int64_t u, at::Tensor buffer) {
  const ShardUnit& unit = parts_.units[static_cast<size_t>(u)];
  Reduction sent{.unit = u, .last = round_ + 1 == rounds_, .buffer = std::move(buffer)};
  const ActiveUnit* const active = active_units_.empty() ? nullptr : &active_units_[static_cast<size_t>(u)];
  if (announces_pieces(parts_) && active && announce_)  // the others were announced as they were summed
    for (int64_t i = unit.first; i < unit.last; ++i)
      if (!is_active(i)) announce_(parts_of_unit_[static_cast<size_t>(u)][static_cast<size_t>(i - unit.first)]);
  if (parts_.shard_group && !(active && active->none())) {
    const bool packs = active && !active->all;
    if (packs) sent.packed = pack(sent.buffer, active->runs);
    const at::Tensor whole = packs ? sent.packed : sent.buffer.narrow(0, 0, unit.elements);
    const std::vector<int64_t>& counts = packs ? active->counts : unit.counts;
    const int64_t before = std::accumulate(counts.begin(), counts.begin() + me_, int64_t{0});
    const std::string& name = parts_.layout.pieces[static_cast<size_t>(unit.first)].name;
    sent.work = parts_.shard_group->reduce_scatter(whole.narrow(0, before, counts[static_cast<size_t>(me_)]), whole, comm::Reduce::sum,
                                                   {comm::Purpose::gradient, name}, counts);
    parts_.shard_group->progress();
  }
  in_flight_.push_back(std::move(sent));
}

void GradientReducer::limit_in_flight(size_t most) {
  while (in_flight_.size() > most) {
    Reduction one = std::move(in_flight_.front());
    in_flight_.pop_front();
    one.work.wait();
    finish_reduction(one);
  }
}

void GradientReducer::finish_reduction(Reduction& one) {
  const auto u = static_cast<size_t>(one.unit);
  const mesh::Interval mine = parts_.units[u].part_of(me_);
  if (one.packed.defined()) {
    const ActiveUnit& active = active_units_[u];
    const int64_t before = std::accumulate(active.counts.begin(), active.counts.begin() + me_, int64_t{0});
    unpack(one.packed.narrow(0, before, active.counts[static_cast<size_t>(me_)]), active.own, one.buffer);
  }
  if (!parts_.unsharded && one.buffer.defined()) {
    const at::Tensor own = one.buffer.narrow(0, mine.begin, mine.length());
    {
      using Access = mesh::TensorSwapper::Access;
      const auto there = mesh::hold(parts_.swapper, shards_[u], has_shard_[u] ? Access::update : Access::overwrite);
      has_shard_[u] ? shards_[u].add_(own) : shards_[u].copy_(own);
    }
    if (parts_.swapper && one.last) parts_.swapper->write_back(shards_[u]);
    has_shard_[u] = 1;
    if (!stays_unsharded()) spare_.push_back(std::move(one.buffer));
  }
  if (one.last && !announces_pieces(parts_) && announce_)
    for (const int64_t kept : parts_of_unit_[u]) announce_(kept);
}

void GradientReducer::skip(mesh::ParamId id) {
  // Ranks with samples reduce this unit now and need this rank to take part.
  if (!stays_unsharded() && unit_of(id) == next_) close(next_);
}

void GradientReducer::end_pass() {
  // (If every unit was reduced already, the round is the next pass's.)
  if (!stays_unsharded() && round_ + 1 < rounds_)
    for (const int64_t round = passes_done_; next_ >= 0 && round_ == round;) close(next_);
  ++passes_done_;
}

void GradientReducer::mark_all_complete() {
  CAIRN_CHECK(is_single_rank() && !parts_.reuse_memory, "gradients that other ranks take part in, or whose memory is reused");
  for (const std::vector<int64_t>& kept : parts_of_unit_)
    for (const int64_t index : kept)
      if (announce_) announce_(index);
  next_ = -1;
  passes_done_ = passes_;
}

// Missing contributions to a unit count as zero.
void GradientReducer::close(int64_t u) {
  Open& one = open_[static_cast<size_t>(u)];
  if (one.missing == kNotStarted) open_unit(u);
  if (one.missing > 0) one.sink->finish();
  wait_for_copies();
  send_ready_units();  // it may be one without active pieces
}

void GradientReducer::abandon() {
  CAIRN_CHECK(is_single_rank(), "gradients are given up that other ranks take part in");
  for (Open& one : open_) one.missing = kNotStarted;
  waiting_.clear();
  in_flight_.clear();
  next_ = -1;
  announce_ = nullptr;
}

void GradientReducer::finish() {
  held_back_.assign(held_back_.size(), 0);
  reduce_released();
  if (stays_unsharded()) {  // start everything before waiting for anything
    for (int64_t u = static_cast<int64_t>(parts_.units.size()); u-- > 0;) {
      Open& one = open_[static_cast<size_t>(u)];
      if (u > next_) continue;
      if (one.missing == kNotStarted) open_unit(u);
      if (one.missing > 0) one.sink->finish();
    }
    wait_for_copies();
    send_ready_units();  // those without active pieces
  } else {
    while (next_ >= 0) close(next_);
  }
  CAIRN_CHECK(next_ < 0, "unit {} of {} was not reduced", next_, parts_.units.size());
  limit_in_flight(0);
  announce_ = nullptr;
  if (parts_.unsharded || !whole_.defined()) return;
  for (Open& one : open_) one = {};
  held_ -= static_cast<int64_t>(whole_.nbytes());
  whole_ = at::Tensor();  // free between steps
}

}  // namespace cairn::parallel
