// Compressors that drop values: what travels, what stays as a residual, and how well training goes.
#include "sync/islands/compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/recipe.h"
#include "comm/sparsify.h"
#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

using Bytes = std::vector<std::byte>;

constexpr double kKeep = 0.1;  // two of the toy's 21 values travel
constexpr uint64_t kSeed = 3;  // of the toy's run

SyncOptions sparse_diloco(const std::string& wire, double lr, double momentum) {
  SyncOptions options{.kind = "diloco"};
  options.exchange.wire = wire;
  options.exchange.keep = kKeep;
  options.outer = {.every = 4, .outer_lr = lr, .outer_momentum = momentum, .outer_warmup = 0, .error_feedback = true};
  return options;
}

// What a compressor keeps of a tensor, written down independently.
at::Tensor left_of(const std::string& wire, const at::Tensor& row, int64_t step, double keep = kKeep) {
  const int64_t count = row.numel(), kept = std::max<int64_t>(1, std::llround(keep * static_cast<double>(count)));
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (wire == "topk") {
    const float* values = row.const_data_ptr<float>();
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  } else {
    order = comm::random_indices(base::Random(kSeed)
                                     .for_purpose("places that travel between islands")
                                     .for_index(static_cast<uint64_t>(step))
                                     .for_index(0)
                                     .for_index(0),
                                 count, kept);
  }
  at::Tensor left = at::zeros_like(row);
  for (int64_t i = 0; i < kept; ++i) left[order[static_cast<size_t>(i)]] = row[order[static_cast<size_t>(i)]];
  return left;
}

void put_flat(ToyModel& model, const at::Tensor& flat) {
  int64_t at = 0;
  for (const mesh::NamedTensor& one : model.parameters) {
    one.tensor.copy_(flat.narrow(0, at, one.tensor.numel()));
    at += one.tensor.numel();
  }
}

// DiLoCo with a sparse wire on one process. Islands keep a residual; at the end all of it is applied.
at::Tensor residual_by_hand(const std::string& wire, int islands, int64_t steps, double lr, double momentum) {
  std::vector<ToyModel> models(static_cast<size_t>(islands));
  at::Tensor anchor = models[0].flat(), velocity = at::zeros_like(anchor);
  std::vector<at::Tensor> residual(static_cast<size_t>(islands));
  const auto outer = [&](const at::Tensor& mean) {
    velocity = momentum * velocity + mean;
    anchor = anchor - lr * (mean + momentum * velocity);
  };
  for (int64_t step = 1; step <= steps; ++step) {
    for (int k = 0; k < islands; ++k) models[static_cast<size_t>(k)].step(k, step);
    if (step % 4 != 0) continue;
    at::Tensor mean = at::zeros_like(anchor);
    for (size_t k = 0; k < models.size(); ++k) {
      const at::Tensor message = anchor - models[k].flat(), sent = left_of(wire, message, step);
      residual[k] = message - sent;
      mean += sent / islands;
    }
    outer(mean);
    for (size_t k = 0; k < models.size(); ++k) put_flat(models[k], anchor - residual[k]);
  }
  at::Tensor rest = at::zeros_like(anchor);
  for (const at::Tensor& one : residual) rest += one / islands;
  outer(rest);
  return anchor;
}

TEST(SparseCompressor, FollowsItsRecurrences) {
  for (const auto& [wire, islands] : std::vector<std::pair<std::string, int>>{{"topk", 1}, {"topk", 2}, {"topk", 5}, {"randk", 2}}) {
    const at::Tensor expected = residual_by_hand(wire, islands, 24, 0.3, 0.5);
    for (const ToyEnd& end : train_toys(islands, {.options = sparse_diloco(wire, 0.3, 0.5), .steps = 24, .finish = true})) {
      EXPECT_LT(furthest(end.global_model, expected), 1e-5) << wire << " " << islands;
      EXPECT_TRUE(at::equal(end.own, end.global_model));
    }
  }
}

