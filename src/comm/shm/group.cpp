// Slots, phases and staging of shared-memory collectives; group.h has the protocol.
#include "comm/shm/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

uint64_t stamp_of(uint64_t sequence, uint32_t phase) { return (sequence + 1) << kPhaseBits | phase; }

// How often a rank polls before it registers a wait. In the first phase the others may be far behind.
constexpr int kSpinsAtFirst = 60;
constexpr int kSpins = 1000;

// Up to this size a region is staged even if it could be read in place: a copy takes less time than waiting for all readers.
constexpr int64_t kStageAlways = 8 << 10;

constexpr int64_t kRingBytes = 1 << 20;
constexpr int64_t kBorrowedMax = kRingBytes / 8;  // per operation

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

bool ShmSlotsDirectory::enter(uint64_t group, int64_t place) {
  const uint32_t used = used_.load(std::memory_order_relaxed);
  if (used >= entries_.size() / 2) {
    full_.store(1, std::memory_order_release);
    return false;
  }
  size_t at = group % entries_.size();
  while (entries_[at].group.load(std::memory_order_relaxed) != 0) at = (at + 1) % entries_.size();
  entries_[at].place.store(place, std::memory_order_relaxed);
  entries_[at].group.store(group + 1, std::memory_order_release);
  used_.store(used + 1, std::memory_order_relaxed);
  return true;
}

std::optional<int64_t> ShmSlotsDirectory::find(uint64_t group) const {
  const bool full = full_.load(std::memory_order_acquire) != 0;  // read first: what is missing after that never comes
  size_t at = group % entries_.size();
  for (size_t looked = 0; looked < entries_.size(); ++looked, at = (at + 1) % entries_.size()) {
    const uint64_t found = entries_[at].group.load(std::memory_order_acquire);
    if (found == group + 1) return entries_[at].place.load(std::memory_order_relaxed);
    if (found == 0) break;
  }
  return full ? std::optional(kNone) : std::nullopt;
}

ShmGroup::ShmGroup(ShmGroups& groups, std::vector<int> ranks, uint64_t group)
    : groups_(groups), ranks_(std::move(ranks)), group_(group), me_(0), slots_(ranks_.size()) {
  ShmSlots* own = groups_.open_slots(group_);
  refused_ = own == nullptr;
  for (int i = 0; i < size(); ++i) {
    if (!groups_.is_own(ranks_[i])) continue;
    me_ = i;
    slots_[i] = own;
  }
}

bool ShmGroup::complete() {
  if (refused_ || complete_) return true;
  for (int i = 0; i < size(); ++i) {
    if (slots_[i]) continue;
    const std::optional<int64_t> place = groups_.slots_of(ranks_[i], group_);
    if (!place) return false;
    const std::span<std::byte> arena = groups_.arena_of(ranks_[i]);
    const bool fits = *place >= 0 && *place % alignof(ShmSlots) == 0 && *place <= static_cast<int64_t>(arena.size() - sizeof(ShmSlots));
    refused_ = !fits;
    if (refused_) return true;
    slots_[i] = reinterpret_cast<ShmSlots*>(arena.data() + *place);
  }
  complete_ = true;
  return true;
}

uint64_t ShmGroup::claim(uint64_t sequence) {
  return std::exchange(claimed_[sequence % kShmSlotsInFlight], stamp_of(sequence, kLastPhase));
}

bool ShmGroup::over(uint64_t sequence) const {
  for (int i = 0; i < size(); ++i) {
    if (slot(i, sequence).stamp.load(std::memory_order_acquire) < stamp_of(sequence, kLastPhase)) return false;
  }
  return true;
}

bool ShmCondition::reached(int position) const {
  const uint64_t stamp = group->slot(position, sequence()).stamp.load(std::memory_order_acquire);
  if (stamp >> kPhaseBits == sequence() + 1) return (stamp & kLastPhase) >= phase;
  // A rank that was in this operation may have gone on to the next one in this slot; any other rank has not come.
  return stamp >> kPhaseBits > sequence() + 1 && (*matched >> position & 1) != 0;
}

bool ShmCondition::ready() const {
  if (phase == 0) {
    if (!group->complete()) return false;
    if (group->refused()) return true;
    for (int i = 0; free_at > 0 && i < group->size(); ++i) {  // nobody reads the slot's previous regions any more
      if (group->slot(i, sequence()).stamp.load(std::memory_order_acquire) < free_at) return false;
    }
    return true;
  }
  for (int i = 0; i < group->size(); ++i) {
    if (i != group->rank() && !reached(i)) return false;
  }
  return true;
}

