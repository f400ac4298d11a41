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

// A vote (which has no say on the members) or a verdict as bytes, one for each island.
std::vector<std::byte> packed(const Verdict& verdict) {
  std::vector<std::byte> bytes(1 + verdict.counted.size());
  bytes[0] = std::byte{verdict.stop};
  for (size_t i = 0; i < verdict.counted.size(); ++i)
    bytes[1 + i] = static_cast<std::byte>((verdict.counted[i] ? 1 : 0) | (verdict.members[i] ? 2 : 0));
  return bytes;
}

bool unpack(const std::vector<std::byte>& bytes, size_t islands, Verdict& into) {
  if (bytes.size() != 1 + islands) return false;
  into = {IslandSet(islands), IslandSet(islands), bytes[0] != std::byte{0}};
  for (size_t i = 0; i < islands; ++i) {
    into.counted[i] = (bytes[1 + i] & std::byte{1}) != std::byte{0};
    into.members[i] = (bytes[1 + i] & std::byte{2}) != std::byte{0};
  }
  return true;
}

}  // namespace

Council::Council(IslandPost& post, std::chrono::nanoseconds timeout)
    : post_(post), timeout_(timeout), members_(static_cast<size_t>(post.size()), true) {
  post_.answer(Subject::Kind::question, [this](int from, const Subject& about) {
    const auto known = verdicts_.find({about.step, about.part});
    if (known == verdicts_.end()) return;  // this island votes when it comes to the round
    post_.send(from, {Subject::Kind::verdict, about.step, about.part}, packed(known->second), comm::Purpose::control);
  });
}

int Council::count() const { return static_cast<int>(std::count(members_.begin(), members_.end(), true)); }

Council::Round Council::begin(int64_t step, int32_t part, bool wants_to_stop,
                              const std::function<std::vector<std::byte>(int island)>& body) {
  for (int island = 0; island < post_.size(); ++island) {
    if (island == post_.me() || !members_[static_cast<size_t>(island)]) continue;
    post_.send(island, {Subject::Kind::parcel, step, part}, body(island), comm::Purpose::gradient);
  }
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

Council::Round::Round(Council& council, const Subject& about, bool wants_to_stop)
    : council_(council), about_(about), begun_(council.post_.now()), wants_to_stop_(wants_to_stop) {}

int Council::Round::speaker() const {
  for (int island = 0; island < council_.post_.size(); ++island)
    if (council_.members_[static_cast<size_t>(island)] && !council_.post_.lost(island)) return island;
  return council_.post_.me();
}

bool Council::Round::all_here() const {
  for (int island = 0; island < council_.post_.size(); ++island)
    if (island != council_.post_.me() && council_.members_[static_cast<size_t>(island)] && !council_.post_.lost(island) &&
        !council_.post_.find(island, about_))
      return false;
  return true;
}

void Council::Round::vote() {
  const int to = speaker();
  if (to == voted_to_) return;
  voted_to_ = to;
  if (to == council_.post_.me()) return;
  council_.post_.send(to, {Subject::Kind::vote, about_.step, about_.part}, packed({held_, council_.members_, wants_to_stop_}),
                      comm::Purpose::control);
}

// As the one who speaks for all. True: there is a verdict now.
bool Council::Round::count_votes() {
  IslandPost& post = council_.post_;
  // If an earlier speaker is gone, somebody may have heard its verdict.
  if (!asked_ && post.me() > 0) {
    asked_ = true;
    for (int island = 0; island < post.size(); ++island)
      if (island != post.me() && council_.members_[static_cast<size_t>(island)] && !post.lost(island))
        post.send(island, {Subject::Kind::question, about_.step, about_.part}, {}, comm::Purpose::control);
  }
  const bool late = post.now() >= begun_ + 2 * council_.timeout_;
  Verdict verdict{.counted = held_, .members = council_.members_, .stop = wants_to_stop_};
  for (int island = 0; island < post.size(); ++island) {
    if (post.lost(island)) verdict.members[static_cast<size_t>(island)] = false;
    if (island == post.me() || !verdict.members[static_cast<size_t>(island)]) continue;
    const std::vector<std::byte>* body = post.find(island, {Subject::Kind::vote, about_.step, about_.part});
    if (!body && !late) return false;
    Verdict theirs;
    if (!body || !unpack(*body, held_.size(), theirs)) continue;
    for (size_t i = 0; i < held_.size(); ++i) verdict.counted[i] = verdict.counted[i] && theirs.counted[i];
    verdict.stop = verdict.stop || theirs.stop;
  }
  for (int island = 0; island < post.size(); ++island)
    if (island != post.me() && council_.members_[static_cast<size_t>(island)])
      post.send(island, {Subject::Kind::verdict, about_.step, about_.part}, packed(verdict), comm::Purpose::control);
  decide(std::move(verdict));
  return true;
}

void Council::Round::decide(Verdict verdict) {
  verdict_ = std::move(verdict);
  decided_ = true;
  council_.verdicts_[{about_.step, about_.part}] = verdict_;
  for (size_t i = 0; i < verdict_.members.size(); ++i) council_.members_[i] = council_.members_[i] && verdict_.members[i];
}

bool Council::Round::progress() {
  if (decided_) return true;
  IslandPost& post = council_.post_;
  post.pump();
  for (int island = 0; island < post.size(); ++island) {
    const std::vector<std::byte>* body = post.find(island, {Subject::Kind::verdict, about_.step, about_.part});
    Verdict heard;
    if (!body || !unpack(*body, council_.members_.size(), heard)) continue;
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
        if (other != post.me() && other != island && council_.members_[static_cast<size_t>(other)])
          post.send(other, {Subject::Kind::verdict, about_.step, about_.part}, *body, comm::Purpose::control);
    decide(std::move(heard));
    return true;
  }
  if (held_.empty()) {
    if (!all_here() && post.now() < begun_ + council_.timeout_) return false;
    held_.resize(council_.members_.size());
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
