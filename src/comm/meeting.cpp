#include "comm/meeting.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

uint64_t stamp_of(uint64_t sequence, uint32_t phase) { return (sequence + 1) << kPhaseBits | phase; }

// Others are at most a look away: how often a rank looks before it waits in earnest. At the beginning they may be far behind.
constexpr int kLooksAtFirst = 60;
constexpr int kSpins = 1000;

// So little is copied though others could see it: that takes less time than waiting until nobody reads it any more.
constexpr int64_t kCopiedRather = 8 << 10;

constexpr int64_t kRingBytes = 1 << 20;
constexpr int64_t kBorrowedMax = kRingBytes / 8;  // by one operation

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

bool DeskDirectory::enter(uint64_t group, int64_t place) {
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

std::optional<int64_t> DeskDirectory::find(uint64_t group) const {
  const bool full = full_.load(std::memory_order_acquire) != 0;  // before the look: what is not there then never will be
  size_t at = group % entries_.size();
  for (size_t looked = 0; looked < entries_.size(); ++looked, at = (at + 1) % entries_.size()) {
    const uint64_t found = entries_[at].group.load(std::memory_order_acquire);
    if (found == group + 1) return entries_[at].place.load(std::memory_order_relaxed);
    if (found == 0) break;
  }
  return full ? std::optional(kNone) : std::nullopt;
}

Meeting::Meeting(Meetings& home, std::vector<int> ranks, uint64_t group)
    : home_(home), ranks_(std::move(ranks)), group_(group), me_(0), desks_(ranks_.size()) {
  Desk* own = home_.open_desk(group_);
  refused_ = own == nullptr;
  for (int i = 0; i < size(); ++i) {
    if (!home_.is_own(ranks_[i])) continue;
    me_ = i;
    desks_[i] = own;
  }
}

bool Meeting::complete() {
  if (refused_ || complete_) return true;
  for (int i = 0; i < size(); ++i) {
    if (desks_[i]) continue;
    const std::optional<int64_t> place = home_.desk_of(ranks_[i], group_);
    if (!place) return false;
    const std::span<std::byte> arena = home_.arena_of(ranks_[i]);
    const bool fits = *place >= 0 && *place % alignof(Desk) == 0 && *place <= static_cast<int64_t>(arena.size() - sizeof(Desk));
    refused_ = !fits;
    if (refused_) return true;
    desks_[i] = reinterpret_cast<Desk*>(arena.data() + *place);
  }
  complete_ = true;
  return true;
}

uint64_t Meeting::claim(uint64_t sequence) { return std::exchange(claimed_[sequence % kMeetingSlots], stamp_of(sequence, kLastPhase)); }

bool Meeting::over(uint64_t sequence) const {
  for (int i = 0; i < size(); ++i) {
    if (slot(i, sequence).stamp.load(std::memory_order_acquire) < stamp_of(sequence, kLastPhase)) return false;
  }
  return true;
}

bool Awaited::reached(int position) const {
  const uint64_t stamp = meeting->slot(position, sequence()).stamp.load(std::memory_order_acquire);
  if (stamp >> kPhaseBits == sequence() + 1) return (stamp & kLastPhase) >= phase;
  // One that was in this operation with us may have gone on to the next in this slot; one that was not is elsewhere.
  return stamp >> kPhaseBits > sequence() + 1 && (*fit >> position & 1) != 0;
}

bool Awaited::ready() const {
  if (phase == 0) {
    if (!meeting->complete()) return false;
    if (meeting->refused()) return true;
    for (int i = 0; free_at > 0 && i < meeting->size(); ++i) {  // of what lies there, nobody reads any more
      if (meeting->slot(i, sequence()).stamp.load(std::memory_order_acquire) < free_at) return false;
    }
    return true;
  }
  for (int i = 0; i < meeting->size(); ++i) {
    if (i != meeting->rank() && !reached(i)) return false;
  }
  return true;
}

bool Awaited::stirred() const {
  if (ready()) return true;
  for (int i = 0; phase > 0 && i < meeting->size(); ++i) {
    const bool known = i == meeting->rank() || (*fit >> i & 1) != 0;
    if (!known && meeting->slot(i, sequence()).stamp.load(std::memory_order_acquire) >> kPhaseBits == sequence() + 1) return true;
  }
  return false;
}

std::vector<int> Awaited::by() const {
  std::vector<int> ranks;
  if (phase == 0 && meeting->refused()) return ranks;
  for (int i = 0; i < meeting->size(); ++i) {
    if (i == meeting->rank()) continue;
    const auto in_slot = [&] { return meeting->slot(i, sequence()).stamp.load(std::memory_order_acquire) < free_at; };
    if (phase > 0 ? !reached(i) : !meeting->knows(i) || in_slot()) ranks.push_back(meeting->ranks()[i]);
  }
  return ranks;
}

Meetings::Meetings(const SharedSegment& segment, std::vector<int> ranks, int place, bool crowded, Arena& own, Inbox& inbox,
                   LinkOwner& owner)
    : segment_(segment), ranks_(std::move(ranks)), place_(place), crowded_(crowded), own_(own), inbox_(inbox), owner_(owner) {}

int Meetings::place_of(int rank) const { return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin()); }

