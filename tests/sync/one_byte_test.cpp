#include "sync/one_byte/one_byte.h"

#include <cmath>
#include <mutex>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "mesh/flat_layout.h"
#include "model/model.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kRun = 77;

// Two parameters and a frozen one; the loss is a quadratic whose lowest point depends a little on the batch.
struct Bowl {
  mesh::FlatLayout layout;
  at::Tensor flat;
  model::FlatWeights weights;
  OneByteReplica replica;

  static mesh::FlatLayout make_layout() {
    mesh::FlatLayout made;
    made.append("first", {4, 5});
    made.append("frozen", {3});
    made.append("second", {7});
    return made;
  }
  static OneByteOptions defaults() {
    OneByteOptions options;
    options.samples_per_round = 6, options.round_timeout_s = 2, options.hash_every = 5;
    return options;
  }
  explicit Bowl(const OneByteOptions& options = defaults(), at::ScalarType type = at::kFloat)
      : layout(make_layout()),
        flat(at::ones({layout.elements}).to(type)),
        weights(layout, flat),
        replica(options, kRun, {weights, {"first", "frozen", "second"}, {true, false, true}}) {}

  double loss() const { return loss_at(weights, {}); }
  static double loss_at(const model::Weights& at, const BatchKey& batch) {
    const double aim = 0.2 + 0.01 * static_cast<double>((batch.iteration * 7 + batch.device * 3 + batch.part) % 5);
    double sum = 0;
    for (const int32_t i : {0, 1, 2}) sum += (at.get({i, 1}).to(at::kDouble) - aim).square().sum().item<double>();
    return sum;
  }
};

// A machine on a rank, with its mailbox.
struct Machine {
  Bowl bowl;
  comm::Mailbox mailbox;
  OneByte member;
  explicit Machine(comm::World& world, const OneByteOptions& options = Bowl::defaults(), std::filesystem::path log = {})
      : bowl(options),
        mailbox(world),
        member({.world = world,
                .mailbox = mailbox,
                .replica = bowl.replica,
                .machine = static_cast<uint32_t>(world.rank()),
                .loss = Bowl::loss_at,
                .rate = [](uint32_t) { return 0.05f; },
                .load_base = [this] { bowl.flat.fill_(1); },
                .log = std::move(log)}) {}
};

// What the ranks end with.
class Hashes {
 public:
  void add(int rank, uint64_t hash) {
    const std::lock_guard lock(mutex_);
    all_[rank] = hash;
  }
  size_t count() const { return all_.size(); }
  bool identical() const {
    return std::all_of(all_.begin(), all_.end(), [&](const auto& one) { return one.second == all_.begin()->second; });
  }

 private:
  std::mutex mutex_;
  std::map<int, uint64_t> all_;
};

std::vector<uint32_t> first_machines(uint32_t count) {
  std::vector<uint32_t> machines;
  for (uint32_t i = 0; i < count; ++i) machines.push_back(i);
  return machines;
}

TEST(OneByteReplica, MeasuresWithoutTouchingTheWeights) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Bowl bowl(Bowl::defaults(), type);
    const uint64_t before = bowl.replica.hash();
    for (int64_t k = 0; k < 50; ++k) bowl.replica.measure(Bowl::loss_at, 0, 1, k);
    EXPECT_EQ(bowl.replica.hash(), before);
  }
}

TEST(OneByteReplica, ASlopeIsTheGradientAlongItsDirection) {
  const Bowl bowl;
  const Slope slope = bowl.replica.measure(Bowl::loss_at, 3, 1, 2);
  double expected = 0;
  for (const int64_t parameter : {0, 2}) {
    const at::Tensor weight = bowl.weights.get({static_cast<int32_t>(parameter), 1});
    const double aim = 0.2 + 0.01 * ((3 * 7 + 3 + 2) % 5);
    std::vector<float> z(static_cast<size_t>(weight.numel()));
    kernels::fill_direction(z, bowl.replica.direction(3, 1, 2, parameter), 0, kernels::Noise::normal);
    for (const float one : z) expected += 2 * (1 - aim) * one;
  }
  EXPECT_NEAR(slope.slope, expected, 1e-2 * std::abs(expected) + 1e-2);
}

