#include "comm/mailbox.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using harness::Faults;
using harness::On;
using harness::on_ranks;

// The error of a request.
Error error_of(const Request& request) {
  try {
    request.wait();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "it did not fail";
  return Error(Error::Kind::broken_invariant, "none");
}

bool says(const Error& error, std::string_view text) {
  if (std::string_view(error.what()).find(text) != std::string_view::npos) return true;
  ADD_FAILURE() << "\"" << error.what() << "\" does not say \"" << text << "\"";
  return false;
}

template <typename Call>
Error refusal_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "it was not refused";
  return Error(Error::Kind::broken_invariant, "none");
}

// Keeps this rank and its offers until a node says that it is done.
void stay(Node& node, int64_t others) {
  for (int64_t i = 0; i < others; ++i) EXPECT_EQ(node.receive({.tag = "done"}).message().tag, "done");
}

class MailboxOn : public testing::TestWithParam<On> {};
INSTANTIATE_TEST_SUITE_P(Transports, MailboxOn, testing::Values(On::local, On::net, On::machines),
                         [](const auto& one) { return harness::name(one.param); });

TEST_P(MailboxOn, DeliversEachPairsMessagesOfATagInOrder) {
  on_ranks(3, {.on = GetParam()}, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("worker-{}", world.rank()));
    for (int i = 0; i < 17; ++i) {
      for (int other = 0; other < 3; ++other) me.send(fmt::format("worker-{}", other), i % 2 ? "odd" : "even", std::to_string(i));
    }
    for (const char* tag : {"odd", "even"}) {
      for (int other = 0; other < 3; ++other) {
        for (int i = tag[0] == 'o' ? 1 : 0; i < 17; i += 2) {
          const MailboxMessage mail = me.receive({.from = fmt::format("worker-{}", other), .tag = tag}).message();
          EXPECT_EQ(mail.text(), std::to_string(i));
          EXPECT_EQ(mail.to, me.name());
        }
      }
    }
    for (int other = 0; other < 3; ++other) me.send(fmt::format("worker-{}", other), "done", "");
    stay(me, 3);
  });
}

TEST_P(MailboxOn, LetsAnyoneAnswerWithoutTheOthersTakingPart) {
  on_ranks(2, {.on = GetParam()}, [](World& world) {
    Mailbox mailbox(world);
    if (world.rank() == 0) {
      Node server = mailbox.open("server"), clock = mailbox.open("clock");
      for (int i = 0; i < 3; ++i) {
        const MailboxMessage question = server.receive().message();
        server.send(question.from, "answer", fmt::format("{} to {}", question.text(), question.from));
      }
      EXPECT_EQ(clock.receive().message().from, "a");
      return;
    }
    std::vector<Node> nodes;
    for (const char* name : {"a", "b", "c"}) nodes.push_back(mailbox.open(name));
    for (Node& node : nodes) node.send("server", "question", "2+2");
    for (Node& node : nodes) EXPECT_EQ(node.receive({.from = "server"}).message().text(), "2+2 to " + node.name());
    nodes[0].send("clock", "tick", "").wait();
  });
}

TEST(Mailbox, BooksBodiesUnderTheirPurposeAndMovesNothingInsideARank) {
  const harness::Run run = on_ranks(2, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 0) {
      Node twin = mailbox.open("twin");
      me.send("n1", "g", std::vector<std::byte>(1013), {.purpose = Purpose::gradient}).wait();
      me.send("twin", "g", std::vector<std::byte>(977), {.purpose = Purpose::gradient});
      EXPECT_EQ(twin.receive().message().body.size(), 977);
    } else {
      EXPECT_EQ(me.receive().message().purpose, Purpose::gradient);
    }
  });
  EXPECT_EQ(run.ledger.bytes_sent(0, Purpose::gradient), 1013);
  // Two nodes come and go and one message: 5 headers, with names of 2 or 4 bytes, 4 more for the message's "n0", "n1" and "g".
  EXPECT_EQ(run.ledger.bytes_sent(0, Purpose::control), 5 * 72 + 2 * (2 + 4) + 5);
}