Meeting* Meetings::of(const std::vector<int>& ranks, uint64_t group) {
  const auto found = meetings_.find(group);
  if (found != meetings_.end()) return found->second.get();
  const bool here = std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return place_of(rank) < static_cast<int>(ranks_.size()); });
  auto made = here && ranks.size() > 1 && ranks.size() <= kMeetingRanks ? std::make_unique<Meeting>(*this, ranks, group) : nullptr;
  return meetings_.emplace(group, std::move(made)).first->second.get();
}

Desk* Meetings::open_desk(uint64_t group) {
  void* memory = own_.allocate(sizeof(Desk));
  if (memory) std::memset(memory, 0, sizeof(Desk));  // it may have been used before
  const bool entered = segment_.directory(place_).enter(group, memory ? own_.offset_of(memory) : DeskDirectory::kNone);
  if (!memory || entered) return static_cast<Desk*>(memory);
  own_.free(memory);
  return nullptr;
}

std::optional<int64_t> Meetings::desk_of(int rank, uint64_t group) const { return segment_.directory(place_of(rank)).find(group); }

std::byte* Meetings::borrow(int64_t bytes, const Meeting& meeting, uint64_t sequence) {
  if (bytes > kBorrowedMax) return nullptr;
  if (!ring_) ring_ = static_cast<std::byte*>(own_.allocate(kRingBytes));
  if (!ring_) return nullptr;
  const bool wraps = ring_at_ + bytes > kRingBytes;
  const int64_t begin = wraps ? 0 : ring_at_;
  // In the way are those of the lap before that lie there; and where a lap ends, all that are left of the one before it.
  const auto in_the_way = [&](const Lent& one) {
    return (wraps && one.begin >= ring_at_) || (one.begin < begin + bytes && one.end > begin);
  };
  while (!lent_.empty() && in_the_way(lent_.front())) {
    if (!lent_.front().meeting->over(lent_.front().sequence)) return nullptr;
    lent_.pop_front();
  }
  ring_at_ = begin + bytes;
  lent_.push_back({begin, ring_at_, &meeting, sequence});
  return ring_ + begin;
}

void Meetings::wake(int rank) {
  std::atomic<uint32_t>& asleep = segment_.board(place_of(rank)).asleep;
  if (asleep.load(std::memory_order_seq_cst) != 0 && asleep.exchange(0) != 0) owner_.wake(rank);
}

// Of those who came to this operation's place since the last look: is one in another operation?
int Meetings::misfit(const Awaited& what) const {
  for (int i = 0; what.phase > 0 && i < what.meeting->size(); ++i) {
    if (i == what.meeting->rank() || (*what.fit >> i & 1) != 0) continue;
    const MeetingSlot& slot = what.meeting->slot(i, what.sequence());
    if (slot.stamp.load(std::memory_order_acquire) >> kPhaseBits != what.sequence() + 1) continue;
    if (slot.signature != what.envelope->signature) return i;
    *what.fit |= uint64_t{1} << i;
  }
  return -1;
}

