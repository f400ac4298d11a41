// The protocol of a round. T is the time limit (sync.island.timeout_s); the leader is the lowest live member.
//
//   1. Every island sends its update to every other and waits until it has all updates, or for T.
//   2. It sends the leader a vote: which updates it has, which islands it can reach, which it proposes as members, whether to stop.
//   3. The leader waits for the votes of all live members, until 2 T, and decides: an update counts if all voters have it; a member that is
//      lost leaves; a proposed island that all voters reach joins. It sends the decision to all members.
//   4. If the leader dies, the next one takes over. It first asks everyone for a decision of its predecessor (decision_query) and repeats
//      it; otherwise it collects the votes again.
//
// An island that is late is left out of the decision but stays a member: it finds the decision and the updates when it arrives. Every voter
// has every update that counts, so no update is lost with its sender unless all voters die too.
#include "sync/islands/quorum.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace cairn::sync {
namespace {

constexpr int64_t kStepsRemembered = 4096;  // of decisions
// In time limits. A leader waits one for updates and one for votes; its successor does the same.
constexpr int kPatience = 5;

// A vote or a decision on the wire: one byte that says whether to stop, then three bits for each island.
struct Ballot {
  bool stop = false;
  IslandSet first, second, third;  // a vote: held, reached, proposed; a decision: included, lost, joined
};

std::vector<std::byte> packed(const Ballot& ballot) {
  std::vector<std::byte> bytes(1 + ballot.first.size());
  bytes[0] = std::byte{ballot.stop};
  for (size_t i = 0; i < ballot.first.size(); ++i)
    bytes[1 + i] = static_cast<std::byte>((ballot.first[i] ? 1 : 0) | (ballot.second[i] ? 2 : 0) | (ballot.third[i] ? 4 : 0));
  return bytes;
}
std::vector<std::byte> packed(const RoundDecision& decision) {
  return packed({decision.stop, decision.included, decision.lost, decision.joined});
}

bool unpack(const std::vector<std::byte>& bytes, size_t islands, Ballot& into) {
  if (bytes.size() != 1 + islands) return false;
  into = {bytes[0] != std::byte{0}, IslandSet(islands), IslandSet(islands), IslandSet(islands)};
  for (size_t i = 0; i < islands; ++i) {
    into.first[i] = (bytes[1 + i] & std::byte{1}) != std::byte{0};
    into.second[i] = (bytes[1 + i] & std::byte{2}) != std::byte{0};
    into.third[i] = (bytes[1 + i] & std::byte{4}) != std::byte{0};
  }
  return true;
}
bool unpack(const std::vector<std::byte>& bytes, size_t islands, RoundDecision& into) {
  Ballot ballot;
  if (!unpack(bytes, islands, ballot)) return false;
  into = {ballot.first, ballot.second, ballot.third, ballot.stop};
  return true;
}

}  // namespace

Quorum::Quorum(IslandMessenger& messenger, std::chrono::nanoseconds timeout)
    : messenger_(messenger), timeout_(timeout), members_(static_cast<size_t>(messenger.size()), true), proposed_(members_.size()) {
  messenger_.on_message(MessageTag::Kind::decision_query, [this](int from, const MessageTag& tag, std::span<const std::byte>) {
    const auto known = decisions_.find({tag.step, tag.part});
    if (known == decisions_.end()) return;  // this island votes when it comes to the round
    messenger_.send(from, {MessageTag::Kind::decision, tag.step, tag.part}, packed(known->second), comm::Purpose::control);
  });
}

int Quorum::count() const { return static_cast<int>(std::count(members_.begin(), members_.end(), true)); }

Quorum::Round Quorum::begin(int64_t step, int32_t part, bool wants_to_stop) {
  return {*this, {MessageTag::Kind::update, step, part}, wants_to_stop};
}

const std::vector<std::byte>* Quorum::update_from(int from, int64_t step, int32_t part) const {
  return messenger_.find(from, {MessageTag::Kind::update, step, part});
}

void Quorum::close(int64_t step) {
  for (const MessageTag::Kind kind :
       {MessageTag::Kind::update, MessageTag::Kind::chunk, MessageTag::Kind::vote, MessageTag::Kind::decision})
    messenger_.forget(kind, step);
  std::erase_if(decisions_, [&](const auto& one) { return one.first.first < step - kStepsRemembered; });
}

void Quorum::conclude(const Round& round) {
  const RoundDecision& decision = round.decision();
  for (size_t i = 0; i < members_.size(); ++i) {
    if (decision.lost[i]) messenger_.readmit(static_cast<int>(i));
    if (decision.joined[i]) proposed_[i] = false;
    members_[i] = (members_[i] && !decision.lost[i]) || decision.joined[i];
  }
}

Quorum::Round::Round(Quorum& quorum, const MessageTag& tag, bool wants_to_stop)
    : quorum_(quorum), members_(quorum.members_), tag_(tag), begun_(quorum.messenger_.now()), wants_to_stop_(wants_to_stop) {}

template <typename Do>
void Quorum::Round::for_others(Do act) const {
  for (int island = 0; island < quorum_.messenger_.size(); ++island)
    if (island != quorum_.messenger_.me() && members_[static_cast<size_t>(island)] && !quorum_.messenger_.lost(island)) act(island);
}