TEST(Mailbox, TellsWhoIsKnownWhereANodeNeverCame) {
  on_ranks(1, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open("server");
    const Request sent = me.send("worker-9", "hello", "", {.within = 2s});
    EXPECT_FALSE(sent.ready());
    const Error error = error_of(sent);
    EXPECT_EQ(world.clock().now(), 2s);
    EXPECT_TRUE(sent.timed_out());
    EXPECT_TRUE(says(error, "not gone within 2.0 s: no node worker-9 has announced itself in epoch 0; known are server"));
    EXPECT_TRUE(says(error, "node server sends hello to node worker-9"));
  });
}

TEST(Mailbox, CountsWhatANodeCouldNotSendBeforeItLeft) {
  on_ranks(1, [](World& world) {
    Mailbox mailbox(world);
    Request sent;
    {
      Node me = mailbox.open("brief");
      sent = me.send("unknown", "hello", "");
    }
    EXPECT_TRUE(says(error_of(sent), "node brief has left before node unknown was known (as node brief sends hello to node unknown)"));
    EXPECT_EQ(mailbox.counts().unsent, 1);
  });
}

TEST(Mailbox, EndsWhatWaitsWhenItEnds) {
  on_ranks(1, [](World& world) {
    Request waiting;
    {
      Mailbox mailbox(world);
      waiting = mailbox.timer(5s);
    }
    EXPECT_TRUE(waiting.ready());
    EXPECT_TRUE(says(error_of(waiting), "its mailbox has ended"));
  });
}

TEST(Mailbox, WakesAtATimerOrAMessageWhicheverIsFirst) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 1) {
      mailbox.timer(3s).wait();
      me.send("n0", "late", "");
      return;
    }
    const Request message = me.receive(), bell = mailbox.timer(2s), never = mailbox.timer(1s);
    never.cancel();
    EXPECT_EQ(error_of(never).kind(), Error::Kind::cancelled);
    EXPECT_EQ(world.clock().now(), 0s);
    EXPECT_EQ(mailbox.first(std::vector{message, bell}), 1);
    EXPECT_EQ(world.clock().now(), 2s);
    bell.wait();
    EXPECT_EQ(mailbox.first(std::vector{message, mailbox.timer(50s)}), 0);
    EXPECT_GE(world.clock().now(), 3s);
    EXPECT_EQ(message.message().tag, "late");
  });
}

TEST(Mailbox, GivesNoMessageToWhoWaitsNoMore) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 1) {
      mailbox.timer(3s).wait();
      me.send("n0", "only", "x");
      return;
    }
    const Request cancelled = me.receive(), overdue = me.receive({.tag = "only", .within = 2s});
    { const Request forgotten = me.receive(); }
    cancelled.cancel();
    EXPECT_TRUE(says(error_of(cancelled), "cancelled by its owner (as node n0 waits for a message from anybody)"));
    mailbox.timer(2500ms).wait();
    EXPECT_TRUE(overdue.ready());
    EXPECT_EQ(me.receive().message().text(), "x");
    EXPECT_TRUE(says(error_of(overdue), "nothing came within"));
    EXPECT_TRUE(overdue.timed_out());
    EXPECT_FALSE(cancelled.timed_out());
  });
}