bool ShmCondition::changed() const {
  if (ready()) return true;
  for (int i = 0; phase > 0 && i < group->size(); ++i) {
    const bool known = i == group->rank() || (*matched >> i & 1) != 0;
    if (!known && group->slot(i, sequence()).stamp.load(std::memory_order_acquire) >> kPhaseBits == sequence() + 1) return true;
  }
  return false;
}

std::vector<int> ShmCondition::missing() const {
  std::vector<int> ranks;
  if (phase == 0 && group->refused()) return ranks;
  for (int i = 0; i < group->size(); ++i) {
    if (i == group->rank()) continue;
    const auto in_slot = [&] { return group->slot(i, sequence()).stamp.load(std::memory_order_acquire) < free_at; };
    if (phase > 0 ? !reached(i) : !group->knows(i) || in_slot()) ranks.push_back(group->ranks()[i]);
  }
  return ranks;
}

ShmGroups::ShmGroups(const SharedSegment& segment, std::vector<int> ranks, int place, bool oversubscribed, Arena& own, Inbox& inbox,
                     LinkOwner& owner)
    : segment_(segment),
      ranks_(std::move(ranks)),
      place_(place),
      oversubscribed_(oversubscribed),
      own_(own),
      inbox_(inbox),
      owner_(owner) {}

int ShmGroups::place_of(int rank) const { return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin()); }

ShmGroup* ShmGroups::of(const std::vector<int>& ranks, uint64_t group) {
  const auto found = groups_.find(group);
  if (found != groups_.end()) return found->second.get();
  const bool here = std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return place_of(rank) < static_cast<int>(ranks_.size()); });
  auto made = here && ranks.size() > 1 && ranks.size() <= kShmRanksMax ? std::make_unique<ShmGroup>(*this, ranks, group) : nullptr;
  return groups_.emplace(group, std::move(made)).first->second.get();
}

ShmSlots* ShmGroups::open_slots(uint64_t group) {
  void* memory = own_.allocate(sizeof(ShmSlots));
  if (memory) std::memset(memory, 0, sizeof(ShmSlots));  // the memory may have been used before
  const bool entered = segment_.directory(place_).enter(group, memory ? own_.offset_of(memory) : ShmSlotsDirectory::kNone);
  if (!memory || entered) return static_cast<ShmSlots*>(memory);
  own_.free(memory);
  return nullptr;
}

std::optional<int64_t> ShmGroups::slots_of(int rank, uint64_t group) const { return segment_.directory(place_of(rank)).find(group); }

std::byte* ShmGroups::borrow(int64_t bytes, const ShmGroup& group, uint64_t sequence) {
  if (bytes > kBorrowedMax) return nullptr;
  if (!ring_) ring_ = static_cast<std::byte*>(own_.allocate(kRingBytes));
  if (!ring_) return nullptr;
  const bool wraps = ring_at_ + bytes > kRingBytes;
  const int64_t begin = wraps ? 0 : ring_at_;
  // Uses of the previous lap block the range they occupy; at the end of a lap, all that are left of it block.
  const auto in_the_way = [&](const Borrowed& one) {
    return (wraps && one.begin >= ring_at_) || (one.begin < begin + bytes && one.end > begin);
  };
  while (!borrowed_.empty() && in_the_way(borrowed_.front())) {
    if (!borrowed_.front().group->over(borrowed_.front().sequence)) return nullptr;
    borrowed_.pop_front();
  }
  ring_at_ = begin + bytes;
  borrowed_.push_back({begin, ring_at_, &group, sequence});
  return ring_ + begin;
}

void ShmGroups::wake(int rank) {
  std::atomic<uint32_t>& asleep = segment_.board(place_of(rank)).asleep;
  if (asleep.load(std::memory_order_seq_cst) != 0 && asleep.exchange(0) != 0) owner_.wake(rank);
}

// Checks the signatures of ranks that arrived since the last look.
int ShmGroups::mismatched(const ShmCondition& what) const {
  for (int i = 0; what.phase > 0 && i < what.group->size(); ++i) {
    if (i == what.group->rank() || (*what.matched >> i & 1) != 0) continue;
    const ShmSlot& slot = what.group->slot(i, what.sequence());
    if (slot.stamp.load(std::memory_order_acquire) >> kPhaseBits != what.sequence() + 1) continue;
    if (slot.signature != what.envelope->signature) return i;
    *what.matched |= uint64_t{1} << i;
  }
  return -1;
}

