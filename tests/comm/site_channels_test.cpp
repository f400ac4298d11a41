// The core of the bridge in virtual time: cut links, one-way cuts, restarts and standstills. Every message arrives once and in order.
#include "comm/bridge/site_channels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using Nanoseconds = std::chrono::nanoseconds;

constexpr Nanoseconds kTick = 50ms;
constexpr Nanoseconds kDeliveredWithin = 5s;  // after the last event: silence, a relay, and the way there and back

SiteFrame::Body body_of(uint64_t number, size_t bytes = sizeof(uint64_t)) {
  std::vector<std::byte> body(bytes);
  std::memcpy(body.data(), &number, sizeof number);
  return std::make_shared<std::vector<std::byte>>(std::move(body));
}
uint64_t number_in(const SiteFrame::Body& body) {
  uint64_t number = 0;
  std::memcpy(&number, body->data(), sizeof number);
  return number;
}

SiteChannels::Options quick_options(int site, int sites, uint64_t incarnation = 1) {
  return {.site = site,
          .sites = sites,
          .incarnation = incarnation,
          .lost_after = 2s,
          .silence_max = 1s,
          .relay_after = 200ms,
          .relay_window = 256};
}

// Sites, the streams between them, and what goes wrong with both, all from one seed. A cut link holds what is sent, as TCP does.
class ChannelWorld {
 public:
  ChannelWorld(uint64_t seed, SiteChannelFaults faults)
      : random_(base::Random(seed).for_purpose("site channels test")), faults_(faults), sites_(3 + below(4)) {
    streams_.resize(sites_.size() * sites_.size());
    cut_.resize(streams_.size());
    for (size_t i = 0; i < sites_.size(); ++i) start(static_cast<int>(i));
  }

  // What was violated; empty: nothing.
  std::string run() {
    for (int event = 0; event < 25 && wrong_.empty(); ++event) {
      disturb();
      advance(kTick * static_cast<int64_t>(below(below(3) == 0 ? 60 : 8)));
    }
    settle();
    advance(kDeliveredWithin);
    if (wrong_.empty()) check_delivered();
    return wrong_;
  }
  int64_t relayed() const { return relayed_; }

 private:
  struct Site {
    std::unique_ptr<SiteChannels> core;
    uint64_t incarnation = 0;
    Nanoseconds stopped_until{};
  };
  struct Stream {  // of a pair; side 0 is the lower site
    std::array<bool, 2> open{}, ending{};
    std::array<std::deque<std::pair<Nanoseconds, SiteFrame>>, 2> sent;  // by the side that wrote it
  };
  using Pair = std::tuple<int, uint64_t, int, uint64_t>;  // from, its incarnation, to, its incarnation
  struct Sent {
    std::vector<uint64_t> numbers;
    size_t delivered = 0;
  };

  uint64_t below(uint64_t n) { return random_.below(drawn_++, n); }
  int count() const { return static_cast<int>(sites_.size()); }
  int any() { return static_cast<int>(below(sites_.size())); }
  Site& at(int site) { return sites_[static_cast<size_t>(site)]; }
  bool awake(int site) { return at(site).stopped_until <= now_; }
  size_t place(int from, int to) const { return static_cast<size_t>(from) * sites_.size() + static_cast<size_t>(to); }
  bool is_cut(int from, int to) const { return cut_[place(from, to)] != 0; }
  void cut(int from, int to) { cut_[place(from, to)] = 1; }
  void heal() { std::fill(cut_.begin(), cut_.end(), 0); }
  Stream& stream_of(int a, int b) { return streams_[place(std::min(a, b), std::max(a, b))]; }
  static size_t side_of(int site, int other) { return site < other ? 0 : 1; }

  void start(int site) {
    SiteChannels::Options options = quick_options(site, count(), ++at(site).incarnation);
    options.faults = faults_;
    at(site).core = std::make_unique<SiteChannels>(options, now_);
  }
  void end_streams(int site) {
    for (int other = 0; other < count(); ++other)
      if (other != site) end(stream_of(site, other), side_of(site, other));
  }
  // One side ends the stream. Often what it wrote last is lost with it.
  void end(Stream& stream, size_t side) {
    if (!stream.open[side]) return;
    stream.open[side] = false;
    stream.ending[side] = true;
    if (below(2) == 0) stream.sent[side].clear();
  }