TEST(Mailbox, NamesANodeThatLeftOnceItsMessagesAreRead) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 1) {
      Node guest = mailbox.open("guest");
      guest.send("n0", "bye", "1").wait();
      guest.leave();
      EXPECT_EQ(me.receive().message().tag, "done");
      return;
    }
    const Request second = me.receive({.from = "guest", .tag = "more"});
    const Error error = error_of(second);
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    EXPECT_EQ(error.peer(), 1);
    EXPECT_TRUE(says(error, "node guest of rank 1 has left (as node n0 waits for more from node guest)"));
    EXPECT_LT(world.clock().now(), 1s);
    EXPECT_EQ(me.receive({.from = "guest"}).message().text(), "1");
    EXPECT_TRUE(says(error_of(me.receive({.from = "guest"})), "node guest of rank 1 has left"));
    EXPECT_TRUE(says(error_of(me.send("guest", "hello", "")), "node guest of rank 1 has left (as node n0 sends hello to node guest)"));
    EXPECT_EQ(mailbox.nodes(), (std::map<std::string, int>{{"n0", 0}, {"n1", 1}}));
    me.send("n1", "done", "").wait();
  });
}

TEST(Mailbox, DropsAndCountsWhatIsOfAnOldEpochAndKeepsWhatIsAhead) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 1) {
      me.send("n0", "unread", "0").wait();
      mailbox.timer(2s).wait();
      me.send("n0", "late", "0").wait();  // n0 is in epoch 4 by now
      EXPECT_EQ(mailbox.newest_epoch(), 4);
      EXPECT_EQ(mailbox.counts().ahead, 1);  // that n0 is there
      const Request waiting = me.receive({.from = "elsewhere"});
      mailbox.enter(4);
      EXPECT_TRUE(says(error_of(waiting), "epoch 0 is over, epoch 4 has begun"));
      EXPECT_EQ(error_of(waiting).kind(), Error::Kind::cancelled);
      EXPECT_EQ(mailbox.counts().ahead, 0);
      EXPECT_EQ(me.receive().message().text(), "4");
      me.send("n0", "new", "4").wait();
      return;
    }
    mailbox.timer(1s).wait();
    mailbox.enter(4);
    EXPECT_EQ(mailbox.counts().old_epoch, 1);  // "unread"
    EXPECT_EQ(mailbox.nodes(), (std::map<std::string, int>{{"n0", 0}}));
    me.send("n1", "early", "4");  // waits until n1 is in epoch 4 too
    const MailboxMessage mail = me.receive().message();
    EXPECT_EQ(mail.text(), "4");
    EXPECT_EQ(mail.epoch, 4);
    EXPECT_EQ(mailbox.counts().old_epoch, 2);
    EXPECT_TRUE(says(refusal_of([&] { mailbox.enter(4); }), "epoch 4 after epoch 4: a new one has a higher number"));
  });
}

TEST_P(MailboxOn, FailsOnlyWhatWaitsForALostRank) {
  const auto faults = Faults().lose({.rank = 2, .before_collective = 0});
  const harness::Run run = on_ranks(3, {.on = GetParam()}, faults, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 2) {
      for (const char* other : {"n0", "n1"}) me.receive({.from = other}).wait();  // so that they know it
      world.everyone().barrier().wait();
    }
    me.send("n2", "hello", "");
    const int other = 1 - world.rank();
    const Request doomed = me.receive({.from = "n2", .within = 30s}), fine = me.receive({.from = fmt::format("n{}", other), .within = 30s});
    const Error error = error_of(doomed);
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    EXPECT_EQ(error.peer(), 2);
    EXPECT_TRUE(says(error, "node n2 was lost with rank 2"));
    EXPECT_LT(world.clock().now(), 5s);
    EXPECT_TRUE(says(error_of(me.send("n2", "x", "")), "node n2 was lost with rank 2"));
    me.send(fmt::format("n{}", other), "still", "here");
    EXPECT_EQ(fine.message().text(), "here");
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty()) << run.errors.begin()->second.what();
}