TEST(OneByteReplica, ItsFingerprintTellsWhatWouldDrawOtherwise) {
  const uint64_t usual = Bowl().replica.fingerprint();
  EXPECT_EQ(Bowl().replica.fingerprint(), usual);
  OneByteOptions other = Bowl::defaults();
  other.noise = kernels::Noise::rademacher;
  EXPECT_NE(Bowl(other).replica.fingerprint(), usual);
  other = Bowl::defaults(), other.code = SlopeCode::sign;
  EXPECT_NE(Bowl(other).replica.fingerprint(), usual);
}

TEST(OneByte, AllMachinesStayBitwiseIdenticalAndTheLossFalls) {
  for (const kernels::Noise noise : {kernels::Noise::normal, kernels::Noise::rademacher}) {
    Hashes hashes;
    harness::on_ranks(4, [&](comm::World& world) {
      OneByteOptions options = Bowl::defaults();
      options.noise = noise, options.weight_decay = 0.01;
      Machine machine(world, options);
      const double before = machine.bowl.loss();
      machine.member.start(first_machines(4));
      for (int i = 0; i < 40; ++i) {
        const RoundFacts facts = machine.member.round();
        EXPECT_EQ(facts.machines, 4);
        EXPECT_EQ(facts.samples, 24);
        EXPECT_FALSE(facts.repaired);
      }
      EXPECT_LT(machine.bowl.loss(), 0.5 * before);
      hashes.add(world.rank(), machine.bowl.replica.hash());
    });
    EXPECT_TRUE(hashes.identical() && hashes.count() == 4);
  }
}

TEST(OneByte, SendsEachPeerTwentySixBytesAndOneForEachSlope) {
  const harness::Run run = harness::on_ranks(3, [&](comm::World& world) {
    Machine machine(world);
    machine.member.start(first_machines(3));
    for (int i = 0; i < 7; ++i) machine.member.round();
  });
  EXPECT_EQ(run.ledger.bytes_sent(1, comm::Purpose::gradient), 7 * 2 * (26 + 6));
}

TEST(OneByte, ReplayingItsLogIsBitwiseIdentical) {
  const harness::ScratchFolder folder;
  uint64_t hash = 0;
  harness::on_ranks(2, [&](comm::World& world) {
    Machine machine(world, Bowl::defaults(), world.rank() == 0 ? folder / "rounds" : std::filesystem::path());
    machine.member.start(first_machines(2));
    for (int i = 0; i < 11; ++i) machine.member.round();
    if (world.rank() == 0) hash = machine.bowl.replica.hash();
  });
  const std::string text = folder.text_of("rounds");
  Bowl bowl;
  for (const RoundRecord& record : decode_log(std::as_bytes(std::span(text)), SlopeCode::log8)) bowl.replica.apply(record);
  EXPECT_EQ(bowl.replica.hash(), hash);
}

// Messages that come too late, a leader or another that dies, messages that never arrive: the others stay identical.
void expect_survivors_agree(const harness::Faults& faults, int machines, std::vector<int> dead) {
  Hashes hashes;
  const harness::Run run = harness::on_ranks(machines, faults, [&](comm::World& world) {
    Machine machine(world);
    machine.member.start(first_machines(static_cast<uint32_t>(machines)));
    while (machine.member.next_round() < 30) {
      machine.member.round();
      world.timer(world.clock().now() + 10ms).wait();  // measuring takes time
    }
    EXPECT_EQ(machine.member.members().size(), static_cast<size_t>(machines) - dead.size());
    hashes.add(world.rank(), machine.bowl.replica.hash());
  });
  EXPECT_EQ(run.faults_fired, static_cast<int>(faults.all().size()));
  for (const auto& [rank, error] : run.errors)
    EXPECT_NE(std::find(dead.begin(), dead.end(), rank), dead.end()) << rank << ": " << error.what();
  EXPECT_TRUE(hashes.identical());
  EXPECT_EQ(hashes.count(), static_cast<size_t>(machines) - dead.size());
}

