// Raft under partitions, losses, stops and restarts, in virtual time: never two entries for one index, and progress once links heal.
#include "comm/consensus/raft.h"

#include <map>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using Nanoseconds = std::chrono::nanoseconds;

class MemoryStore final : public RaftStore {
 public:
  RaftState load() override { return state_; }
  void save(const RaftState& state) override { state_ = state; }

 private:
  RaftState state_;
};

std::vector<std::byte> value_of(uint64_t number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  return {bytes.begin(), bytes.end()};
}

struct RaftSite {
  MemoryStore store;
  std::unique_ptr<Raft> raft;  // null: the process is down
  Nanoseconds stopped_until{0};
  std::map<uint64_t, RaftEntry> known;  // what it has been told is committed
  int starts = 0;
};

// A group, its network, and what goes wrong with both, all from one seed.
class RaftWorld {
 public:
  RaftWorld(uint64_t seed, RaftFaults faults) : random_(base::Random(seed).for_purpose("raft test")), seed_(seed), faults_(faults) {
    sites_.resize(3 + below(7));
    for (size_t i = 0; i < sites_.size(); ++i) founders_.push_back(static_cast<int>(i));
    for (size_t i = 0; i < sites_.size(); ++i) start(i);
  }

  // What was violated; empty: nothing.
  std::string run() {
    try {
      for (int action = 0; action < 60 && wrong_.empty(); ++action) {
        disturb();
        advance(Nanoseconds(1ms) * static_cast<int64_t>(below(3000)));
      }
      heal();
      if (wrong_.empty()) check_progress();
    } catch (const Error& error) {
      return error.what();
    }
    return wrong_;
  }

 private:
  struct InFlight {
    size_t from, to;
    RaftMessage message;
  };

  uint64_t below(uint64_t n) { return random_.below(drawn_++, n); }
  size_t any() { return below(sites_.size()); }
  bool awake(const RaftSite& site) const { return site.raft && site.stopped_until <= now_; }

  void start(size_t i) {
    RaftSite& site = sites_[i];
    site.known.clear();  // what it applied is gone with the process; it is told again from its snapshot on
    site.raft = std::make_unique<Raft>(Raft::Options{.me = static_cast<int>(i),
                                                     .election_min = 1s,
                                                     .election_max = 1300ms,  // candidates often meet
                                                     .heartbeat = 200ms,
                                                     .seed = seed_ * 1000 + i * 100 + static_cast<uint64_t>(site.starts++),
                                                     .faults = faults_},
                                       site.store, founders_, now_);
  }

  void disturb() {
    const size_t a = any(), b = any();
    for (size_t i = 0; i < sites_.size(); ++i)
      if (!sites_[i].raft && below(3) == 0) start(i);
    switch (below(13)) {
      case 0:
        return void(cut_.insert({a, b}));
      case 1:
        cut_.insert({a, b});
        return void(cut_.insert({b, a}));
      case 2:  // two halves
        for (size_t i = 0; i < sites_.size(); ++i)
          for (size_t j = 0; j < sites_.size(); ++j)
            if ((i <= a) != (j <= a)) cut_.insert({i, j});
        return;
      case 3:
      case 4:
      case 12:
        return cut_.clear();
      case 5:
        sites_[a].raft.reset();
        return;
      case 6:
        sites_[a].raft.reset();
        return start(a);
      case 7:
        sites_[a].stopped_until = now_ + Nanoseconds(1ms) * static_cast<int64_t>(below(8000));
        return;
      case 8:
        loss_ = below(4) == 0 ? 30 : 0;
        slow_ = below(2) == 0 ? 10 : 70;
        restarts_ = below(2) == 0 ? 20 : 0;
        return;
      case 9:
        return change_members(static_cast<int>(a));
      default:
        for (RaftSite& site : sites_)
          if (awake(site)) site.raft->propose(value_of(++proposed_), now_);
        if (awake(sites_[a]) && below(3) == 0 && sites_[a].raft->committed() > 0) {
          sites_[a].raft->compact(sites_[a].raft->committed(), value_of(sites_[a].raft->committed()));
        }
        return;
    }
  }

  void change_members(int site) {
    for (RaftSite& one : sites_) {
      if (!awake(one) || one.raft->role() != Raft::Role::leader) continue;
      std::vector<int> members = one.raft->members();
      if (const auto at = std::find(members.begin(), members.end(), site); at != members.end()) {
        if (members.size() <= 1) continue;
        members.erase(at);
      } else {
        members.push_back(site);
      }
      one.raft->propose_members(members, now_);
    }
  }

  void heal() {
    cut_.clear();
    loss_ = restarts_ = 0;
    slow_ = 10;
    for (size_t i = 0; i < sites_.size(); ++i) {
      sites_[i].stopped_until = Nanoseconds{0};
      if (!sites_[i].raft) start(i);
    }
    advance(60s);
  }