TEST(Mailbox, NamesAFrozenRankAndAPartitionedOne) {
  const auto cut = Faults().partition({.these = {0, 1}, .those = {2}, .at = 1s});
  for (const Faults& faults : {Faults().freeze({.rank = 2, .at = 1s}), cut}) {
    const harness::Run run = on_ranks(3, faults, [](World& world) {
      Mailbox mailbox(world);
      Node me = mailbox.open(fmt::format("n{}", world.rank()));
      mailbox.timer(1500ms).wait();
      if (world.rank() == 2) return;
      const Error error = error_of(me.receive({.from = "n2", .within = 30s}));
      EXPECT_EQ(error.peer(), 2);
      EXPECT_TRUE(says(error, "no sign of life for 3.0 s"));
      EXPECT_LE(world.clock().now(), 5s);
    });
    EXPECT_EQ(run.faults_fired, 1);
  }
}

TEST(Mailbox, KeepsTheOrderThroughDelayAndReordering) {
  const auto faults = Faults().delay({.from = 1, .to = 0, .message = 4, .by = 1s}).reorder({.from = 1, .to = 0, .message = 9});
  const harness::Run run = on_ranks(2, faults, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    for (int i = 0; i < 11; ++i) {
      if (world.rank() == 1) me.send("n0", "t", std::to_string(i)).wait();
      if (world.rank() == 0) {
        EXPECT_EQ(me.receive({.tag = "t"}).message().text(), std::to_string(i));
      }
    }
  });
  EXPECT_EQ(run.faults_fired, 2);
  EXPECT_TRUE(run.errors.empty());
}

TEST(Mailbox, RunsOutOfTimeOnlyForTheRankWhoseMessageWasDropped) {
  const harness::Run run = on_ranks(3, Faults().drop({.from = 1, .to = 0, .message = 3}), [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() != 0) {
      me.send("n0", "t", "x").wait();
      mailbox.timer(9s).wait();
      return;
    }
    EXPECT_EQ(me.receive({.from = "n2"}).message().text(), "x");
    const Error error = error_of(me.receive({.from = "n1", .within = 5s}));
    EXPECT_EQ(error.peer(), 1);
    EXPECT_TRUE(says(error, "nothing came within 5.0 s (as node n0 waits for a message from node n1)"));
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty());
}

TEST(Mailbox, LetsMessagesWaitWithTheirSenderWhereTooManyLieUnread) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world, {.unread_bytes_max = 2000});
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 1) {
      for (int i = 0; i < 5; ++i) me.send("n0", fmt::format("t{}", i), std::vector<std::byte>(1500));
      EXPECT_EQ(me.receive().message().tag, "done");
      return;
    }
    const Error error = error_of(me.receive({.from = "n1", .tag = "t4", .within = 1s}));
    EXPECT_TRUE(says(error, "bytes from rank 1 lie unread here, and what follows waits until they are received"));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(me.receive({.tag = fmt::format("t{}", i)}).message().body.size(), 1500);
    me.send("n1", "done", "").wait();
  });
}

