#include "comm/ledger.h"

#include <gtest/gtest.h>

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

Ledger sample() {
  Ledger ledger(2);
  ledger.book({0, 1, 100, Purpose::gradient, 1ns, 2ns});
  ledger.book({0, 2, 30, Purpose::gradient, 2ns, 3ns});
  ledger.book({0, 1, 7, Purpose::loss, 3ns, 4ns});
  return ledger;
}

TEST(Ledger, AddsUpByRankPurposeAndPair) {
  const Ledger ledger = sample();
  EXPECT_EQ(ledger.bytes_sent(0, Purpose::gradient), 130);
  EXPECT_EQ(ledger.messages_sent(0, Purpose::gradient), 2);
  EXPECT_EQ(ledger.bytes_sent(1, Purpose::gradient), 0);
  EXPECT_EQ(ledger.between(0, 1, Purpose::gradient), (Ledger::Total{100, 1}));
  EXPECT_EQ(ledger.between(1, 0, Purpose::gradient), (Ledger::Total{0, 0}));
  EXPECT_EQ(ledger.total(Purpose::loss), (Ledger::Total{7, 1}));
  EXPECT_EQ(ledger.total(), (Ledger::Total{137, 3}));
}

TEST(Ledger, KeepsOnlyTheLastMessages) {
  const Ledger ledger = sample();
  ASSERT_EQ(ledger.recent().size(), 2u);
  EXPECT_EQ(ledger.recent()[0].to, 2);
  EXPECT_EQ(ledger.recent()[1].ended, 4ns);
}

TEST(Ledger, MergesWithAnotherRanks) {
  Ledger all = sample();
  Ledger other;
  other.book({1, 0, 5, Purpose::gradient, {}, {}});
  other.book({0, 1, 1, Purpose::gradient, {}, {}});
  all.merge(other);
  EXPECT_EQ(all.bytes_sent(1, Purpose::gradient), 5);
  EXPECT_EQ(all.between(0, 1, Purpose::gradient), (Ledger::Total{101, 2}));
  EXPECT_EQ(all.total().messages, 5);
}

TEST(Ledger, WritesItselfAsJson) {
  Ledger ledger;
  ledger.book({0, 1, 100, Purpose::gradient, {}, {}});
  EXPECT_EQ(ledger.json(), R"({
  "by_purpose": {
    "gradient": {"bytes": 100, "messages": 1},
    "parameter": {"bytes": 0, "messages": 0},
    "activation": {"bytes": 0, "messages": 0},
    "loss": {"bytes": 0, "messages": 0},
    "state": {"bytes": 0, "messages": 0},
    "data": {"bytes": 0, "messages": 0},
    "control": {"bytes": 0, "messages": 0},
    "barrier": {"bytes": 0, "messages": 0},
    "relay": {"bytes": 0, "messages": 0}
  },
  "pairs": [
    {"from": 0, "to": 1, "purpose": "gradient", "bytes": 100, "messages": 1}
  ]
}
)");
}

}  // namespace
}  // namespace cairn::comm