void Meetings::fail_misfit(const std::shared_ptr<MeetingWait>& one, int position) {
  const int rank = one->for_.meeting->ranks()[position];
  const MeetingSlot& slot = one->for_.meeting->slot(position, one->for_.sequence());
  Envelope theirs = *one->for_.envelope;
  theirs.signature = slot.signature;
  std::memcpy(theirs.what, slot.what, sizeof theirs.what);
  const std::string flaw = flaw_in(theirs);
  if (flaw.empty()) return inbox_.refuse(one, rank, theirs, *one->for_.envelope);
  inbox_.fail(one,
              Error(Error::Kind::lost_peer, fmt::format("rank {} lost: it shows what makes no sense: {}", rank, flaw)).about_peer(rank));
}

bool Meetings::met(const Awaited& what) const {
  const int looks = crowded_ ? 1 : what.phase <= 1 ? kLooksAtFirst : kSpins;
  for (int i = 0; i < looks; ++i) {
    if (what.ready()) return misfit(what) < 0;
  }
  return false;
}

bool Meetings::settle(const std::shared_ptr<MeetingWait>& one) {
  const bool ready = one->for_.ready();  // first: whoever comes after this look is not taken for one that fits
  if (const int position = misfit(one->for_); position >= 0) {
    fail_misfit(one, position);
    return true;
  }
  if (!ready) return false;
  inbox_.finish(one);
  return true;
}

void Meetings::wait(const std::shared_ptr<MeetingWait>& one) {
  if (settle(one)) return;
  for (const int rank : one->awaited()) {
    if (static_cast<size_t>(rank) < closed_.size() && closed_[rank]) return inbox_.fail(one, peer_has_left(rank, *one->for_.envelope));
  }
  waiting_.push_back(one);
}

bool Meetings::waits() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto& one) { return one->for_.stirred(); });
}

