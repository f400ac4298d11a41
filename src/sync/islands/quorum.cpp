// The part of each island in a round: when it votes, and what it decides as the leader. decision_log.cpp says why all islands get one
// result. T is the time limit (sync.island.timeout_s).
//
//   1. An island sends its update to every other member, and votes when it has the updates of all members that it reaches, or after T.
//   2. The leader proposes as soon as it has the updates of all members. If a member is missing, it decides when all members that it
//      reaches have voted, or after 2 T: the updates that all voters have count; members that it does not reach leave; islands that a
//      voter proposes join.
//   3. After 3 T without a decision, members look for another leader.
#include "sync/islands/quorum.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sync/sync.h"

namespace cairn::sync {
namespace {

constexpr auto kStopsWithin = std::chrono::seconds(3);  // an island that was asked to stop waits for a decision for this long
constexpr auto kTellAfter = std::chrono::seconds(3);    // without a majority; islands elect a leader in less
constexpr int kPatience = 10;                           // in time limits, for a decision where there is a majority

std::chrono::nanoseconds nanoseconds_of(double seconds) { return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace

void RoundTrouble::note(RoundEnding ending, int64_t step, const std::string& waiting_for) {
  if (ending == RoundEnding::decided) return;
  if (ending == RoundEnding::alone) {
    if (alone_since == 0) alone_since = std::max<int64_t>(1, step);
    return;
  }
  ended = true;
  if (ending == RoundEnding::stopped) return;
  interruption = fmt::format(
      "step {}: no majority of the islands could be reached for too long: waited for {}. Resume when they can be reached. To train on "
      "without them, set sync.island.on_minority",
      step, waiting_for);
}

std::string RoundTrouble::apart() const {
  if (alone_since == 0) return "";
  return fmt::format("no majority of the islands could be reached: this one has trained alone since step {}, and its model is not theirs",
                     alone_since);
}

QuorumOptions quorum_options(const SyncOptions& options, const Replica& replica) {
  const ExchangeOptions& o = options.exchange;
  return {.timeout = nanoseconds_of(o.timeout_s),
          .on_minority = o.on_minority,
          .minority_timeout = nanoseconds_of(o.minority_timeout_s > 0 ? o.minority_timeout_s : 5 * o.timeout_s),
          .stopping = replica.stopping};
}

Quorum::Quorum(IslandMessenger& messenger, QuorumOptions options)
    : messenger_(messenger),
      options_(std::move(options)),
      decisions_(messenger, options_.decisions),
      members_(static_cast<size_t>(messenger.size())),
      proposed_(members_.size()),
      missed_(members_.size()) {
  if (!options_.founded) return;
  for (int island = 0; island < messenger.size(); ++island) {
    members_[static_cast<size_t>(island)] = messenger.incarnation(island);
    decisions_.set_works(island, true);
  }
  decisions_.set_founded(members_);
}

int Quorum::count() const {
  return static_cast<int>(members_.size() - static_cast<size_t>(std::count(members_.begin(), members_.end(), 0)));
}

Quorum::Round Quorum::begin(int64_t step, int32_t part, bool wants_to_stop, bool admits) {
  return {*this, {MessageTag::Kind::update, step, part}, wants_to_stop, admits};
}

const std::vector<std::byte>* Quorum::update_from(int from, int64_t step, int32_t part) const {
  return messenger_.find(from, {MessageTag::Kind::update, step, part});
}

void Quorum::close(int64_t step) {
  for (const MessageTag::Kind kind : {MessageTag::Kind::update, MessageTag::Kind::chunk}) messenger_.forget(kind, step);
}

void Quorum::conclude(const Round& round) {
  const RoundDecision& decision = round.decision();
  for (size_t i = 0; i < members_.size(); ++i) {
    missed_[i] = members_[i] == 0 || decision.included[i] != 0 ? 0 : missed_[i] + 1;
    if (decision.lost[i] != 0 && decision.lost[i] == members_[i]) members_[i] = 0;
    if (decision.joined[i] == 0) continue;
    members_[i] = decision.joined[i];
    missed_[i] = 0;
    if (proposed_[i] == decision.joined[i]) proposed_[i] = 0;
  }
}

std::string Quorum::waiting_for() const {
  std::vector<int> missing;
  for (int island = 0; island < messenger_.size(); ++island)
    if (island != messenger_.me() && is_member(island) && messenger_.lost(island)) missing.push_back(island);
  if (missing.empty()) return "the other islands";
  return fmt::format("{} {}", missing.size() == 1 ? "island" : "islands", fmt::join(missing, ", "));
}

void Quorum::set_members(Incarnations members, uint64_t epoch) {
  members_ = std::move(members);
  epoch_ = epoch;
  missed_.assign(members_.size(), 0);
  proposed_.assign(members_.size(), 0);
  alone_ = false;
  no_majority_since_.reset();
}

bool Quorum::must_stop() {
  if (!options_.stopping || !options_.stopping()) return false;
  if (!stop_seen_) stop_seen_ = messenger_.now();
  return messenger_.now() - *stop_seen_ > kStopsWithin;
}

bool Quorum::wait(const std::function<bool()>& done, std::chrono::nanoseconds until) {
  while (true) {
    const std::chrono::nanoseconds now = messenger_.now();
    if (messenger_.wait(done, std::min<std::chrono::nanoseconds>(until, now + std::chrono::milliseconds(200)))) return true;
    if (messenger_.now() >= until || must_stop()) return false;
  }
}

std::optional<RoundEnding> Quorum::give_up(std::chrono::nanoseconds begun, bool decided) {
  const std::chrono::nanoseconds now = messenger_.now();
  const bool comes_back = messenger_.link().comes_back();
  const RoundEnding left_out = comes_back ? RoundEnding::rejoin : RoundEnding::minority;
  if (must_stop()) return RoundEnding::stopped;
  if (decided) return std::nullopt;
  if (options_.waiting) options_.waiting();
  if (decisions_.is_removed()) return left_out;
  if (decisions_.has_quorum()) {
    no_majority_since_.reset();
    if (alone_ || now - begun > kPatience * options_.timeout) return left_out;
    return std::nullopt;
  }
  if (!no_majority_since_) {
    no_majority_since_ = now;
    told_ = false;
  }
  if (!told_ && !alone_ && now - *no_majority_since_ > kTellAfter) {
    told_ = true;
    messenger_.warn(fmt::format("no majority of the islands can be reached: waiting for {}", waiting_for()));
  }
  size_t there = 0;
  for (const int island : decisions_.log_members()) there += island == messenger_.me() || !messenger_.lost(island);
  const bool hopeless = !comes_back && 2 * there <= decisions_.log_members().size();
  const auto patience = options_.on_minority == OnMinority::wait ? options_.minority_timeout : options_.timeout;
  if (!alone_ && !hopeless && now - *no_majority_since_ <= patience) return std::nullopt;
  if (options_.on_minority != OnMinority::go_on) return RoundEnding::minority;
  alone_ = true;
  return RoundEnding::alone;
}

Quorum::Round::Round(Quorum& quorum, const MessageTag& tag, bool wants_to_stop, bool admits)
    : quorum_(&quorum),
      members_(quorum.members_),
      tag_(tag),
      id_{quorum.epoch_, tag.step, tag.part},
      begun_(quorum.messenger_.now()),
      wants_to_stop_(wants_to_stop),
      admits_(admits) {}

bool Quorum::Round::is_present(int island) const {
  const IslandMessenger& messenger = quorum_->messenger_;
  return island == messenger.me() || (!messenger.lost(island) && messenger.incarnation(island) == members_[static_cast<size_t>(island)]);
}

bool Quorum::Round::all_here() const {
  const IslandMessenger& messenger = quorum_->messenger_;
  for (int island = 0; island < messenger.size(); ++island)
    if (members_[static_cast<size_t>(island)] != 0 && island != messenger.me() && is_present(island) &&
        messenger.incarnation_of(island, tag_) != members_[static_cast<size_t>(island)])
      return false;
  return true;
}

void Quorum::Round::vote() {
  const IslandMessenger& messenger = quorum_->messenger_;
  vote_ = RoundVote{.held = Incarnations(members_.size()), .proposed = quorum_->proposed_, .stop = wants_to_stop_};
  for (int island = 0; island < messenger.size(); ++island) {
    const auto i = static_cast<size_t>(island);
    if (island == messenger.me() || (members_[i] != 0 && messenger.incarnation_of(island, tag_) == members_[i]))
      vote_->held[i] = members_[i];
    if (members_[i] != 0 || !admits_) vote_->proposed[i] = 0;
  }
  quorum_->decisions_.vote(id_, *vote_, members_);
  if (vote_->held == members_) wanted_ = members_;
}

// What the votes lead to; nothing: some are still to come.
std::optional<RoundDecision> Quorum::Round::counted_votes() const {
  const IslandMessenger& messenger = quorum_->messenger_;
  const RoundDecision* proposal = quorum_->decisions_.proposal(id_);
  const Incarnations nobody(members_.size());
  const bool late = messenger.now() >= begun_ + 2 * quorum_->options_.timeout;
  RoundDecision decision{.included = members_, .lost = nobody, .joined = nobody};
  bool all_agree = true;  // that the proposal be the result
  for (int island = 0; island < messenger.size(); ++island) {
    const auto i = static_cast<size_t>(island);
    if (members_[i] == 0) continue;
    const RoundVote* vote = quorum_->decisions_.vote_of(island, members_[i], id_);
    if (!vote) {
      if (is_present(island) && !late) return std::nullopt;
      if (!is_present(island)) decision.lost[i] = members_[i];
      continue;
    }
    all_agree = all_agree && vote->held == members_ && !vote->stop && vote->proposed == nobody;
    if (!is_present(island)) decision.lost[i] = members_[i];
    for (size_t j = 0; j < members_.size(); ++j) {
      if (vote->held[j] != members_[j]) decision.included[j] = 0;
      if (vote->proposed[j] != 0 && messenger.incarnation(static_cast<int>(j)) == vote->proposed[j] && !messenger.lost(static_cast<int>(j)))
        decision.joined[j] = vote->proposed[j];
    }
    decision.stop = decision.stop || vote->stop;
  }
  for (size_t i = 0; i < members_.size(); ++i)
    if (quorum_->options_.max_missed > 0 && members_[i] != 0 && decision.included[i] == 0 &&
        quorum_->missed_[i] + 1 >= quorum_->options_.max_missed)
      decision.lost[i] = members_[i];
  // Somebody may have applied the proposal already. Who left is for the next round to say.
  if (proposal && all_agree) return *proposal;
  return decision;
}

// As the leader.
void Quorum::Round::lead() {
  DecisionLog& decisions = quorum_->decisions_;
  if (!decisions.leads()) {
    if (!suspected_ && quorum_->messenger_.now() > begun_ + 3 * quorum_->options_.timeout) {
      suspected_ = true;
      decisions.suspect_leader();
    }
    return;
  }
  const Incarnations nobody(members_.size());
  if (!decisions.proposal(id_) && vote_->held == members_ && !vote_->stop && vote_->proposed == nobody)
    write(DecisionEntry::Kind::proposal, {.included = members_, .lost = nobody, .joined = nobody});
  if (decisions.is_pending(id_)) return;  // the proposal is not committed yet
  if (std::optional<RoundDecision> decision = counted_votes()) write(DecisionEntry::Kind::decision, std::move(*decision));
}

// False: the digest is not known yet.
bool Quorum::Round::write(DecisionEntry::Kind kind, RoundDecision decision) {
  if (!digest_ || digest_->first != decision.included) {
    wanted_ = decision.included;
    return false;
  }
  decision.digest = digest_->second;
  quorum_->decisions_.propose({.kind = kind, .round = id_, .decision = std::move(decision)});
  return true;
}

void Quorum::Round::set_digest(const Incarnations& included, uint64_t digest) {
  digest_ = {included, digest};
  if (wanted_ == included) wanted_.clear();
  progress();
}

bool Quorum::Round::progress() {
  if (decided_) return true;
  IslandMessenger& messenger = quorum_->messenger_;
  messenger.pump();
  const auto look = [&] {
    const RoundDecision* decision = quorum_->decisions_.decision(id_);
    if (!decision) return false;
    decision_ = *decision;
    return decided_ = true;
  };
  if (look()) return true;
  if (!vote_) {
    if (!all_here() && messenger.now() < begun_ + quorum_->options_.timeout) return false;
    vote();
  }
  lead();
  return look();
}

}  // namespace cairn::sync