  // A new value is committed on every member.
  void check_progress() {
    const uint64_t value = ++proposed_;
    Raft* leader = nullptr;
    for (RaftSite& site : sites_)
      if (site.raft->role() == Raft::Role::leader && site.raft->has_quorum(now_)) leader = site.raft.get();
    if (!leader) return void(wrong_ = "no leader 60 s after everything healed");
    const uint64_t index = *leader->propose(value_of(value), now_);
    advance(10s);
    for (const int member : leader->members()) {
      const RaftSite& site = sites_[static_cast<size_t>(member)];
      const auto found = site.known.find(index);
      if (found == site.known.end() || found->second.body != value_of(value))
        wrong_ = "site " + std::to_string(member) + " does not get what is committed after everything healed";
    }
  }

  void advance(Nanoseconds by) {
    const Nanoseconds until = now_ + by;
    while (now_ < until && wrong_.empty()) {
      now_ += 20ms;
      while (!in_flight_.empty() && in_flight_.begin()->first <= now_) {
        const InFlight message = std::move(in_flight_.begin()->second);
        in_flight_.erase(in_flight_.begin());
        deliver(message);
      }
      for (size_t i = 0; i < sites_.size(); ++i) {
        if (!awake(sites_[i])) continue;
        sites_[i].raft->tick(now_);
        collect(i);
      }
    }
  }

  void deliver(const InFlight& message) {
    RaftSite& site = sites_[message.to];
    if (!site.raft) return;
    if (!awake(site)) return void(in_flight_.emplace(site.stopped_until, message));  // it waits in the socket
    site.raft->receive(static_cast<int>(message.from), message.message, now_);
    collect(message.to);
    if (below(100) < restarts_) start(message.to);  // a process can die at any message
  }

  void collect(size_t i) {
    const Raft& raft = *sites_[i].raft;
    if (raft.role() == Raft::Role::leader && leaders_.emplace(raft.term(), raft.me()).first->second != raft.me())
      wrong_ = "two leaders in term " + std::to_string(raft.term());
    for (Raft::Outgoing& one : sites_[i].raft->take_outgoing()) {
      const auto to = static_cast<size_t>(one.to);
      if (cut_.contains({i, to}) || below(100) < loss_) continue;
      const auto delay = below(100) < slow_ ? below(4000) : below(60);
      in_flight_.emplace(now_ + Nanoseconds(1ms) * static_cast<int64_t>(delay), InFlight{i, to, std::move(one.message)});
    }
    if (const auto installed = sites_[i].raft->take_installed())
      if (installed->snapshot != value_of(installed->index)) wrong_ = "a snapshot of another index was installed";
    for (const Raft::Committed& one : sites_[i].raft->take_committed()) {
      sites_[i].known[one.index] = one.entry;
      const auto [at, is_new] = committed_.emplace(one.index, one.entry);
      if (!is_new && at->second != one.entry) wrong_ = "two entries were committed at index " + std::to_string(one.index);
    }
  }

  base::Random random_;
  uint64_t drawn_ = 0;
  const uint64_t seed_;
  const RaftFaults faults_;
  Nanoseconds now_{0};
  std::vector<RaftSite> sites_;
  std::vector<int> founders_;
  std::multimap<Nanoseconds, InFlight> in_flight_;
  std::set<std::pair<size_t, size_t>> cut_;
  uint64_t loss_ = 0, slow_ = 10, restarts_ = 0;  // percent
  uint64_t proposed_ = 0;
  std::map<uint64_t, int> leaders_;          // by term
  std::map<uint64_t, RaftEntry> committed_;  // by any site, ever
  std::string wrong_;
};

TEST(Raft, NeverCommitsTwoEntriesForOneIndexAndGoesOnOnceLinksHeal) {
  for (uint64_t seed = 0; seed < 40; ++seed) ASSERT_EQ(RaftWorld(seed, {}).run(), "") << "seed " << seed;
}

struct RaftMistake {
  const char* name;
  uint64_t seed;  // a little before the first that finds it
  RaftFaults faults;
};

class RaftMistakes : public testing::TestWithParam<RaftMistake> {};