int Quorum::Round::leader() const {
  for (int island = 0; island < quorum_.messenger_.size(); ++island)
    if (members_[static_cast<size_t>(island)] && !quorum_.messenger_.lost(island)) return island;
  return quorum_.messenger_.me();
}

bool Quorum::Round::all_here() const {
  bool all = true;
  for_others([&](int island) { all = all && quorum_.messenger_.find(island, tag_); });
  return all;
}

void Quorum::Round::vote() {
  const int to = leader();
  if (to == voted_to_) return;
  voted_to_ = to;
  if (to == quorum_.messenger_.me()) return;
  IslandSet reached(members_.size());
  for (size_t i = 0; i < reached.size(); ++i) reached[i] = !quorum_.messenger_.lost(static_cast<int>(i));
  quorum_.messenger_.send(to, {MessageTag::Kind::vote, tag_.step, tag_.part}, packed({wants_to_stop_, held_, reached, quorum_.proposed_}),
                          comm::Purpose::control);
}

// As the leader. True: there is a decision now.
bool Quorum::Round::count_votes() {
  IslandMessenger& messenger = quorum_.messenger_;
  // If an earlier leader is gone, somebody may have heard its decision.
  if (!asked_ && messenger.me() > 0) {
    asked_ = true;
    for_others([&](int island) {
      messenger.send(island, {MessageTag::Kind::decision_query, tag_.step, tag_.part}, {}, comm::Purpose::control);
    });
  }
  const bool late = messenger.now() >= begun_ + 2 * quorum_.timeout_;
  RoundDecision decision{.included = held_, .lost = IslandSet(held_.size()), .joined = quorum_.proposed_, .stop = wants_to_stop_};
  IslandSet reached(held_.size());
  for (size_t i = 0; i < held_.size(); ++i) reached[i] = !messenger.lost(static_cast<int>(i));
  for (int island = 0; island < messenger.size(); ++island) {
    if (island == messenger.me() || !members_[static_cast<size_t>(island)]) continue;
    if (messenger.lost(island)) {
      decision.lost[static_cast<size_t>(island)] = true;
      continue;
    }
    const std::vector<std::byte>* body = messenger.find(island, {MessageTag::Kind::vote, tag_.step, tag_.part});
    if (!body && !late) return false;
    Ballot theirs;
    if (!body || !unpack(*body, held_.size(), theirs)) continue;
    for (size_t i = 0; i < held_.size(); ++i) {
      decision.included[i] = decision.included[i] && theirs.first[i];
      reached[i] = reached[i] && theirs.second[i];
      decision.joined[i] = decision.joined[i] || theirs.third[i];
    }
    decision.stop = decision.stop || theirs.stop;
  }
  for (size_t i = 0; i < held_.size(); ++i) decision.joined[i] = decision.joined[i] && reached[i] && !members_[i];
  for (int island = 0; island < messenger.size(); ++island)
    if (island != messenger.me() && members_[static_cast<size_t>(island)])
      messenger.send(island, {MessageTag::Kind::decision, tag_.step, tag_.part}, packed(decision), comm::Purpose::control);
  decide(std::move(decision));
  return true;
}

void Quorum::Round::decide(RoundDecision decision) {
  decision_ = std::move(decision);
  decided_ = true;
  quorum_.decisions_[{tag_.step, tag_.part}] = decision_;
}

bool Quorum::Round::progress() {
  if (decided_) return true;
  IslandMessenger& messenger = quorum_.messenger_;
  messenger.pump();
  for (int island = 0; island < messenger.size(); ++island) {
    const std::vector<std::byte>* body = messenger.find(island, {MessageTag::Kind::decision, tag_.step, tag_.part});
    RoundDecision heard;
    if (!body || !unpack(*body, members_.size(), heard)) continue;
    // All voters have the updates that count. An island that came late may have to wait for them.
    for (int from = 0; from < messenger.size(); ++from) {
      if (from == messenger.me() || !heard.included[static_cast<size_t>(from)] || messenger.find(from, tag_)) continue;
      if (!messenger.lost(from)) return false;
      throw Error(Error::Kind::lost_peer,
                  fmt::format("this island came too late for the round of step {}: the update of island {} was lost with that island. "
                              "Start this one again with --resume, so that it joins with the others' state",
                              tag_.step, from));
    }
    // A new leader repeats the decision of the one that died.
    if (asked_)
      for (int other = 0; other < messenger.size(); ++other)
        if (other != messenger.me() && other != island && members_[static_cast<size_t>(other)])
          messenger.send(other, {MessageTag::Kind::decision, tag_.step, tag_.part}, *body, comm::Purpose::control);
    decide(std::move(heard));
    return true;
  }
  if (held_.empty()) {
    if (!all_here() && messenger.now() < begun_ + quorum_.timeout_) return false;
    held_.resize(members_.size());
    for (int island = 0; island < messenger.size(); ++island)
      held_[static_cast<size_t>(island)] = island == messenger.me() || messenger.find(island, tag_) != nullptr;
  }
  vote();
  return voted_to_ == messenger.me() && count_votes();
}

const RoundDecision& Quorum::Round::wait() {
  const auto done = [&] { return progress(); };
  if (quorum_.messenger_.wait(done, begun_ + kPatience * quorum_.timeout_)) return decision_;
  throw Error(Error::Kind::lost_peer, fmt::format("no decision of the round of step {} from island {}", tag_.step, leader()));
}

}  // namespace cairn::sync
