#include "sync/masha/masha.h"

#include <cmath>
#include <limits>
#include <mutex>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"

namespace cairn::sync {
namespace {

constexpr int64_t kSide = 6;

at::Tensor normals(uint64_t seed, std::string_view what, std::vector<int64_t> shape) {
  at::Tensor x = at::empty(shape);
  kernels::fill_normal(x.view({-1}), base::Random(seed).for_name(what), 0, 1);
  return x;
}

// x'A y + a'x + b'y + l|x|^2/2 - l|y|^2/2, other A, a and b on each device; with noise, another a for each batch.
class Bilinear final : public VariationalProblem {
 public:
  Bilinear(int64_t device, double noise = 0) : noise_(noise) {
    const auto seed = static_cast<uint64_t>(device);
    a_matrix_ = (normals(99, "A", {kSide, kSide}) + normals(seed, "E", {kSide, kSide}) * 0.3) / std::sqrt(double(kSide));
    a_ = normals(seed, "a", {kSide}), b_ = normals(seed, "b", {kSide});
  }
  int64_t elements() const override { return 2 * kSide; }
  std::vector<Player> players() const override { return {{"x", 0, kSide}, {"y", kSide, 2 * kSide, true, scale}}; }
  bool stochastic() const override { return noise_ > 0; }
  void gradients(const at::Tensor& point, const BatchKey& batch, const at::Tensor& into) override {
    asked.push_back(batch);
    const at::Tensor x = point.slice(0, 0, kSide), y = point.slice(0, kSide);
    at::Tensor a = a_;
    if (noise_ > 0)
      a = a + normals(static_cast<uint64_t>(batch.iteration * 1000 + batch.device * 10 + batch.part), "noise", {kSide}) * noise_;
    into.slice(0, 0, kSide).copy_(at::matmul(a_matrix_, y) + a + x * kRegular);
    into.slice(0, kSide).copy_(at::matmul(a_matrix_.t(), x) + b_ - y * kRegular);
    if (batch.iteration == bad_at) into[3] = std::numeric_limits<float>::quiet_NaN();  // most indices never see it
  }

  static constexpr double kRegular = 0.5;
  int64_t bad_at = -1;
  double scale = 1;
  std::vector<BatchKey> asked;

