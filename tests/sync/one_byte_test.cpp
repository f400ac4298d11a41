#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "mesh/flat_layout.h"
#include "model/model.h"
#include "parallel/layout/model_shard.h"
#include "sync/one_byte/replica.h"
#include "sync/one_byte/round_log.h"

namespace cairn::sync {
namespace {

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
    options.samples_per_round = 6, options.hash_every = 5;
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

// The rounds of `machines` machines that hold the same weights, as records.
std::vector<RoundRecord> rounds_of(Bowl& bowl, uint32_t machines, uint32_t rounds) {
  std::vector<RoundRecord> records;
  for (uint32_t round = 0; round < rounds; ++round) {
    RoundRecord record{{.round = round, .rate = 0.05f, .keep = 0.999f}};
    for (uint32_t machine = 0; machine < machines; ++machine) {
      std::vector<float> slopes;
      for (int64_t k = 0; k < bowl.replica.options().samples_per_round; ++k)
        slopes.push_back(bowl.replica.measure(Bowl::loss_at, round, machine, k).slope);
      record.messages.push_back({.run = kRun,
                                 .round = round,
                                 .machine = machine,
                                 .slopes = static_cast<uint16_t>(slopes.size()),
                                 .codes = encode_slopes(SlopeCode::log8, slopes).bytes});
    }
    accept_messages(record);
    bowl.replica.apply(record);
    records.push_back(record);
  }
  return records;
}

TEST(OneByteReplica, RoundsLowerTheLoss) {
  for (const kernels::Noise noise : {kernels::Noise::normal, kernels::Noise::rademacher}) {
    OneByteOptions options = Bowl::defaults();
    options.noise = noise;
    Bowl bowl(options);
    const double before = bowl.loss();
    rounds_of(bowl, 4, 40);
    EXPECT_LT(bowl.loss(), 0.5 * before);
  }
}

// Rows, columns, several intervals of rows as fused layers have them, and slices of such shards (ZeRO).
TEST(OneByteReplica, AShardMovesAsItsPartOfTheWholeTensor) {
  const std::vector<int64_t> shape{7, 10};
  const base::Random random = base::Random(3).for_name("w");
  const std::vector<kernels::Direction> directions{{random, 0.3f}, {random.for_index(1), -2.0f}};
  const std::vector<mesh::LocalShard> shards{{{{{0, 7}}, {{0, 10}}}},
                                             {{{{2, 5}}, {{0, 10}}}},
                                             {{{{0, 2}, {4, 7}}, {{0, 10}}}},
                                             {{{{0, 7}}, {{5, 10}}}},
                                             {{{{1, 3}, {5, 7}}, {{0, 3}, {6, 10}}}}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const kernels::Noise noise : {kernels::Noise::normal, kernels::Noise::rademacher})
      for (const mesh::LocalShard& shard : shards) {
        const at::Tensor whole = at::arange(70).to(at::kFloat).mul(0.013f).to(type);
        const at::Tensor perturbed = at::empty_like(whole), replayed = whole.clone();
        kernels::perturb(perturbed, whole, directions[0], 0, noise);
        kernels::replay(replayed, directions, 0, 0.1f, 0.99f, noise);
        const auto local = [&](const at::Tensor& of) { return parallel::cut_out(of.view(shape), shard).reshape({-1}).contiguous(); };
        const int64_t count = local(whole).numel();
        for (const int64_t begin : {int64_t{0}, int64_t{3}, count / 2}) {
          const at::Tensor from = local(whole).narrow(0, begin, count - begin).clone(), to = at::empty_like(from);
          perturb_shard(to, from, {shape, shard}, begin, directions[0], noise);
          EXPECT_TRUE(at::equal(to, local(perturbed).narrow(0, begin, count - begin)));
          replay_shard(from, {shape, shard}, begin, directions, 0.1f, 0.99f, noise);
          EXPECT_TRUE(at::equal(from, local(replayed).narrow(0, begin, count - begin)));
        }
      }
}

RoundLogHeader header_of(const OneByteReplica& replica) {
  return {.run = kRun, .base = 5, .fingerprint = replica.fingerprint(), .trained = {"first", "second"}};
}

TEST(RoundLog, ReplayingItIsBitwiseIdentical) {
  const harness::ScratchFolder folder;
  Bowl bowl, again;
  RoundLog log(folder / "rounds", header_of(bowl.replica));
  for (const RoundRecord& record : rounds_of(bowl, 2, 11)) log.append(record);
  const std::optional<RoundLog> opened = RoundLog::open(folder / "rounds");
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->header(), header_of(bowl.replica));
  EXPECT_EQ(opened->next(), 11u);
  EXPECT_NE(again.replica.hash(), bowl.replica.hash());
  for (const RoundRecord& record : decode_records(opened->records(), SlopeCode::log8)) again.replica.apply(record);
  EXPECT_EQ(again.replica.hash(), bowl.replica.hash());
}

// A crash may cut the file at any byte. What is left are whole rounds, and the next append replaces the rest.
TEST(RoundLog, ARecordThatWasCutOffIsLeftOut) {
  const harness::ScratchFolder folder;
  Bowl bowl;
  const std::vector<RoundRecord> records = rounds_of(bowl, 2, 3);
  {
    RoundLog log(folder / "rounds", header_of(bowl.replica));
    for (const RoundRecord& record : records) log.append(record);
  }
  const std::string text = folder.text_of("rounds");
  const size_t last = encode_record(records[2]).size();
  for (size_t cut = 1; cut <= last; cut += 6) {
    base::write_atomically(folder / "cut", std::string_view(text).substr(0, text.size() - cut));
    std::optional<RoundLog> log = RoundLog::open(folder / "cut");
    ASSERT_TRUE(log);
    ASSERT_EQ(log->next(), 2u) << cut;
    EXPECT_EQ(log->torn_bytes(), static_cast<int64_t>(last - cut));
    if (cut % 5 != 0) continue;
    log->append(records[2]);
    EXPECT_EQ(folder.text_of("cut"), text);
  }
  std::string damaged = text;
  damaged[text.size() - last / 2] ^= 1;
  base::write_atomically(folder / "cut", damaged);
  EXPECT_EQ(RoundLog::open(folder / "cut")->next(), 2u);
}

TEST(RoundLog, AnEarlierRoundReplacesTheLaterOnes) {
  const harness::ScratchFolder folder;
  Bowl bowl;
  const std::vector<RoundRecord> records = rounds_of(bowl, 1, 4);
  RoundLog log(folder / "rounds", header_of(bowl.replica));
  for (const RoundRecord& record : records) log.append(record);
  RoundRecord other = records[1];
  other.manifest.rate = 7;
  log.append(other);
  const auto kept = decode_records(RoundLog::open(folder / "rounds")->records(), SlopeCode::log8);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1].manifest.rate, 7);
}

TEST(RoundLog, ADiskThatFailsIsReportedAndLeavesWholeRounds) {
  const harness::ScratchFolder folder;
  Bowl bowl;
  const std::vector<RoundRecord> records = rounds_of(bowl, 1, 3);
  base::FaultyDisk disk({});
  RoundLog log(folder / "rounds", header_of(bowl.replica), disk);
  log.append(records[0]);
  disk.fill_up();
  try {
    log.append(records[1]);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::disk);
  }
  disk.recover();
  log.append(records[1]);
  EXPECT_EQ(RoundLog::open(folder / "rounds")->next(), 2u);
}

TEST(RoundLog, AFileThatIsNoLogIsRefused) {
  const harness::ScratchFolder folder;
  EXPECT_FALSE(RoundLog::open(folder / "none"));
  base::write_atomically(folder / "other", "nothing of the kind");
  try {
    RoundLog::open(folder / "other");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_NE(std::string(error.what()).find("is no log of rounds"), std::string::npos) << error.what();
  }
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