TEST(SparseCompressor, HasOneModelOnAllIslandsHoweverManyThereAre) {
  for (const char* wire : {"topk", "randk"})
    for (const int islands : {2, 3, 7, 11}) {
      const auto found = train_toys(islands, {.options = sparse_diloco(wire, 0.3, 0.5), .steps = 26, .finish = true});
      for (const ToyEnd& end : found) EXPECT_TRUE(at::equal(end.global_model, found[0].global_model)) << wire << " " << islands;
    }
}

TEST(SparseCompressor, SendsAsManyNumbersAsItSays) {
  // Three islands send each other a header of 48 bytes, weight and note (16), a count, two indices of one byte each, two floats.
  const auto bytes = [](const std::string& wire, int islands) {
    const harness::Run run =
        harness::on_ranks(islands, [&](comm::World& world) { train_toy(world, {.options = sparse_diloco(wire, 0.3, 0.5), .steps = 24}); });
    return run.ledger.bytes_sent(0, comm::Purpose::gradient);
  };
  EXPECT_EQ(bytes("topk", 3), 6 * 2 * (48 + 16 + 1 + 2 * (1 + 4)));
  EXPECT_EQ(bytes("randk", 2), 6 * 1 * (48 + 16 + 2 * 4));
  // Seven islands own a chunk each: three values, of which one travels; the merged chunk comes back as long.
  EXPECT_EQ(bytes("randk", 7), 6 * 6 * 2 * (48 + 16 + 4));
}

// How far the model is from where the islands are drawn on average, as the mean over the last rounds.
double far_off(const SyncOptions& options) {
  double sum = 0;
  ToyRun run{.options = options, .steps = 2000};
  run.after = [&](comm::World& world, Sync& rule, ToyModel&, int64_t step) {
    if (world.rank() == 0 && step > 1000 && step % 4 == 0) sum += flat(rule.global_parameters()).norm().item<double>() / 250;
  };
  train_toys(2, run);
  return sum;
}

TEST(SparseCompressor, ComesAsFarAsAllNumbersDo) {
  SyncOptions whole = sparse_diloco("fp32", 0.2, 0);
  whole.outer.error_feedback = false;
  const double start = ToyModel().flat().norm().item<double>(), exact = far_off(whole);
  for (const char* wire : {"topk", "randk"}) {
    EXPECT_LT(far_off(sparse_diloco(wire, 0.2, 0)), exact + start / 20) << wire << ", start " << start << ", all numbers " << exact;
  }
  EXPECT_LT(exact, start / 3);
}

TEST(SparseCompressor, GoesOnWithoutAnIslandThatDies) {
  for (const char* wire : {"topk", "randk"}) {
    ToyRun run{.options = sparse_diloco(wire, 0.3, 0.5), .steps = 40, .finish = true};
    run.after = [&](comm::World& world, Sync&, ToyModel&, int64_t step) {
      if (world.rank() == 2 && step == 14) throw comm::Killed();
    };
    std::vector<ToyEnd> ends(4);
    comm::LocalNetwork network(4, {.seed = 9, .link = {.latency = std::chrono::milliseconds(2)}});
    const auto errors = network.run([&](comm::World& world) { ends[static_cast<size_t>(world.rank())] = train_toy(world, run); });
    for (const int k : {0, 1, 3}) {
      EXPECT_EQ(errors[static_cast<size_t>(k)], nullptr) << k;
      EXPECT_TRUE(at::equal(ends[static_cast<size_t>(k)].global_model, ends[0].global_model)) << k;
    }
  }
}

TEST(SparseCompressor, LeavesAnIslandOutThatHasDiverged) {
  for (const char* wire : {"topk", "randk"}) {
    ToyRun run{.options = sparse_diloco(wire, 0.3, 0.5), .steps = 40, .finish = true};
    run.after = [&](comm::World& world, Sync&, ToyModel& model, int64_t step) {
      if (world.rank() == 1 && step == 15) model.parameters[3].tensor[6].fill_(std::nanf(""));
    };
    for (const ToyEnd& end : train_toys(3, run)) EXPECT_TRUE(std::isfinite(end.own.norm().item<double>())) << wire;
  }
}