 private:
  double noise_;
  at::Tensor a_matrix_, a_, b_;
};

const base::Random kShared = base::Random(17);

MashaOptions masha1(double density, double step) {
  MashaOptions options;
  options.up = {.kind = "randk", .density = density};
  options.step = step;
  return options;
}

MashaOptions masha2(double density, double step) {
  MashaOptions options = masha1(density, step);
  options.kind = "masha2";
  options.up.kind = options.down.kind = "topk";
  options.down.density = density;
  return options;
}

// |F| of the mean problem of so many devices.
double residual_of(const at::Tensor& point, int devices) {
  at::Tensor sum = at::zeros_like(point);
  for (int device = 0; device < devices; ++device) {
    Bilinear problem(device);
    sum += value_at(problem, point, {});
  }
  return sum.norm().item<double>() / devices;
}

at::Tensor after(comm::World& world, const MashaOptions& options, int iterations) {
  Bilinear problem(world.rank());
  Masha masha(options, {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
  for (int i = 0; i < iterations; ++i) masha.iterate();
  return masha.point();
}

TEST(Masha, WithEverythingTravellingIsExtragradientWithAReference) {
  constexpr int kDevices = 3, kIterations = 40;
  constexpr double kStep = 0.3, kRefresh = 0.25;
  std::vector<Bilinear> devices;
  for (int device = 0; device < kDevices; ++device) devices.emplace_back(device);
  const auto mean_at = [&](const at::Tensor& point) {
    at::Tensor sum = at::zeros_like(point);
    for (Bilinear& problem : devices) sum += value_at(problem, point, {});
    return sum / kDevices;
  };
  at::Tensor z = at::ones({2 * kSide}), w = z, f = mean_at(w);
  for (int j = 0; j < kIterations; ++j) {
    const at::Tensor ahead = z * (1 - kRefresh) + w * kRefresh - f * kStep;
    z = ahead - (mean_at(ahead) - f) * kStep;
    if (kShared.for_purpose("masha").for_purpose("refresh").uniform(static_cast<uint64_t>(j)) < kRefresh) w = z, f = mean_at(w);
  }
  for (const char* kind : {"masha1", "masha2"})
    harness::on_ranks(kDevices, [&](comm::World& world) {
      MashaOptions options = masha1(1, kStep);
      options.kind = kind, options.up.kind = "none", options.refresh = kRefresh;
      EXPECT_TRUE(at::allclose(after(world, options, kIterations), z, 1e-5, 1e-5)) << kind;
    });
}

TEST(Masha, ReachesTheSolutionWhateverIsLeftOut) {
  MashaOptions common = masha1(0.3, 0.1), both = masha1(0.3, 0.1), some = masha1(0.5, 0.1);
  common.up.common = true;
  both.down = {.kind = "randk", .density = 0.5};
  some.participate = 0.5;
  for (const MashaOptions& options : {masha1(0.3, 0.2), common, both, some, masha2(0.3, 0.1)})
    harness::on_ranks(4, [&](comm::World& world) {
      const at::Tensor point = after(world, options, 500);
      EXPECT_LT(residual_of(point, 4), 1e-4 * residual_of(at::ones({2 * kSide}), 4)) << options.kind;
    });
}

TEST(Masha, IsBitwiseIdenticalOnEveryDevice) {
  MashaOptions some = masha1(0.2, 0.1);
  some.participate = 0.6, some.down = {.kind = "randk", .density = 0.5};
  for (const MashaOptions& options : {masha1(0.1, 0.1), some, masha2(0.2, 0.1)}) {
    std::mutex mutex;
    at::Tensor first;
    harness::on_ranks(5, [&](comm::World& world) {
      const at::Tensor point = after(world, options, 30);
      const std::lock_guard lock(mutex);
      if (!first.defined()) first = point;
      EXPECT_TRUE(at::equal(first, point));
    });
  }
}

// Of 12 elements on 2 devices that own 6 each.
TEST(Masha, OnlyValuesOfRandomPlacesTravel) {
  const auto sent = [](const MashaOptions& options, comm::Purpose purpose) {
    return harness::on_ranks(2, [&](comm::World& world) { after(world, options, 8); }).ledger.total(purpose).bytes;
  };
  MashaOptions common = masha1(0.25, 0.1);
  common.up.common = true;
  EXPECT_EQ(sent(common, comm::Purpose::gradient), 8 * 2 * 3 * 4);  // an all-reduce of 3 floats between two
  const MashaOptions independent = masha1(0.25, 0.1);
  EXPECT_LE(sent(independent, comm::Purpose::gradient), 8 * 2 * 3 * 4);  // at most all of them are the other's
  EXPECT_GT(sent(independent, comm::Purpose::gradient), 8 * 2 * 4);
  EXPECT_LE(sent(independent, comm::Purpose::parameter), 8 * 6 * 4);  // of elements that some device sent: at most 3 + 3
  EXPECT_EQ(sent(independent, comm::Purpose::control), 0);
}

TEST(Masha, AsksForTheSameBatchAheadAndAtTheReference) {
  harness::on_ranks(2, [](comm::World& world) {
    Bilinear problem(world.rank(), 0.1);
    MashaOptions options = masha1(0.5, 0.1);
    options.refresh = 1e-9, options.refresh_batches = 3;
    Masha masha(options, {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
    EXPECT_EQ(problem.asked.size(), 3u);
    problem.asked.clear();
    masha.iterate();
    ASSERT_EQ(problem.asked.size(), 2u);
    EXPECT_EQ(problem.asked[0], (BatchKey{0, world.rank(), 0}));
    EXPECT_EQ(problem.asked[1], problem.asked[0]);
  });
}

TEST(Masha, WhatIsNotFiniteOnOneDeviceIsUndoneOnAll) {
  for (const MashaOptions& options : {masha1(0.2, 0.1), masha2(0.2, 0.1)})
    harness::on_ranks(3, [&](comm::World& world) {
      Bilinear problem(world.rank());
      Masha masha(options, {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
      for (int i = 0; i < 5; ++i) EXPECT_FALSE(masha.iterate().undone);
      const at::Tensor before = masha.point().clone();
      std::vector<at::Tensor> residual;
      for (const mesh::NamedTensor& tensor : masha.state())
        if (tensor.name.ends_with("owed")) residual.push_back(tensor.tensor.clone());
      if (world.rank() == 1) problem.bad_at = 5;
      EXPECT_TRUE(masha.iterate().undone);
      EXPECT_TRUE(at::equal(before, masha.point()));
      EXPECT_DOUBLE_EQ(masha.step(), 0.05);
      size_t next = 0;
      for (const mesh::NamedTensor& tensor : masha.state())
        if (tensor.name.ends_with("owed")) {
          EXPECT_TRUE(at::equal(tensor.tensor, residual[next++] * 0.5));
        }
      EXPECT_FALSE(masha.iterate().undone);
      EXPECT_FALSE(at::equal(before, masha.point()));
    });
}

// What owners sent down plus the residuals of owners and devices is all that was to be sent.
TEST(MashaExchange, WhatIsLeftOutStaysInTheResidual) {
  constexpr int64_t kElements = 23;
  harness::on_ranks(3, [&](comm::World& world) {
    const Compression fifth{.kind = "topk", .density = 0.2};
    const auto exchange = make_largest_exchange(fifth, fifth, world.everyone(), kElements);
    at::Tensor sent = at::zeros({kElements}), given = at::zeros({kElements});
    for (uint64_t round = 0; round < 9; ++round) {
      const at::Tensor mean = at::empty({kElements});
      exchange->exchange(static_cast<int64_t>(round), normals(round, std::to_string(world.rank()), {kElements}), {true, true, true}, mean);
      sent += mean;
      for (int rank = 0; rank < 3; ++rank) given += normals(round, std::to_string(rank), {kElements}) / 3;
      const mesh::NamedTensors state = exchange->state();  // of this device, and of the range of 8, 8 or 7 elements that it owns
      at::Tensor residual = state[0].tensor / 3;
      residual.slice(0, 8 * world.rank(), 8 * world.rank() + state[1].tensor.numel()).add_(state[1].tensor);
      world.everyone().all_reduce(residual, comm::Reduce::sum, {comm::Purpose::state, "owed"}).wait_host();
      EXPECT_TRUE(at::allclose(sent + residual, given, 1e-5, 1e-5));
      EXPECT_GT(residual.abs().max().item<double>(), 0.1);  // or the test shows nothing
    }
  });
}

TEST(Masha, GivesUpAfterThreeIterationsThatWereNotFinite) {
  harness::on_ranks(2, [](comm::World& world) {
    Bilinear problem(world.rank());
    Masha masha(masha1(0.5, 0.1), {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
    try {
      for (int i = 0; i < 3; ++i) problem.bad_at = i, masha.iterate();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::diverged);
      EXPECT_NE(std::string(error.what()).find("use a smaller step"), std::string::npos) << error.what();
    }
  });
}

TEST(Masha, HalvesAStepThatMakesItGrow) {
  harness::on_ranks(2, [](comm::World& world) {
    Bilinear problem(world.rank());
    Masha masha(masha1(0.5, 8), {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
    for (int i = 0; i < 400; ++i) masha.iterate();
    EXPECT_LT(masha.step(), 2);
    EXPECT_TRUE(at::isfinite(masha.point()).all().item<bool>());
  });
}

// Dividing by the sizes of F would otherwise undo a player's own rate.
TEST(Masha, ScalesOfPlayersCountBesideThePreconditioner) {
  harness::on_ranks(2, [](comm::World& world) {
    const auto squares = [&](double scale) {
      Bilinear problem(world.rank());
      problem.scale = scale;
      MashaOptions options = masha1(1, 0.1);
      options.adam = true;
      Masha masha(options, {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
      for (const mesh::NamedTensor& tensor : masha.state())
        if (tensor.name == "masha.squares") return tensor.tensor;
      return at::Tensor();
    };
    EXPECT_TRUE(at::allclose(squares(8), squares(1)));
    EXPECT_GT(squares(1).min().item<double>(), 0);
  });
}

// A schedule sets the step anew each time; what was halved stays halved, and the residual is rescaled.
TEST(Masha, AStepThatIsSetAnewStaysHalved) {
  harness::on_ranks(2, [](comm::World& world) {
    Bilinear problem(world.rank());
    Masha masha(masha2(0.2, 0.1), {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
    masha.iterate();
    if (world.rank() == 1) problem.bad_at = 1;
    EXPECT_TRUE(masha.iterate().undone);
    const auto residual = [&] { return masha.state().back().tensor.clone(); };
    const at::Tensor before = residual();
    masha.set_step(0.3);
    EXPECT_DOUBLE_EQ(masha.step(), 0.15);
    EXPECT_TRUE(at::allclose(residual(), before * 3));
  });
}

TEST(Masha, AsksForNothingBeforeItsFirstIterationWhereAStateMayCome) {
  harness::on_ranks(2, [](comm::World& world) {
    Bilinear problem(world.rank());
    Masha now(masha1(0.5, 0.1), {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
    problem.asked.clear();
    Masha later(masha1(0.5, 0.1), {problem, world.everyone(), kShared, {}, /*later=*/true}, at::ones({2 * kSide}));
    EXPECT_TRUE(problem.asked.empty());
    now.iterate(), later.iterate();
    EXPECT_TRUE(at::equal(now.point(), later.point()));
  });
}

TEST(Masha, ResumesBitwiseIdentically) {
  for (MashaOptions options : {masha1(0.2, 0.1), masha2(0.2, 0.1)}) {
    options.average = true;
    harness::on_ranks(3, [&](comm::World& world) {
      Bilinear problem(world.rank());
      const Masha::Setting setting{problem, world.everyone(), kShared};
      Masha first(options, setting, at::ones({2 * kSide}));
      for (int i = 0; i < 13; ++i) first.iterate();
      Masha second(options, setting, at::zeros({2 * kSide}));
      const mesh::NamedTensors from = first.state(), to = second.state();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(from[i].name, to[i].name);
        to[i].tensor.copy_(from[i].tensor);
      }
      for (int i = 0; i < 13; ++i) first.iterate(), second.iterate();
      EXPECT_TRUE(at::equal(first.point(), second.point()));
      EXPECT_TRUE(at::equal(first.average(), second.average()));
    });
  }
}

TEST(Masha, GoesOnWithoutADeviceThatDied) {
  for (const MashaOptions& options : {masha1(0.3, 0.1), masha2(0.3, 0.1)}) {
    const auto faults = harness::Faults().lose({.rank = 3, .before_collective = 40});
    const harness::Run run = harness::on_ranks(4, faults, [&](comm::World& world) {
      Bilinear problem(world.rank());
      Masha masha(options, {problem, world.everyone(), kShared}, at::ones({2 * kSide}));
      bool broke = false;
      try {
        for (int i = 0; i < 400; ++i) masha.iterate();
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), Error::Kind::lost_peer);
        broke = true;
      }
      EXPECT_TRUE(broke);
      masha.regroup(world.group({0, 1, 2}, "survivors"));
      for (int i = 0; i < 400; ++i) masha.iterate();
      EXPECT_LT(residual_of(masha.point(), 3), 1e-3);
    });
    EXPECT_EQ(run.faults_fired, 1);
    for (const int rank : {0, 1, 2}) EXPECT_EQ(run.errors.count(rank), 0u);
  }
}

// Projected onto |y| <= 0.1 the answer is another, and inside.
TEST(Masha, StaysWhereTheProxPutsIt) {
  harness::on_ranks(2, [](comm::World& world) {
    Bilinear problem(world.rank());
    const auto into_box = [](const at::Tensor& x, double) { x.slice(0, kSide).clamp_(-0.1, 0.1); };
    Masha masha(masha1(0.5, 0.1), {problem, world.everyone(), kShared, into_box}, at::ones({2 * kSide}));
    for (int i = 0; i < 400; ++i) masha.iterate();
    const at::Tensor y = masha.point().slice(0, kSide);
    EXPECT_LE(y.abs().max().item<double>(), 0.1 + 1e-7);
    // A solution of the constrained problem stays where it is under a projected step along F.
    at::Tensor moved = masha.point().clone(), sum = at::zeros_like(moved);
    for (int device = 0; device < 2; ++device) {
      Bilinear other(device);
      sum += value_at(other, masha.point(), {});
    }
    moved.sub_(sum * 0.05);
    into_box(moved, 0);
    EXPECT_LT((moved - masha.point()).norm().item<double>(), 1e-4);
  });
}

TEST(Masha, RefusesWhatCannotWork) {
  const auto message = [](const MashaOptions& options) -> std::string {
    try {
      check(options, 4);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return error.what();
    }
    return "";
  };
  MashaOptions biased = masha1(0.1, 0.1), unscaled = masha2(0.1, 0.1), dense = masha1(1.5, 0.1), rare = masha1(0.1, 0.1), nobody = rare,
               twice = rare;
  biased.up.kind = "topk", unscaled.up.kind = "randk", rare.refresh = 1.5, nobody.participate = 0.2;
  twice.up.common = true, twice.down.kind = "randk";
  EXPECT_EQ(message(masha1(0.1, 0.1)), "");
  EXPECT_NE(message(biased).find("top-k is biased; use masha2"), std::string::npos);
  EXPECT_NE(message(unscaled).find("not contractive"), std::string::npos);
  EXPECT_NE(message(dense).find("density = 1.5"), std::string::npos);
  EXPECT_NE(message(rare).find("refresh = 1.5"), std::string::npos);
  EXPECT_NE(message(nobody).find("participate = 0.2"), std::string::npos);
  EXPECT_NE(message(twice).find("known to all already"), std::string::npos);
}

TEST(VariationalProblem, RefusesPlayersThatOverlapOrLeaveElementsOut) {
  const auto message = [](std::vector<Player> players) -> std::string {
    try {
      check_players(players, 10);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({{"b", 4, 10}, {"a", 0, 4}}), "");
  EXPECT_NE(message({{"a", 0, 5}, {"b", 4, 10}}).find("player \"b\": elements 4 to 5 belong to another"), std::string::npos);
  EXPECT_NE(message({{"a", 0, 4}, {"b", 5, 10}}).find("elements 4 to 5 belong to no player"), std::string::npos);
  EXPECT_NE(message({{"a", 0, 4}}).find("elements 4 to 10 belong to no player"), std::string::npos);
  EXPECT_NE(message({{"a", 0, 10, false, 0}}).find("lr_scale = 0"), std::string::npos);
}

}  // namespace
}  // namespace cairn::sync