bool Meetings::progress() {
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

void Meetings::close(int rank) {
  if (closed_.size() <= static_cast<size_t>(rank)) closed_.resize(static_cast<size_t>(rank) + 1);
  closed_[rank] = true;
  progress();  // what it did before it went counts
  std::erase_if(waiting_, [&](const std::shared_ptr<MeetingWait>& one) {
    const std::vector<int> awaited = one->awaited();
    if (std::find(awaited.begin(), awaited.end(), rank) == awaited.end()) return false;
    inbox_.fail(one, peer_has_left(rank, *one->for_.envelope));
    return true;
  });
}

void Meetings::forget(const MeetingWait& one) {
  std::erase_if(waiting_, [&](const auto& waiting) { return waiting.get() == &one; });
}

Encounter::Encounter(Exchange& exchange, Meeting& meeting)
    : exchange_(exchange), meeting_(meeting), sequence_(exchange.envelope().sequence), free_at_(meeting.claim(sequence_)) {}

Encounter::~Encounter() {
  if (stage_) meeting_.home().own().free(stage_);
}

Completion Encounter::until(uint32_t phase) {
  const Awaited what{&meeting_, &exchange_.envelope(), phase, free_at_, &exchange_.met()};
  if (meeting_.home().met(what)) return Completion();
  const auto one = std::make_shared<MeetingWait>(what);
  meeting_.home().wait(one);
  return exchange_.watch(phase, Completion(exchange_.transport(), one));
}

Completion Encounter::seated() { return until(0); }
Completion Encounter::all(uint32_t phase) { return until(phase); }

void Encounter::offer(std::span<const Part> parts, int64_t chunk, bool copied) {
  chunk_ = chunk;
  Arena& arena = meeting_.home().own();
  int64_t longest = 0;
  bool visible = !copied;
  for (const Part& part : parts) {
    longest = std::max(longest, part.bytes);
    visible = visible && arena.holds(part.data, part.bytes);
  }
  const int64_t step = aligned(std::min(longest, chunk)), half = step * static_cast<int64_t>(parts.size());
  const bool several = longest > chunk;
  const bool in_sight = visible;
  visible = visible && half > kCopiedRather;
  const int64_t needed = several ? 2 * half : half;
  std::byte* stage = nullptr;
  if (!visible && needed > 0) {
    stage = meeting_.home().borrow(needed, meeting_, sequence_);
    visible = !stage && in_sight;  // others are far behind: they may as well read it where it is
    if (!stage && !visible) {
      stage_ = arena.allocate(needed);
      if (!stage_) throw Error(Error::Kind::out_of_memory, fmt::format("no room for {} bytes in the memory that ranks share", needed));
      stage = static_cast<std::byte*>(stage_);
    }
    if (several && stage) turn_ = half;
  }
  lasting_ = !stage_ && (!visible || longest == 0);
  MeetingSlot& slot = meeting_.slot(meeting_.rank(), sequence_);
  for (const Part& part : parts) {
    const auto* data = static_cast<const std::byte*>(part.data);
    offered_[offers_++] = {data, part.bytes, stage ? stage : const_cast<std::byte*>(data)};
    if (stage) stage += step;
  }
  slot.turn = turn_;
  slot.signature = exchange_.envelope().signature;
  std::memcpy(slot.what, exchange_.envelope().what, sizeof slot.what);
  for (int i = 0; i < meeting_.size() && offers_ > 0; ++i) {
    const Offered& one = offered_[offers_ == 1 ? 0 : i];
    slot.shares[i] = {one.bytes > 0 ? arena.offset_of(one.place) : 0, one.bytes};
  }
}

std::byte* Encounter::place(int reader, int64_t k) const {
  const Offered& one = offered_[offers_ == 1 ? 0 : reader];
  return one.place + (staged() ? k % 2 * turn_ : k * chunk_);
}

void Encounter::put(int64_t k) {
  for (int i = 0; i < offers_; ++i) {
    if (offers_ > 1 && i == meeting_.rank()) continue;  // nobody else reads it as it is
    const Offered& one = offered_[i];
    const int64_t bytes = std::min(one.bytes - k * chunk_, chunk_);
    std::byte* to = place(i, k);
    const std::byte* from = one.data + k * chunk_;
    if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

void Encounter::reach(uint32_t phase) {
  // Before the look at who sleeps (Meetings::wake), as the sleeper looks the other way round; a store and a load in the one order of all
  // such accesses, which costs less than a fence between them.
  meeting_.slot(meeting_.rank(), sequence_).stamp.store(stamp_of(sequence_, phase), std::memory_order_seq_cst);
  for (int i = 0; i < meeting_.size(); ++i) {
    if (i != meeting_.rank()) meeting_.home().wake(meeting_.ranks()[i]);
  }
}

bool Encounter::all_put() const {
  for (int i = 0; i < meeting_.size(); ++i)
    if (meeting_.slot(i, sequence_).turn != 0) return false;
  return true;
}

const std::byte* Encounter::theirs(int peer, int reader, int64_t bytes, int64_t k) const {
  const MeetingSlot& slot = meeting_.slot(peer, sequence_);
  const MeetingSlot::Share share = slot.shares[reader];
  const int64_t turn = slot.turn, length = std::clamp<int64_t>(bytes - k * chunk_, 0, chunk_);
  const int rank = meeting_.ranks()[peer];
  if (share.bytes != bytes) {
    throw Error(Error::Kind::lost_peer,
                fmt::format("rank {} gives {} bytes where rank {} expects {}: the counts of {} differ", rank, share.bytes,
                            meeting_.ranks()[meeting_.rank()], bytes, describe(exchange_.envelope().signature, exchange_.envelope().what)))
        .about_peer(rank);
  }
  const std::span<std::byte> arena = meeting_.home().arena_of(rank);
  const auto end = static_cast<int64_t>(arena.size());
  const bool sound = share.place >= 0 && share.place <= end && turn >= 0 && turn <= end;
  const int64_t at = !sound ? -1 : length == 0 ? 0 : share.place + (turn != 0 ? k % 2 * turn : k * chunk_);
  if (at < 0 || at > end - length) {
    throw Error(Error::Kind::lost_peer,
                fmt::format("rank {} lost: it shows {} bytes at {} of its memory, which is shorter", rank, bytes, share.place))
        .about_peer(rank);
  }
  return arena.data() + at;
}

Completion Encounter::over() {
  reach(kLastPhase);
  return lasting_ ? Completion() : until(kLastPhase);
}

void Encounter::book(int peer, int64_t bytes) const {
  const int from = meeting_.ranks()[meeting_.rank()], to = meeting_.ranks()[peer];
  meeting_.home().owner().sent(nullptr, {from, to, bytes, exchange_.purpose(), exchange_.begun(), {}});
}

}  // namespace cairn::comm