TEST(SparseCompressor, FollowsItsRecurrencesOneRoundLateToo) {
  SyncOptions options{.kind = "co2"};
  options.exchange.wire = "topk";
  options.exchange.keep = kKeep;
  options.co2 = {.every = 4, .outer_lr = 1, .outer_momentum = 0.5, .gap = StalenessGap::off, .clip = 0};
  std::vector<ToyModel> models(2);
  at::Tensor start = models[0].flat(), momentum = at::zeros_like(start), late;
  std::vector<at::Tensor> residual(2);
  const auto outer = [&](const at::Tensor& mean) {
    momentum = 0.5 * momentum - mean;
    start = start - momentum;
  };
  for (int64_t round = 0; round < 6; ++round) {
    for (int k = 0; k < 2; ++k)
      for (int64_t i = 1; i <= 4; ++i) models[static_cast<size_t>(k)].step(k, round * 4 + i);
    at::Tensor mean = at::zeros_like(start);
    for (size_t k = 0; k < 2; ++k) {
      const at::Tensor message = models[k].flat() - start, sent = left_of("topk", message, 0);
      residual[k] = message - sent;
      mean += sent / 2;
    }
    if (late.defined()) outer(late);
    late = mean;
    for (size_t k = 0; k < 2; ++k) put_flat(models[k], start + residual[k]);
  }
  outer(late);
  outer((residual[0] + residual[1]) / 2);
  for (const ToyEnd& end : train_toys(2, {.options = options, .steps = 24, .finish = true})) EXPECT_LT(furthest(end.own, start), 1e-5);
}

// Whether a compressor accepts these bytes. Guard values on both sides show that it writes nowhere else.
bool accepts(const Compressor& compressor, const Bytes& bytes, size_t count) {
  std::vector<float> room(count + 16, 77.0F);
  const bool taken = compressor.decode({.step = 4}, bytes, std::span(room).subspan(8, count));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(std::pair(room[i], room[count + 8 + i]), std::pair(77.0F, 77.0F));
  return taken;
}

TEST(SparseCompressor, RefusesWhatNobodyCanHaveWritten) {
  const size_t count = 300;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i));
  for (const char* name : {"topk", "randk", "bf16", "int8"}) {
    const auto compressor = make_compressor({name, 0.02, 1});
    const Bytes good = compressor->encode({.step = 4}, values);
    EXPECT_TRUE(accepts(*compressor, good, count)) << name;
    for (size_t shorter = 0; shorter < good.size(); ++shorter)
      EXPECT_FALSE(accepts(*compressor, Bytes(good.begin(), good.begin() + static_cast<int64_t>(shorter)), count))
          << name << " " << shorter;
    Bytes longer = good;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(accepts(*compressor, longer, count)) << name;
  }
  const auto compressor = make_compressor({"topk", 0.02, 1});
  const std::vector<float> six(6, 1.0F);
  const auto lie = [&](const std::vector<int64_t>& places) { return comm::encode_sparse(places, std::span(six).first(places.size())); };
  EXPECT_TRUE(accepts(*compressor, lie({0, 1, 2, 3, 4, 299}), count));
  EXPECT_FALSE(accepts(*compressor, lie({0, 1, 2, 3, 4, 300}), count));               // beyond the end
  EXPECT_FALSE(accepts(*compressor, lie({0, 1, 2, 3, 4, int64_t{1} << 40}), count));  // far beyond
  EXPECT_FALSE(accepts(*compressor, lie({0, 1, 2, 3, 4}), count));                    // one too few
  Bytes forged = lie({0, 1, 2, 3, 4, 5});
  for (size_t i = 0; i < 64; ++i) {  // arbitrary first bytes: nothing is written outside, and nothing is thrown
    forged[i % forged.size()] = static_cast<std::byte>(i * 41 + 200);
    accepts(*compressor, forged, count);
  }
}

TEST(SparseCompressor, SaysSoWhereAnyNumberIsNotFinite) {
  for (const char* name : {"topk", "randk"})
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> values(50, 1.0F), back(50);
      values[33] = bad;
      const auto compressor = make_compressor({name, 0.05, 1});
      ASSERT_TRUE(compressor->decode({}, compressor->encode({}, values), back));
      EXPECT_TRUE(std::any_of(back.begin(), back.end(), [](float x) { return std::isnan(x); })) << name;
    }
}