  void disturb() {
    const int a = any(), b = any();
    switch (below(9)) {
      case 0:
        return cut(a, b);
      case 1:
      case 2:
        cut(a, b);
        return cut(b, a);
      case 3:  // two halves
        for (int i = 0; i < count(); ++i)
          for (int j = 0; j < count(); ++j)
            if ((i <= a) != (j <= a)) cut(i, j);
        return;
      case 4:
      case 5:
        return heal();
      case 6:
        end_streams(a);
        return start(a);
      case 7:
        end_streams(a);
        return at(a).core->renew(++at(a).incarnation, now_);
      default:
        at(a).stopped_until = now_ + kTick * static_cast<int64_t>(below(80));
    }
  }

  // From now on every pair has a stream or a common neighbour: site `hub` is cut from nobody.
  void settle() {
    sending_ = false;
    heal();
    const int hub = any();
    for (int i = 0; i < count(); ++i)
      for (int j = 0; j < count(); ++j)
        if (i != hub && j != hub && below(2) == 0) cut(i, j);
    for (Site& site : sites_) site.stopped_until = {};
  }

  void advance(Nanoseconds time) {
    for (const Nanoseconds until = now_ + time; now_ < until && wrong_.empty(); now_ += kTick) {
      for (int a = 0; a < count(); ++a)
        for (int b = a + 1; b < count(); ++b) {
          connect(a, b);
          deliver(a, b);
          deliver(b, a);
        }
      for (int site = 0; site < count(); ++site)
        if (awake(site)) work(site);
    }
  }

  void connect(int a, int b) {
    Stream& stream = stream_of(a, b);
    if ((stream.open[0] && stream.open[1]) || is_cut(a, b) || is_cut(b, a) || !awake(a) || !awake(b) || below(3) != 0) return;
    stream = {};
    if (!at(a).core->opened(b, at(b).incarnation, now_) || !at(b).core->opened(a, at(a).incarnation, now_)) return fail("refused", a, b);
    stream.open = {true, true};
  }

  void deliver(int from, int to) {
    Stream& stream = stream_of(from, to);
    const size_t side = side_of(from, to);
    if (is_cut(from, to) || !awake(to) || !stream.open[1 - side]) return;
    auto& queue = stream.sent[side];
    while (!queue.empty() && queue.front().first <= now_) {
      at(to).core->arrived(from, std::move(queue.front().second), now_);
      queue.pop_front();
    }
    if (!stream.ending[side] || !queue.empty()) return;
    stream.open[1 - side] = false;
    at(to).core->closed(from, now_);
  }

  void work(int site) {
    SiteChannels& core = *at(site).core;
    for (const SiteChannels::Message& message : core.take_messages()) {
      Sent& sent = sent_[{message.from, message.incarnation, site, at(site).incarnation}];
      if (sent.delivered >= sent.numbers.size() || sent.numbers[sent.delivered++] != number_in(message.body))
        return fail("out of order, twice, or for another incarnation", message.from, site);
    }
    for (const SiteChannels::Relayed& one : core.take_relayed()) relayed_ += one.bytes > 0 ? 1 : 0;
    for (const int other : core.silent(now_)) {
      end(stream_of(site, other), side_of(site, other));
      core.closed(other, now_);
    }
    const int to = any();
    if (sending_ && to != site && below(3) == 0 && core.send(to, core.incarnation(to), body_of(++numbers_, 8 + below(40)), now_, now_))
      sent_[{site, at(site).incarnation, to, core.incarnation(to)}].numbers.push_back(numbers_);
    for (int other = 0; other < count(); ++other) {
      if (other == site) continue;
      Stream& stream = stream_of(site, other);
      const size_t side = side_of(site, other);
      if (!stream.open[side]) continue;
      for (int budget = 4; budget > 0; --budget) {  // a slow link
        std::optional<SiteFrame> frame = core.next_frame(other, now_);
        if (!frame) break;
        const Nanoseconds before = stream.sent[side].empty() ? now_ : stream.sent[side].back().first;
        stream.sent[side].emplace_back(std::max(before, now_ + kTick * static_cast<int64_t>(1 + below(2))), std::move(*frame));
      }
    }
  }