TEST_P(RaftMistakes, AreFound) {
  for (uint64_t seed = GetParam().seed; seed < GetParam().seed + 20; ++seed)
    if (!RaftWorld(seed, GetParam().faults).run().empty()) return;
  FAIL() << "not found: " << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(Planted, RaftMistakes,
                         testing::Values(RaftMistake{"DecideWithoutMajority", 0, {.decide_without_majority = true}},
                                         RaftMistake{"ForgetVote", 0, {.forget_vote = true}},
                                         RaftMistake{"ApplyBeforeCommit", 0, {.apply_before_commit = true}},
                                         RaftMistake{"AnswerFromOldTerm", 110, {.answer_from_old_term = true}}),
                         [](const auto& one) { return one.param.name; });

TEST(Raft, AGroupOfOneDecidesAlone) {
  MemoryStore store;
  Raft raft({.me = 4, .election_min = 1s, .election_max = 2s, .seed = 1}, store, {4}, 0s);
  raft.tick(2s);
  ASSERT_EQ(raft.role(), Raft::Role::leader);
  const auto index = raft.propose(value_of(7), 2s);
  ASSERT_TRUE(index);
  const std::vector<Raft::Committed> committed = raft.take_committed();
  ASSERT_EQ(committed.size(), 2u);
  EXPECT_EQ(committed[0].entry.kind, RaftEntry::Kind::no_op);
  EXPECT_EQ(committed[1].index, *index);
  EXPECT_EQ(committed[1].entry.body, value_of(7));
}

TEST(Raft, ALeaderThatHearsNoMajorityStepsDown) {
  MemoryStore store;
  Raft raft({.me = 0, .election_min = 1s, .election_max = 2s, .seed = 1}, store, {0, 1, 2}, 0s);
  raft.tick(2s);  // asks for pre-votes
  raft.receive(1, {.kind = RaftMessage::Kind::pre_vote_reply, .term = 1, .granted = true}, 2s);
  raft.receive(1, {.kind = RaftMessage::Kind::vote_reply, .term = 1, .granted = true}, 2s);
  ASSERT_EQ(raft.role(), Raft::Role::leader);
  EXPECT_TRUE(raft.has_quorum(3s));
  raft.tick(4s);
  EXPECT_EQ(raft.role(), Raft::Role::follower);
  EXPECT_FALSE(raft.propose(value_of(1), 4s));
  EXPECT_TRUE(raft.take_committed().empty());
}

TEST(Raft, AVoteIsInTheStoreBeforeItIsAnswered) {
  MemoryStore store;
  {
    Raft raft({.me = 0, .seed = 1}, store, {0, 1, 2}, 0s);
    raft.receive(1, {.kind = RaftMessage::Kind::vote, .term = 5}, 1s);
    EXPECT_TRUE(raft.take_outgoing().at(0).message.granted);
  }
  Raft again({.me = 0, .seed = 2}, store, {0, 1, 2}, 1s);
  again.receive(2, {.kind = RaftMessage::Kind::vote, .term = 5}, 1s);
  EXPECT_FALSE(again.take_outgoing().at(0).message.granted);
  again.receive(1, {.kind = RaftMessage::Kind::vote, .term = 5}, 1s);  // the same candidate asks again
  EXPECT_TRUE(again.take_outgoing().at(0).message.granted);
}

using Message = RaftMessage;

RaftMessage append_of(uint64_t term, uint64_t after, std::vector<RaftEntry> entries) {
  return {.kind = Message::Kind::append, .term = term, .index = after, .log_term = after == 0 ? 0 : term, .entries = std::move(entries)};
}

// The messages of this kind to this site.
std::vector<RaftMessage> sent_to(int site, Message::Kind kind, Raft& raft) {
  std::vector<RaftMessage> all;
  for (Raft::Outgoing& one : raft.take_outgoing())
    if (one.to == site && one.message.kind == kind) all.push_back(std::move(one.message));
  return all;
}

TEST(Raft, AFollowerSeesTheMajorityByItself) {
  MemoryStore store;
  Raft raft({.me = 1, .seed = 1}, store, {0, 1, 2, 3}, 0s);
  raft.receive(2, {.kind = Message::Kind::append_reply, .term = 3, .index = 1, .granted = true}, 1s);  // of entries that are not here yet
  raft.receive(0, append_of(3, 0, {{.term = 3, .kind = RaftEntry::Kind::value, .body = value_of(7)}}), 1s);
  EXPECT_TRUE(raft.take_committed().empty()) << "the reply came before this site knew its leader";
  raft.receive(2, {.kind = Message::Kind::append_reply, .term = 2, .index = 1, .granted = true}, 1s);
  EXPECT_TRUE(raft.take_committed().empty()) << "a reply of an earlier term";
  raft.receive(2, {.kind = Message::Kind::append_reply, .term = 3, .index = 1, .granted = true}, 1s);
  const std::vector<Raft::Committed> committed = raft.take_committed();  // the leader, this site and site 2 have it: three of four
  ASSERT_EQ(committed.size(), 1u);
  EXPECT_EQ(committed[0].entry.body, value_of(7));
}

TEST(Raft, RepliesGoToAllMembersWhereThereAreNewEntries) {
  MemoryStore store;
  Raft raft({.me = 1, .seed = 1}, store, {0, 1, 2}, 0s);
  raft.receive(0, append_of(3, 0, {{.term = 3}}), 1s);
  EXPECT_EQ(sent_to(2, Message::Kind::append_reply, raft).size(), 1u);
  raft.receive(0, append_of(3, 1, {}), 1s);  // a heartbeat
  EXPECT_TRUE(sent_to(2, Message::Kind::append_reply, raft).empty());
}

class FullStore final : public RaftStore {
 public:
  RaftState load() override { return {}; }
  void save(const RaftState& state) override {
    if (full) throw Error(Error::Kind::disk, "no space left");
    saved = state;
  }
  bool full = false;
  RaftState saved;
};

TEST(Raft, WhatCouldNotBeSavedIsNotAnsweredFor) {
  FullStore store;
  Raft raft({.me = 1, .seed = 1}, store, {0, 1, 2}, 0s);
  raft.receive(0, append_of(3, 0, {}), 1s);
  raft.take_outgoing();
  store.full = true;
  EXPECT_THROW(raft.receive(0, append_of(3, 0, {{.term = 3}}), 1s), Error);
  EXPECT_THROW(raft.receive(0, append_of(3, 0, {{.term = 3}}), 2s), Error) << "the leader repeats it: the entry is here, but not on disk";
  EXPECT_TRUE(raft.take_outgoing().empty());
  store.full = false;
  raft.receive(0, append_of(3, 0, {{.term = 3}}), 3s);
  EXPECT_EQ(sent_to(0, Message::Kind::append_reply, raft).at(0).index, 1u);
  EXPECT_EQ(store.saved.entries.size(), 1u);
}

TEST(Raft, ASiteThatMayHaveForgottenItsVoteDoesNotVoteOrStand) {
  MemoryStore store;
  Raft raft({.me = 1, .election_min = 1s, .election_max = 2s, .seed = 1, .votes = false}, store, {0, 1, 2}, 0s);
  raft.tick(10s);
  EXPECT_TRUE(raft.take_outgoing().empty());
  raft.receive(0, {.kind = Message::Kind::pre_vote, .term = 4}, 10s);
  raft.receive(0, {.kind = Message::Kind::vote, .term = 4}, 10s);
  for (const Raft::Outgoing& one : raft.take_outgoing()) EXPECT_FALSE(one.message.granted);
  raft.set_votes(true);
  raft.receive(0, {.kind = Message::Kind::vote, .term = 4}, 10s);
  EXPECT_TRUE(raft.take_outgoing().at(0).message.granted);
}

TEST(Raft, ARemovedSiteGetsTheEntryThatRemovesIt) {
  MemoryStore store;
  Raft raft({.me = 0, .election_min = 1s, .election_max = 2s, .heartbeat = 100ms, .seed = 1}, store, {0, 1, 2}, 0s);
  raft.tick(2s);
  raft.receive(1, {.kind = Message::Kind::pre_vote_reply, .term = 1, .granted = true}, 2s);
  raft.receive(1, {.kind = Message::Kind::vote_reply, .term = 1, .granted = true}, 2s);
  for (const int site : {1, 2}) raft.receive(site, {.kind = Message::Kind::append_reply, .term = 1, .index = 1, .granted = true}, 2s);
  ASSERT_TRUE(raft.propose_members({0, 1}, 2s));
  raft.receive(1, {.kind = Message::Kind::append_reply, .term = 1, .index = 2, .granted = true}, 2s);
  EXPECT_EQ(raft.committed(), 2u);
  raft.take_outgoing();
  raft.tick(2100ms);
  EXPECT_FALSE(sent_to(2, Message::Kind::append, raft).empty());
  raft.receive(2, {.kind = Message::Kind::append_reply, .term = 1, .index = 2, .granted = true}, 2100ms);
  raft.take_outgoing();
  raft.tick(2200ms);
  EXPECT_TRUE(sent_to(2, Message::Kind::append, raft).empty());
}

TEST(Raft, ALeaderThatIsBusyIsNotTakenForLost) {
  MemoryStore store;
  Raft raft({.me = 1, .election_min = 1s, .election_max = 2s, .seed = 1}, store, {0, 1, 2}, 0s);
  raft.receive(0, append_of(1, 0, {}), 1s);
  for (auto now = 2s; now < 30s; now += 1s) {
    raft.alive(0, now);
    raft.tick(now);
  }
  EXPECT_EQ(raft.leader(), 0);
  EXPECT_TRUE(raft.has_quorum(30s));
  raft.tick(32s);
  EXPECT_EQ(raft.role(), Raft::Role::pre_candidate);
}

}  // namespace
}  // namespace cairn::comm