TEST(SparseCompressor, DrawsOtherPlacesForOtherRuns) {
  const auto compressor = make_compressor({"randk", 0.05, 1});
  const std::vector<float> ones(400, 1.0F);
  const auto places = [&](const Compressor& by, const Compressor::Slice& run) {
    std::vector<float> back(ones.size());
    EXPECT_TRUE(by.decode(run, by.encode(run, ones), back));
    EXPECT_EQ(std::count(back.begin(), back.end(), 1.0F), 20);
    return back;
  };
  const auto first = places(*compressor, {4, 0, 0});
  EXPECT_EQ(first, places(*make_compressor({"randk", 0.05, 1}), {4, 0, 0}));
  EXPECT_NE(first, places(*compressor, {8, 0, 0}));
  EXPECT_NE(first, places(*compressor, {4, 1, 0}));
  EXPECT_NE(first, places(*compressor, {4, 0, 400}));
  EXPECT_NE(first, places(*make_compressor({"randk", 0.05, 2}), {4, 0, 0}));
}

std::string refusal_of_keys(const std::string& keys) {
  base::Recipe recipe = base::Recipe::parse("[sync.island]\n" + keys, "x.toml");
  try {
    read_island_sync(recipe);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
}

TEST(SparseCompressor, IsRefusedWhereItMakesNoSense) {
  EXPECT_EQ(refusal_of_keys("kind = 'diloco'\nwire = 'topk'\nkeep = 0.01"), "");
  EXPECT_EQ(refusal_of_keys("kind = 'co2'\nwire = 'randk'"), "");
  EXPECT_EQ(refusal_of_keys("kind = 'diloco'\nwire = 'randk'\nmerge = 'median'"), "");
  EXPECT_EQ(refusal_of_keys("kind = 'gossip'\nwire = 'topk'"),
            "sync.island.wire = topk: gossip sends models, of which nothing can be left out: use bf16, or another kind");
  EXPECT_EQ(refusal_of_keys("kind = 'noloco'\nwire = 'randk'"),
            "sync.island.wire = randk: noloco's other half, the slow weights, travels whole, so little would be saved: use bf16, or "
            "another kind");
  EXPECT_EQ(refusal_of_keys("kind = 'diloco'\nkeep = 0.1"),
            "sync.island.keep: is for wire = topk or randk, and wire is fp32: leave the key out or change the wire");
  EXPECT_EQ(refusal_of_keys("kind = 'diloco'\nwire = 'topk'\nmerge = 'median'"),
            "sync.island.merge = median: with wire = topk most islands leave a number out, and its median would be nothing: use mean or "
            "clip, or wire = randk");
  EXPECT_NE(refusal_of_keys("kind = 'diloco'\nwire = 'topk'\nkeep = 0").find("sync.island.keep = 0"), std::string::npos);
}

TEST(SparseCompressor, KeepsAResidualByDefault) {
  const auto keeps_residual = [](const std::string& keys) {
    base::Recipe recipe = base::Recipe::parse("[sync.island]\nkind = 'diloco'\n" + keys, "x.toml");
    const bool residual = read_island_sync(recipe).outer.error_feedback;
    base::Recipe again = base::Recipe::parse(recipe.resolved_toml(), "resolved.toml");
    EXPECT_EQ(read_island_sync(again).outer.error_feedback, residual) << keys;
    return residual;
  };
  EXPECT_TRUE(keeps_residual("wire = 'topk'"));
  EXPECT_TRUE(keeps_residual("wire = 'randk'"));
  EXPECT_FALSE(keeps_residual("wire = 'topk'\nerror_feedback = false"));
  EXPECT_FALSE(keeps_residual("wire = 'bf16'"));
  EXPECT_TRUE(keeps_residual("wire = 'bf16'\nerror_feedback = true"));
}

}  // namespace
}  // namespace cairn::sync