// Under any fault: each peer's messages arrive in order and once, up to some point; then an error names that peer.
TEST(Mailbox, GivesABeginningOfWhatWasSentUnderRandomFaults) {
  constexpr int kRanks = 4, kMessages = 12;
  int64_t failures = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const base::Random random(seed);
    auto below = [&, drawn = uint64_t{0}](uint64_t limit) mutable { return static_cast<int>(random.bits64(drawn++) % limit); };
    const auto message = [&] { return static_cast<int64_t>(below(60)); };
    Faults faults;
    const int from = below(kRanks), to = (from + 1 + below(kRanks - 1)) % kRanks;
    faults.delay({.from = from, .to = to, .message = message(), .by = std::chrono::milliseconds(below(900))});
    faults.reorder({.from = to, .to = from, .message = message()});
    if (seed % 4 == 1) faults.lose({.rank = from, .at = std::chrono::microseconds(below(600))});
    if (seed % 4 == 2) faults.freeze({.rank = from, .at = std::chrono::microseconds(below(600))});
    if (seed % 4 == 3) faults.drop({.from = from, .to = to, .message = message()});
    const harness::Run run = on_ranks(kRanks, {.seed = seed}, faults, [&](World& world) {
      Mailbox mailbox(world, {.within = 10s});
      Node me = mailbox.open(fmt::format("n{}", world.rank()));
      for (int i = 0; i < kMessages; ++i) {
        for (int other = 0; other < kRanks; ++other) me.send(fmt::format("n{}", other), "t", std::to_string(i));
      }
      for (int other = 0; other < kRanks; ++other) {
        try {
          for (int i = 0; i < kMessages; ++i) {
            EXPECT_EQ(me.receive({.from = fmt::format("n{}", other)}).message().text(), std::to_string(i)) << "seed " << seed;
          }
        } catch (const Error& error) {
          EXPECT_TRUE(error.peer() == other || error.peer() == -1) << error.what() << ", seed " << seed;
          EXPECT_NE(seed % 4, 0) << error.what() << ", seed " << seed;
          if (world.rank() == to) ++failures;
        }
      }
      EXPECT_LE(world.clock().now(), 45s) << "seed " << seed;
      mailbox.timer(50s - world.clock().now()).wait();  // nobody ends while others wait for it
    });
    EXPECT_TRUE(run.errors.empty()) << run.errors.begin()->second.what() << ", seed " << seed;
  }
  EXPECT_GT(failures, 5);  // or the test shows nothing
}

TEST(Mailbox, TakesTheSameCourseFromTheSameSeed) {
  const auto course = [](uint64_t seed) {
    std::string heard;
    harness::Options options{.seed = seed};
    const harness::Run run = on_ranks(5, options, [&heard](World& world) {
      Mailbox mailbox(world);
      Node me = mailbox.open(fmt::format("n{}", world.rank()));
      for (int i = 0; i < 3; ++i) me.send("n0", fmt::format("t{}", i), "x").wait();
      for (int i = 0; world.rank() == 0 && i < 15; ++i) {
        const MailboxMessage mail = me.receive().message();
        heard += mail.from + mail.tag + " ";
      }
    });
    return heard + run.event_log;
  };
  EXPECT_EQ(course(7), course(7));
  EXPECT_NE(course(7), course(8));
}

TEST(Mailbox, RefusesNamesItCannotUse) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world, {.body_bytes_max = 1 << 20});
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    EXPECT_TRUE(says(refusal_of([&] { mailbox.open(""); }), "a node without a name: 1 to 64 bytes are allowed"));
    EXPECT_TRUE(says(refusal_of([&] { mailbox.open(std::string(65, 'x')); }), "a name of 65 bytes, at most 64 are allowed"));
    EXPECT_TRUE(says(refusal_of([&] { mailbox.open("a\nb"); }), "control characters"));
    EXPECT_TRUE(says(refusal_of([&] { mailbox.open(me.name()); }), "is open on rank"));
    EXPECT_TRUE(says(refusal_of([&] { me.send("n0", "big", std::vector<std::byte>((1 << 20) + 1)); }),
                     "at most 1048576 are allowed in one message, offer it to be fetched"));
    Node twin = mailbox.open("twin");
    mailbox.timer(1s).wait();
    EXPECT_TRUE(says(error_of(me.send("twin", "x", "")), "both announced it. Give one another name."));
    mailbox.timer(1s).wait();
  });
}

TEST(Mailbox, TellsOthersOfANodeThatAnExceptionDestroyedIfItsRankGoesOn) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 1) {
      EXPECT_THROW(
          {
            Node fragile = mailbox.open("fragile");
            throw Error(Error::Kind::bad_input, "oops");
          },
          Error);
      me.receive().wait();
      return;
    }
    EXPECT_TRUE(says(error_of(me.receive({.from = "fragile"})), "node fragile of rank 1 has left"));
    me.send("n1", "done", "").wait();
  });
}

}  // namespace
}  // namespace cairn::comm