  void check_delivered() {
    for (const auto& [pair, sent] : sent_) {
      const auto& [from, from_incarnation, to, to_incarnation] = pair;
      if (at(from).incarnation != from_incarnation || at(to).incarnation != to_incarnation) continue;
      if (sent.delivered < sent.numbers.size()) return fail("not delivered", from, to);
    }
    for (int a = 0; a < count(); ++a)
      for (int b = 0; b < count(); ++b)
        if (a != b && !at(a).core->reachable(b, now_)) return fail("not reachable", a, b);
  }

  void fail(const char* what, int from, int to) {
    if (wrong_.empty())
      wrong_ = fmt::format("site {} to site {} at {:.2f} s: {}", from, to, static_cast<double>(now_.count()) * 1e-9, what);
  }

  base::Random random_;
  uint64_t drawn_ = 0;
  SiteChannelFaults faults_;
  std::vector<Site> sites_;
  std::vector<Stream> streams_;  // by the lower, then the higher site
  std::vector<char> cut_;        // by sender and receiver
  std::map<Pair, Sent> sent_;
  Nanoseconds now_{};
  uint64_t numbers_ = 0;
  int64_t relayed_ = 0;
  std::string wrong_;
  bool sending_ = true;
};

std::string first_violation(uint64_t seeds, SiteChannelFaults faults, int64_t* relayed = nullptr) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    ChannelWorld world(seed, faults);
    if (const std::string wrong = world.run(); !wrong.empty()) return fmt::format("seed {}: {}", seed, wrong);
    if (relayed) *relayed += world.relayed();
  }
  return "";
}

TEST(SiteChannels, EveryMessageArrivesOnceAndInOrderWhateverIsCut) {
  int64_t relayed = 0;
  EXPECT_EQ(first_violation(150, {}, &relayed), "");
  EXPECT_GT(relayed, 1000) << "the seeds try relays";
}

TEST(SiteChannels, PlantedFaultsAreFound) {
  EXPECT_NE(first_violation(30, {.drop_relayed = true}), "");
  EXPECT_NE(first_violation(30, {.accept_any_incarnation = true}), "");
  EXPECT_NE(first_violation(30, {.resume_behind_path = true}), "");
}

// Sites whose streams carry everything at once.
class ChannelTrio {
 public:
  ChannelTrio() {
    for (int site = 0; site < 3; ++site) cores.emplace_back(quick_options(site, 3), now);
  }
  void open(int a, int b) {
    EXPECT_TRUE(cores[static_cast<size_t>(a)].opened(b, cores[static_cast<size_t>(b)].incarnation(), now));
    EXPECT_TRUE(cores[static_cast<size_t>(b)].opened(a, cores[static_cast<size_t>(a)].incarnation(), now));
  }
  void close(int a, int b) {
    cores[static_cast<size_t>(a)].closed(b, now);
    cores[static_cast<size_t>(b)].closed(a, now);
  }
  // Lets this time pass; returns the frames that site `watched` wrote to site `to` meanwhile.
  std::vector<SiteFrame> pass(Nanoseconds time, int watched = 0, int to = 1) {
    std::vector<SiteFrame> seen;
    for (const Nanoseconds until = now + time; now < until; now += kTick)
      for (int from = 0; from < 3; ++from)
        for (int other = 0; other < 3; ++other)
          while (std::optional<SiteFrame> frame = cores[static_cast<size_t>(from)].next_frame(other, now)) {
            if (from == watched && other == to) seen.push_back(*frame);
            if (stuck != other) cores[static_cast<size_t>(other)].arrived(from, *frame, now);
          }
    return seen;
  }
  bool send(int from, int to, uint64_t number, size_t bytes = 8) {
    SiteChannels& core = cores[static_cast<size_t>(from)];
    return core.send(to, core.incarnation(to), body_of(number, bytes), now, now);
  }
  std::vector<uint64_t> received(int site) {
    std::vector<uint64_t> numbers;
    for (const SiteChannels::Message& message : cores[static_cast<size_t>(site)].take_messages())
      numbers.push_back(number_in(message.body));
    return numbers;
  }

