#include "sync/council.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace cairn::sync {
namespace {

constexpr int64_t kStepsRemembered = 4096;  // of verdicts
// Who counts the votes waits for late islands once for messages and once for votes, and the one after it likewise.
constexpr int kPatience = 5;

// A vote or a verdict as bytes: whether to end, then three answers for each island.
struct Ballot {
  bool stop = false;
  IslandSet first, second, third;  // a vote: held, reached, proposed; a verdict: counted, lost, come
};

std::vector<std::byte> packed(const Ballot& ballot) {
  std::vector<std::byte> bytes(1 + ballot.first.size());
  bytes[0] = std::byte{ballot.stop};
  for (size_t i = 0; i < ballot.first.size(); ++i)
    bytes[1 + i] = static_cast<std::byte>((ballot.first[i] ? 1 : 0) | (ballot.second[i] ? 2 : 0) | (ballot.third[i] ? 4 : 0));
  return bytes;
}
std::vector<std::byte> packed(const Verdict& verdict) { return packed({verdict.stop, verdict.counted, verdict.lost, verdict.come}); }

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
bool unpack(const std::vector<std::byte>& bytes, size_t islands, Verdict& into) {
  Ballot ballot;
  if (!unpack(bytes, islands, ballot)) return false;
  into = {ballot.first, ballot.second, ballot.third, ballot.stop};
  return true;
}

}  // namespace

Council::Council(IslandPost& post, std::chrono::nanoseconds timeout)
    : post_(post), timeout_(timeout), members_(static_cast<size_t>(post.size()), true), proposed_(members_.size()) {
  post_.answer(Subject::Kind::question, [this](int from, const Subject& about, std::span<const std::byte>) {
    const auto known = verdicts_.find({about.step, about.part});
    if (known == verdicts_.end()) return;  // this island votes when it comes to the round
    post_.send(from, {Subject::Kind::verdict, about.step, about.part}, packed(known->second), comm::Purpose::control);
  });
}

int Council::count() const { return static_cast<int>(std::count(members_.begin(), members_.end(), true)); }

Council::Round Council::begin(int64_t step, int32_t part, bool wants_to_stop) {
  return {*this, {Subject::Kind::parcel, step, part}, wants_to_stop};
}

const std::vector<std::byte>* Council::parcel(int from, int64_t step, int32_t part) const {
  return post_.find(from, {Subject::Kind::parcel, step, part});
}

void Council::close(int64_t step) {
  for (const Subject::Kind kind : {Subject::Kind::parcel, Subject::Kind::share, Subject::Kind::vote, Subject::Kind::verdict})
    post_.forget(kind, step);
  std::erase_if(verdicts_, [&](const auto& one) { return one.first.first < step - kStepsRemembered; });
}

void Council::conclude(const Round& round) {
  const Verdict& verdict = round.verdict();
  for (size_t i = 0; i < members_.size(); ++i) {
    if (verdict.lost[i]) post_.renew(static_cast<int>(i));
    if (verdict.come[i]) proposed_[i] = false;
    members_[i] = (members_[i] && !verdict.lost[i]) || verdict.come[i];
  }
}

Council::Round::Round(Council& council, const Subject& about, bool wants_to_stop)
    : council_(council), members_(council.members_), about_(about), begun_(council.post_.now()), wants_to_stop_(wants_to_stop) {}

template <typename Do>
void Council::Round::for_others(Do act) const {
  for (int island = 0; island < council_.post_.size(); ++island)
    if (island != council_.post_.me() && members_[static_cast<size_t>(island)] && !council_.post_.lost(island)) act(island);
}

int Council::Round::speaker() const {
  for (int island = 0; island < council_.post_.size(); ++island)
    if (members_[static_cast<size_t>(island)] && !council_.post_.lost(island)) return island;
  return council_.post_.me();
}

bool Council::Round::all_here() const {
  bool all = true;
  for_others([&](int island) { all = all && council_.post_.find(island, about_); });
  return all;
}

void Council::Round::vote() {
  const int to = speaker();
  if (to == voted_to_) return;
  voted_to_ = to;
  if (to == council_.post_.me()) return;
  IslandSet reached(members_.size());
  for (size_t i = 0; i < reached.size(); ++i) reached[i] = !council_.post_.lost(static_cast<int>(i));
  council_.post_.send(to, {Subject::Kind::vote, about_.step, about_.part}, packed({wants_to_stop_, held_, reached, council_.proposed_}),
                      comm::Purpose::control);
}