void ShmGroups::fail_mismatched(const std::shared_ptr<ShmWait>& one, int position) {
  const int rank = one->condition.group->ranks()[position];
  const ShmSlot& slot = one->condition.group->slot(position, one->condition.sequence());
  Envelope theirs = *one->condition.envelope;
  theirs.signature = slot.signature;
  std::memcpy(theirs.what, slot.what, sizeof theirs.what);
  const std::string flaw = flaw_in(theirs);
  if (flaw.empty()) return inbox_.refuse(one, rank, theirs, *one->condition.envelope);
  inbox_.fail(
      one,
      Error(Error::Kind::lost_peer, fmt::format("rank {} lost: its slot in shared memory is invalid: {}", rank, flaw)).about_peer(rank));
}

bool ShmGroups::spin_until(const ShmCondition& what) const {
  const int looks = oversubscribed_ ? 1 : what.phase <= 1 ? kSpinsAtFirst : kSpins;
  for (int i = 0; i < looks; ++i) {
    if (what.ready()) return mismatched(what) < 0;
  }
  return false;
}

bool ShmGroups::settle(const std::shared_ptr<ShmWait>& one) {
  const bool ready = one->condition.ready();  // first: a rank that arrives after this line is not checked yet
  if (const int position = mismatched(one->condition); position >= 0) {
    fail_mismatched(one, position);
    return true;
  }
  if (!ready) return false;
  inbox_.finish(one);
  return true;
}

void ShmGroups::wait(const std::shared_ptr<ShmWait>& one) {
  if (settle(one)) return;
  for (const int rank : one->awaited()) {
    if (static_cast<size_t>(rank) < closed_.size() && closed_[rank]) return inbox_.fail(one, peer_has_left(rank, *one->condition.envelope));
  }
  waiting_.push_back(one);
}

bool ShmGroups::waits() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto& one) { return one->condition.changed(); });
}

bool ShmGroups::progress() {
  bool moved = false;
  for (size_t i = 0; i < waiting_.size();) {
    if (settle(waiting_[i])) {
      waiting_[i] = std::move(waiting_.back());
      waiting_.pop_back();
      moved = true;
    } else {
      ++i;
    }
  }
  return moved;
}

void ShmGroups::close(int rank) {
  if (closed_.size() <= static_cast<size_t>(rank)) closed_.resize(static_cast<size_t>(rank) + 1);
  closed_[rank] = true;
  progress();  // its last stamps count
  std::erase_if(waiting_, [&](const std::shared_ptr<ShmWait>& one) {
    const std::vector<int> awaited = one->awaited();
    if (std::find(awaited.begin(), awaited.end(), rank) == awaited.end()) return false;
    inbox_.fail(one, peer_has_left(rank, *one->condition.envelope));
    return true;
  });
}

void ShmGroups::forget(const ShmWait& one) {
  std::erase_if(waiting_, [&](const auto& waiting) { return waiting.get() == &one; });
}

ShmCollective::ShmCollective(Exchange& exchange, ShmGroup& group)
    : exchange_(exchange), group_(group), sequence_(exchange.envelope().sequence), free_at_(group.claim(sequence_)) {}

ShmCollective::~ShmCollective() {
  if (stage_) group_.groups().own().free(stage_);
}

Completion ShmCollective::until(uint32_t phase) {
  const ShmCondition what{&group_, &exchange_.envelope(), phase, free_at_, &exchange_.matched()};
  if (group_.groups().spin_until(what)) return Completion();
  const auto one = std::make_shared<ShmWait>(what);
  group_.groups().wait(one);
  return exchange_.watch(phase, Completion(exchange_.transport(), one));
}

Completion ShmCollective::slots_ready() { return until(0); }
Completion ShmCollective::wait_all(uint32_t phase) { return until(phase); }