  Nanoseconds now{};
  std::vector<SiteChannels> cores;
  int stuck = -1;  // a site that reads nothing
};

TEST(SiteChannels, ASiteThatWasAwayGoesOnWhereItWas) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.pass(200ms);
  ASSERT_TRUE(trio.send(0, 1, 7));
  trio.close(0, 1);  // before it was written
  trio.pass(1500ms);
  EXPECT_TRUE(trio.cores[0].reachable(1, trio.now));
  trio.pass(1s);
  EXPECT_FALSE(trio.cores[0].reachable(1, trio.now));
  EXPECT_EQ(trio.cores[0].incarnation(1), 1u) << "the last known one";
  EXPECT_FALSE(trio.send(0, 1, 8)) << "nothing is queued for an unreachable site";
  trio.pass(60s);
  trio.open(0, 1);
  EXPECT_TRUE(trio.send(0, 1, 9));
  trio.pass(200ms);
  EXPECT_EQ(trio.received(1), (std::vector<uint64_t>{7, 9}));
}

TEST(SiteChannels, AfterAGoodbyeOnlyALaterIncarnationIsReachable) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.pass(200ms);
  ASSERT_TRUE(trio.send(1, 0, 5));
  trio.cores[1].leave();
  EXPECT_FALSE(trio.cores[1].has_left(trio.now));
  trio.pass(100ms);
  EXPECT_TRUE(trio.cores[1].has_left(trio.now));
  EXPECT_EQ(trio.received(0), std::vector<uint64_t>{5}) << "what was sent before arrives";
  EXPECT_FALSE(trio.cores[0].reachable(1, trio.now));
  trio.cores[0].closed(1, trio.now);
  EXPECT_FALSE(trio.cores[0].opened(1, 1, trio.now)) << "that incarnation is over";
  EXPECT_TRUE(trio.cores[0].opened(1, 2, trio.now));
  EXPECT_TRUE(trio.cores[0].reachable(1, trio.now));
}

TEST(SiteChannels, ASiteThatLeavesDoesNotWaitLongForOneWithoutAPath) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.open(0, 2);
  trio.pass(200ms);
  ASSERT_TRUE(trio.send(0, 2, 1));
  trio.close(0, 1);
  trio.close(0, 2);
  trio.cores[0].leave();
  trio.pass(450ms);
  EXPECT_TRUE(trio.cores[0].reachable(1, trio.now));
  EXPECT_FALSE(trio.cores[0].has_left(trio.now)) << "site 2 misses a message";
  trio.open(0, 2);
  trio.pass(100ms);
  EXPECT_TRUE(trio.cores[0].has_left(trio.now));
  EXPECT_EQ(trio.received(2), std::vector<uint64_t>{1});
}

TEST(SiteChannels, ARelayedPathIsTakenAfterAWhileAndLeftForTheDirectOne) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.open(1, 2);
  trio.open(0, 2);
  trio.pass(200ms);
  trio.close(0, 2);
  EXPECT_EQ(trio.cores[0].first_hop(2, trio.now), -1) << "a stream may be back at once";
  trio.pass(250ms);
  EXPECT_EQ(trio.cores[0].first_hop(2, trio.now), 1);
  ASSERT_TRUE(trio.send(0, 2, 1, 100));
  trio.pass(10s);
  EXPECT_EQ(trio.received(2), std::vector<uint64_t>{1});
  EXPECT_TRUE(trio.cores[0].reachable(2, trio.now)) << "heartbeats are relayed";
  const std::vector<SiteChannels::Relayed> relayed = trio.cores[1].take_relayed();
  ASSERT_EQ(relayed.size(), 1u) << "only messages count";
  EXPECT_EQ(std::tuple(relayed[0].from, relayed[0].to, relayed[0].bytes), std::tuple(0, 2, 100));
  trio.open(0, 2);
  EXPECT_EQ(trio.cores[0].first_hop(2, trio.now), 2);
  ASSERT_TRUE(trio.send(0, 2, 2));
  trio.pass(200ms);
  EXPECT_EQ(trio.received(2), std::vector<uint64_t>{2});
  EXPECT_TRUE(trio.cores[1].take_relayed().empty());
}