// As the one who speaks for all. True: there is a verdict now.
bool Council::Round::count_votes() {
  IslandPost& post = council_.post_;
  // If an earlier speaker is gone, somebody may have heard its verdict.
  if (!asked_ && post.me() > 0) {
    asked_ = true;
    for_others([&](int island) { post.send(island, {Subject::Kind::question, about_.step, about_.part}, {}, comm::Purpose::control); });
  }
  const bool late = post.now() >= begun_ + 2 * council_.timeout_;
  Verdict verdict{.counted = held_, .lost = IslandSet(held_.size()), .come = council_.proposed_, .stop = wants_to_stop_};
  IslandSet reached(held_.size());
  for (size_t i = 0; i < held_.size(); ++i) reached[i] = !post.lost(static_cast<int>(i));
  for (int island = 0; island < post.size(); ++island) {
    if (island == post.me() || !members_[static_cast<size_t>(island)]) continue;
    if (post.lost(island)) {
      verdict.lost[static_cast<size_t>(island)] = true;
      continue;
    }
    const std::vector<std::byte>* body = post.find(island, {Subject::Kind::vote, about_.step, about_.part});
    if (!body && !late) return false;
    Ballot theirs;
    if (!body || !unpack(*body, held_.size(), theirs)) continue;
    for (size_t i = 0; i < held_.size(); ++i) {
      verdict.counted[i] = verdict.counted[i] && theirs.first[i];
      reached[i] = reached[i] && theirs.second[i];
      verdict.come[i] = verdict.come[i] || theirs.third[i];
    }
    verdict.stop = verdict.stop || theirs.stop;
  }
  for (size_t i = 0; i < held_.size(); ++i) verdict.come[i] = verdict.come[i] && reached[i] && !members_[i];
  for (int island = 0; island < post.size(); ++island)
    if (island != post.me() && members_[static_cast<size_t>(island)])
      post.send(island, {Subject::Kind::verdict, about_.step, about_.part}, packed(verdict), comm::Purpose::control);
  decide(std::move(verdict));
  return true;
}

void Council::Round::decide(Verdict verdict) {
  verdict_ = std::move(verdict);
  decided_ = true;
  council_.verdicts_[{about_.step, about_.part}] = verdict_;
}

bool Council::Round::progress() {
  if (decided_) return true;
  IslandPost& post = council_.post_;
  post.pump();
  for (int island = 0; island < post.size(); ++island) {
    const std::vector<std::byte>* body = post.find(island, {Subject::Kind::verdict, about_.step, about_.part});
    Verdict heard;
    if (!body || !unpack(*body, members_.size(), heard)) continue;
    // The messages that count were with all who voted; whoever came late may have to wait for them.
    for (int from = 0; from < post.size(); ++from) {
      if (from == post.me() || !heard.counted[static_cast<size_t>(from)] || post.find(from, about_)) continue;
      if (!post.lost(from)) return false;
      throw Error(Error::Kind::lost_peer,
                  fmt::format("this island came too late for the round of step {}: what island {} sent in it went with that island; start "
                              "this one again with --resume, so that it joins with the others' state",
                              about_.step, from));
    }
    // Whoever takes over from a speaker that died tells those who wait for it.
    if (asked_)
      for (int other = 0; other < post.size(); ++other)
        if (other != post.me() && other != island && members_[static_cast<size_t>(other)])
          post.send(other, {Subject::Kind::verdict, about_.step, about_.part}, *body, comm::Purpose::control);
    decide(std::move(heard));
    return true;
  }
  if (held_.empty()) {
    if (!all_here() && post.now() < begun_ + council_.timeout_) return false;
    held_.resize(members_.size());
    for (int island = 0; island < post.size(); ++island)
      held_[static_cast<size_t>(island)] = island == post.me() || post.find(island, about_) != nullptr;
  }
  vote();
  return voted_to_ == post.me() && count_votes();
}

const Verdict& Council::Round::wait() {
  const auto done = [&] { return progress(); };
  if (council_.post_.wait(done, begun_ + kPatience * council_.timeout_)) return verdict_;
  throw Error(Error::Kind::lost_peer, fmt::format("island {} does not say what came of the round of step {}", speaker(), about_.step));
}

}  // namespace cairn::sync