TEST(OneByte, GoesOnWithoutAMachineThatDied) { expect_survivors_agree(harness::Faults().lose({.rank = 2, .at = 105ms}), 4, {2}); }
TEST(OneByte, GoesOnWithoutItsLeader) { expect_survivors_agree(harness::Faults().lose({.rank = 0, .at = 105ms}), 4, {0}); }
TEST(OneByte, GoesOnWithoutTwoLeaders) {
  expect_survivors_agree(harness::Faults().lose({.rank = 0, .at = 105ms}).lose({.rank = 1, .at = 110ms}), 5, {0, 1});
}

TEST(OneByte, AMessageThatIsLateDoesNotCount) {
  Hashes hashes;
  std::mutex mutex;
  int late = 0;
  const auto faults = harness::Faults().delay({.from = 2, .to = 0, .at = 100ms, .by = 2500ms});
  const harness::Run run = harness::on_ranks(3, faults, [&](comm::World& world) {
    Machine machine(world);
    machine.member.start(first_machines(3));
    while (machine.member.next_round() < 20) {
      const RoundFacts facts = machine.member.round();
      if (!facts.included) {
        const std::lock_guard lock(mutex);
        ++late;
        EXPECT_EQ(world.rank(), 2);
      }
      world.timer(world.clock().now() + 10ms).wait();
    }
    hashes.add(world.rank(), machine.bowl.replica.hash());
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_GE(late, 1);
  EXPECT_TRUE(hashes.identical() && hashes.count() == 3);
}

TEST(OneByte, WhoMissesAMessageThatCountsAsksForIt) {
  Hashes hashes;
  const auto faults = harness::Faults().delay({.from = 2, .to = 1, .at = 100ms, .by = 1500ms});
  const harness::Run run = harness::on_ranks(3, faults, [&](comm::World& world) {
    Machine machine(world);
    machine.member.start(first_machines(3));
    while (machine.member.next_round() < 20) {
      EXPECT_TRUE(machine.member.round().included);
      world.timer(world.clock().now() + 10ms).wait();
    }
    hashes.add(world.rank(), machine.bowl.replica.hash());
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_GT(run.ledger.total(comm::Purpose::data).bytes, 0);  // it was sent again
  EXPECT_TRUE(hashes.identical() && hashes.count() == 3);
}

TEST(OneByte, ANewcomerReplaysTheRunBitwiseIdentically) {
  Hashes hashes;
  harness::on_ranks(3, [&](comm::World& world) {
    Machine machine(world);
    if (world.rank() == 2) {
      world.timer(world.clock().now() + 95ms).wait();
      machine.member.join(60s);
      EXPECT_GT(machine.member.next_round(), 3u);
    } else {
      machine.member.start(first_machines(2));
    }
    int64_t machines = 0;
    while (machine.member.next_round() < 30) {
      machines = machine.member.round().machines;
      world.timer(world.clock().now() + 10ms).wait();
    }
    EXPECT_EQ(machines, 3);
    hashes.add(world.rank(), machine.bowl.replica.hash());
  });
  EXPECT_TRUE(hashes.identical() && hashes.count() == 3);
}

TEST(OneByte, ANewcomerWithOtherWeightsOrOtherNoiseIsRefused) {
  for (const bool weights : {true, false})
    harness::on_ranks(2, [&](comm::World& world) {
      OneByteOptions options = Bowl::defaults();
      if (world.rank() == 1 && !weights) options.noise = kernels::Noise::rademacher;
      Bowl bowl(options);
      if (world.rank() == 1 && weights) bowl.flat.fill_(2);
      comm::Mailbox mailbox(world);
      OneByte member({.world = world,
                      .mailbox = mailbox,
                      .replica = bowl.replica,
                      .machine = static_cast<uint32_t>(world.rank()),
                      .loss = Bowl::loss_at,
                      .rate = [](uint32_t) { return 0.05f; },
                      .load_base = [] {}});
      if (world.rank() == 0) {
        member.start({0});
        for (int i = 0; i < 10; ++i) {
          member.round();
          world.timer(world.clock().now() + 1s).wait();
        }
      } else {
        try {
          member.join(60s);
          ADD_FAILURE();
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), Error::Kind::bad_input);
          EXPECT_NE(std::string(error.what()).find(weights ? "begins with other weights" : "draws other directions"), std::string::npos)
              << error.what();
        }
      }
    });
}

TEST(OneByte, WeightsThatDifferAreNamedAndBuiltAgain) {
  Hashes hashes;
  int repaired = 0;
  harness::on_ranks(3, [&](comm::World& world) {
    Machine machine(world);
    machine.member.start(first_machines(3));
    for (int i = 0; i < 12; ++i) {
      if (world.rank() == 1 && i == 3) machine.bowl.flat[25] += 1e-6;  // in "second"
      const RoundFacts facts = machine.member.round();
      EXPECT_EQ(facts.repaired, world.rank() == 1 && i == 4);
      if (!facts.repaired) continue;
      ++repaired;
      EXPECT_EQ(facts.differed, "second");
    }
    hashes.add(world.rank(), machine.bowl.replica.hash());
  });
  EXPECT_EQ(repaired, 1);
  EXPECT_TRUE(hashes.identical() && hashes.count() == 3);
}

TEST(OneByte, AMachineThatMissesThreeRoundsIsOutAndMayComeBack) {
  Hashes hashes;
  int out = 0;
  harness::on_ranks(3, [&](comm::World& world) {
    Machine machine(world);
    machine.member.start(first_machines(3));
    for (int i = 0; machine.member.next_round() < 60; ++i) {
      // Too slow for some rounds: the others wait two seconds for each.
      world.timer(world.clock().now() + (world.rank() == 2 && i == 5 ? 9000ms : 100ms)).wait();
      if (machine.member.round().out) ++out, machine.member.join(60s);
    }
    hashes.add(world.rank(), machine.bowl.replica.hash());
  });
  EXPECT_EQ(out, 1);
  EXPECT_TRUE(hashes.identical() && hashes.count() == 3);
}

TEST(OneByte, AMachineWithoutDataTakesPart) {
  Hashes hashes;
  harness::on_ranks(2, [&](comm::World& world) {
    Bowl bowl;
    comm::Mailbox mailbox(world);
    OneByte member({.world = world,
                    .mailbox = mailbox,
                    .replica = bowl.replica,
                    .machine = static_cast<uint32_t>(world.rank()),
                    .loss = Bowl::loss_at,
                    .rate = [](uint32_t) { return 0.05f; },
                    .load_base = [] {},
                    .has_data = world.rank() == 0});
    member.start({0, 1});
    for (int i = 0; i < 5; ++i) EXPECT_EQ(member.round().samples, 6);
    hashes.add(world.rank(), bowl.replica.hash());
  });
  EXPECT_TRUE(hashes.identical() && hashes.count() == 2);
}

TEST(OneByte, RefusesWhatCannotWork) {
  const auto message = [](const OneByteOptions& options) -> std::string {
    try {
      check(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  OneByteOptions none = Bowl::defaults(), flat = none, rounded = none;
  none.samples_per_round = 0, flat.eps = 0, rounded.code = SlopeCode::sign, rounded.unbiased = true;
  EXPECT_EQ(message(Bowl::defaults()), "");
  EXPECT_NE(message(none).find("samples_per_round = 0"), std::string::npos);
  EXPECT_NE(message(flat).find("eps = 0"), std::string::npos);
  EXPECT_NE(message(rounded).find("only log8 is rounded"), std::string::npos);
}

}  // namespace
}  // namespace cairn::sync