void ShmCollective::offer(std::span<const Part> parts, int64_t chunk, bool copied) {
  chunk_ = chunk;
  Arena& arena = group_.groups().own();
  int64_t longest = 0;
  bool visible = !copied;
  for (const Part& part : parts) {
    longest = std::max(longest, part.bytes);
    visible = visible && arena.holds(part.data, part.bytes);
  }
  const int64_t step = aligned(std::min(longest, chunk)), half = step * static_cast<int64_t>(parts.size());
  const bool several = longest > chunk;
  const bool in_sight = visible;
  visible = visible && half > kStageAlways;
  const int64_t needed = several ? 2 * half : half;
  std::byte* stage = nullptr;
  if (!visible && needed > 0) {
    stage = group_.groups().borrow(needed, group_, sequence_);
    visible = !stage && in_sight;  // the staging ring is full: read in place
    if (!stage && !visible) {
      stage_ = arena.allocate(needed);
      if (!stage_) throw Error(Error::Kind::out_of_memory, fmt::format("no room for {} bytes in shared memory", needed));
      stage = static_cast<std::byte*>(stage_);
    }
    if (several && stage) buffer_stride_ = half;
  }
  lasting_ = !stage_ && (!visible || longest == 0);
  ShmSlot& slot = group_.slot(group_.rank(), sequence_);
  for (const Part& part : parts) {
    const auto* data = static_cast<const std::byte*>(part.data);
    offered_[offers_++] = {data, part.bytes, stage ? stage : const_cast<std::byte*>(data)};
    if (stage) stage += step;
  }
  slot.buffer_stride = buffer_stride_;
  slot.signature = exchange_.envelope().signature;
  std::memcpy(slot.what, exchange_.envelope().what, sizeof slot.what);
  for (int i = 0; i < group_.size() && offers_ > 0; ++i) {
    const Offered& one = offered_[offers_ == 1 ? 0 : i];
    slot.regions[i] = {one.bytes > 0 ? arena.offset_of(one.place) : 0, one.bytes};
  }
}

std::byte* ShmCollective::place(int reader, int64_t k) const {
  const Offered& one = offered_[offers_ == 1 ? 0 : reader];
  return one.place + (staged() ? k % 2 * buffer_stride_ : k * chunk_);
}

void ShmCollective::publish_chunk(int64_t k) {
  for (int i = 0; i < offers_; ++i) {
    if (offers_ > 1 && i == group_.rank()) continue;  // only this rank uses its own part
    const Offered& one = offered_[i];
    const int64_t bytes = std::min(one.bytes - k * chunk_, chunk_);
    std::byte* to = place(i, k);
    const std::byte* from = one.data + k * chunk_;
    if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

void ShmCollective::enter_phase(uint32_t phase) {
  // Sequentially consistent: the store comes before the load of `asleep` in ShmGroups::wake, as the sleeper stores `asleep` before it loads
  // stamps. One of the two sees the other. This costs less than a fence.
  group_.slot(group_.rank(), sequence_).stamp.store(stamp_of(sequence_, phase), std::memory_order_seq_cst);
  for (int i = 0; i < group_.size(); ++i) {
    if (i != group_.rank()) group_.groups().wake(group_.ranks()[i]);
  }
}

bool ShmCollective::all_published() const {
  for (int i = 0; i < group_.size(); ++i)
    if (group_.slot(i, sequence_).buffer_stride != 0) return false;
  return true;
}

const std::byte* ShmCollective::peer_chunk(int peer, int reader, int64_t bytes, int64_t k) const {
  const ShmSlot& slot = group_.slot(peer, sequence_);
  const ShmSlot::Region region = slot.regions[reader];
  const int64_t buffer_stride = slot.buffer_stride, length = std::clamp<int64_t>(bytes - k * chunk_, 0, chunk_);
  const int rank = group_.ranks()[peer];
  if (region.bytes != bytes) {
    throw Error(Error::Kind::lost_peer,
                fmt::format("rank {} gives {} bytes where rank {} expects {}: the counts of {} differ", rank, region.bytes,
                            group_.ranks()[group_.rank()], bytes, describe(exchange_.envelope().signature, exchange_.envelope().what)))
        .about_peer(rank);
  }
  const std::span<std::byte> arena = group_.groups().arena_of(rank);
  const auto end = static_cast<int64_t>(arena.size());
  const bool sound = region.place >= 0 && region.place <= end && buffer_stride >= 0 && buffer_stride <= end;
  const int64_t at = !sound ? -1 : length == 0 ? 0 : region.place + (buffer_stride != 0 ? k % 2 * buffer_stride : k * chunk_);
  if (at < 0 || at > end - length) {
    throw Error(Error::Kind::lost_peer,
                fmt::format("rank {} lost: it offers {} bytes at {} of its memory, which is shorter", rank, bytes, region.place))
        .about_peer(rank);
  }
  return arena.data() + at;
}

Completion ShmCollective::finish() {
  enter_phase(kLastPhase);
  return lasting_ ? Completion() : until(kLastPhase);
}

void ShmCollective::book(int peer, int64_t bytes) const {
  const int from = group_.ranks()[group_.rank()], to = group_.ranks()[peer];
  group_.groups().owner().sent(nullptr, {from, to, bytes, exchange_.purpose(), exchange_.begun(), {}});
}

}  // namespace cairn::comm