TEST(SiteChannels, SitesThatNeverHadAStreamMeetThroughARelay) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.open(1, 2);
  trio.pass(500ms);
  EXPECT_EQ(trio.cores[0].incarnation(2), 1u);
  EXPECT_TRUE(trio.cores[2].reachable(0, trio.now));
}

TEST(SiteChannels, ARelayHoldsAWindowOfBytesAtMost) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.open(1, 2);
  trio.pass(500ms);
  trio.stuck = 2;
  for (uint64_t number = 0; number < 20; ++number) ASSERT_TRUE(trio.send(0, 2, number, 100));
  int64_t bytes = 0;
  for (const SiteFrame& frame : trio.pass(500ms)) bytes += frame.kind == SiteFrame::Kind::message ? frame.bytes() : 0;
  EXPECT_EQ(bytes, 200) << "two of 100 bytes fit in 256";
  trio.stuck = -1;
  trio.close(1, 2);
  trio.open(1, 2);
  trio.pass(1s);
  EXPECT_EQ(trio.received(2).size(), 20u) << "the relay has a new stream: all begins again";
  ASSERT_TRUE(trio.send(0, 2, 20, 1000)) << "one message may be longer";
  trio.pass(500ms);
  EXPECT_EQ(trio.received(2), std::vector<uint64_t>{20});
}

TEST(SiteChannels, ARelayForwardsOnlyFramesOfItsNeighbourAndOnlyOnce) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.open(1, 2);
  trio.pass(500ms);
  SiteFrame frame{
      .kind = SiteFrame::Kind::message, .origin = 0, .target = 2, .origin_incarnation = 1, .target_incarnation = 1, .body = body_of(3)};
  SiteFrame twice = frame, foreign = frame, old = frame;
  twice.relayed = true;
  foreign.origin = 2;
  old.origin_incarnation = 7;
  for (const SiteFrame& bad : {twice, foreign, old}) trio.cores[1].arrived(0, bad, trio.now);
  trio.pass(200ms);
  EXPECT_TRUE(trio.received(2).empty());
  trio.cores[1].arrived(0, frame, trio.now);
  trio.pass(200ms);
  EXPECT_EQ(trio.received(2), std::vector<uint64_t>{3});
}

// A second process under a number that is taken reaches a site that refuses it through one that does not know better.
TEST(SiteChannels, AnotherStartOfASiteWithAnOpenStreamIsNotHeardThroughARelay) {
  ChannelTrio trio;
  trio.open(0, 2);
  trio.open(1, 2);
  trio.pass(200ms);
  SiteFrame frame{.relayed = true, .origin = 0, .target = 2, .origin_incarnation = 9};
  trio.cores[2].arrived(1, frame, trio.now);
  EXPECT_EQ(trio.cores[2].incarnation(0), 1u);
  trio.close(0, 2);
  trio.cores[2].arrived(1, frame, trio.now);
  EXPECT_EQ(trio.cores[2].incarnation(0), 9u);
}

TEST(SiteChannels, ARenewedSiteGetsNothingThatWasSentToItBefore) {
  ChannelTrio trio;
  trio.open(0, 1);
  trio.pass(200ms);
  ASSERT_TRUE(trio.send(0, 1, 1));
  ASSERT_TRUE(trio.send(1, 0, 2));
  trio.cores[1].renew(5, trio.now);
  trio.cores[0].closed(1, trio.now);
  trio.open(0, 1);
  EXPECT_FALSE(trio.cores[0].send(1, 1, body_of(3), trio.now, trio.now)) << "to the incarnation before";
  ASSERT_TRUE(trio.send(0, 1, 4));
  trio.pass(200ms);
  EXPECT_EQ(trio.received(1), std::vector<uint64_t>{4});
  EXPECT_TRUE(trio.received(0).empty());
}

}  // namespace
}  // namespace cairn::comm
