#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "federate/coding/scheme.h"
#include "toy_jobs.h"

namespace cairn::federate {
namespace {

using sync::CodeKind;
using testing::HasSubstr;

// The rule of M-SGC by the whole history, written anew: `rounds` ends with the round that is judged.
bool tolerated(const std::vector<Workers>& rounds, int b, int w, int lambda) {
  const int r = static_cast<int>(rounds.size()) - 1;
  std::set<size_t> distinct;
  for (int k = std::max(0, r - w + 1); k <= r; ++k)
    for (size_t i = 0; i < rounds[0].size(); ++i)
      if (rounds[static_cast<size_t>(k)][i]) distinct.insert(i);
  if (static_cast<int>(distinct.size()) > lambda) return false;
  for (size_t i = 0; i < rounds[0].size(); ++i)
    for (int k = std::max(0, r - w + 1); k <= r - b; ++k)
      if (rounds[static_cast<size_t>(r)][i] && rounds[static_cast<size_t>(k)][i]) return false;
  return true;
}

// Late sets are drawn in bursts; one that is not tolerated is thinned out until it is, as a master that waits would.
int run_pattern(uint64_t seed, CodeCache& codes, double& error, int64_t& late_replies) {
  const base::Random random = base::Random(seed).for_purpose("pattern");
  const int n = 1 + static_cast<int>(random.below(0, 8)), b = 1 + static_cast<int>(random.below(1, 3)),
            w = b + 1 + static_cast<int>(random.below(2, 3)), lambda = static_cast<int>(random.below(3, static_cast<uint64_t>(n) + 1));
  const int64_t jobs = 3 + static_cast<int64_t>(random.below(4, 4));
  const auto scheme = make_scheme({.kind = SchemeKind::msgc, .b = b, .w = w, .lambda = lambda}, n, jobs, CodeKind::automatic, 3, &codes);
  ToyJobs toy(*scheme, seed);
  std::vector<Workers> history;
  int decoded = 0;
  Workers slow(static_cast<size_t>(n), 0);
  for (int64_t round = 0; round < scheme->rounds(); ++round) {
    const std::vector<Task> tasks = scheme->tasks(round);
    const base::Random own = random.for_index(static_cast<uint64_t>(round));
    for (size_t i = 0; i < slow.size(); ++i) slow[i] = own.uniform(i) < (slow[i] ? 0.6 : 0.25);
    Workers late = slow;
    history.push_back(late);
    for (size_t i = 0; i < late.size() && !tolerated(history, b, w, lambda); ++i) {
      EXPECT_FALSE(scheme->conforms(late)) << n << ' ' << b << ' ' << w << ' ' << lambda;
      late[i] = 0;
      history.back() = late;
    }
    EXPECT_TRUE(tolerated(history, b, w, lambda));
    EXPECT_TRUE(scheme->conforms(late)) << n << ' ' << b << ' ' << w << ' ' << lambda << " round " << round;  // and so it is decodable
    late_replies += std::count(late.begin(), late.end(), 1);
    toy.round(tasks, late);
    scheme->close(late);
    JobDecoding job;
    if (!scheme->completed(job)) continue;
    EXPECT_EQ(job.job, decoded++);
    error = std::max(error, toy.error(job));
  }
  return decoded == jobs ? 1 : 0;
}

TEST(Multiplexed, DecodesUnderTenThousandBurstyPatterns) {
  double rounded = 0;
  CodeCache codes;
  int64_t late = 0;
  int complete = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    double error = 0;
    complete += run_pattern(seed, codes, error, late);
    rounded = std::max(rounded, error);
  }
  EXPECT_EQ(complete, 10000);
  EXPECT_LT(rounded, 1e-5);
  EXPECT_GT(late, 10000);  // or the test shows nothing
}

TEST(Multiplexed, IsExactOnIntegersWhereTheRestIsRepeated) {
  for (const int lambda : {0, 1, 3, 7, 8}) {  // 8: there is no coded rest
    const auto scheme = make_scheme({.kind = SchemeKind::msgc, .b = 1, .w = 3, .lambda = lambda}, 8, 20, CodeKind::automatic, 1);
    ToyJobs toy(*scheme, 5);
    int decoded = 0;
    for (int64_t round = 0; round < scheme->rounds(); ++round) {
      const std::vector<Task> tasks = scheme->tasks(round);
      Workers late(8, 0);
      if (round % 3 == 0) std::fill(late.begin(), late.begin() + lambda, 1);
      ASSERT_TRUE(scheme->conforms(late)) << lambda << ' ' << round;
      toy.round(tasks, late);
      scheme->close(late);
      JobDecoding job;
      if (!scheme->completed(job)) continue;
      EXPECT_EQ(toy.error(job), 0) << lambda;
      ++decoded;
    }
    EXPECT_EQ(decoded, 20);
  }
}

// For 256 workers, as the paper lists them.
TEST(Schemes, HaveTheLoadsOfThePaper) {
  EXPECT_NEAR(load_of({.kind = SchemeKind::msgc, .b = 1, .w = 2, .lambda = 27}, 256), 0.0075, 5e-5);
  EXPECT_NEAR(load_of({.kind = SchemeKind::srsgc, .b = 2, .w = 3, .lambda = 23}, 256), 0.051, 5e-4);
  EXPECT_NEAR(load_of({.kind = SchemeKind::gc, .s = 15}, 256), 0.0625, 1e-12);
  EXPECT_NEAR(load_of({}, 256), 0.0039, 5e-5);
  EXPECT_EQ((SchemeSpec{.kind = SchemeKind::msgc, .b = 2, .w = 3, .lambda = 6}.delay()), 3);
  for (const SchemeSpec& spec : {SchemeSpec{.kind = SchemeKind::msgc, .b = 2, .w = 4, .lambda = 7},
                                 SchemeSpec{.kind = SchemeKind::msgc, .b = 2, .w = 4, .lambda = 3},
                                 SchemeSpec{.kind = SchemeKind::srsgc, .b = 2, .w = 5, .lambda = 5}})
    EXPECT_NEAR(make_scheme(spec, 7, 1, CodeKind::automatic, 1)->load(), load_of(spec, 7), 1e-12) << spec.text();
}

TEST(Schemes, AWorkerComputesItsLoadInEveryFullRound) {
  for (const SchemeSpec& spec :
       {SchemeSpec{}, SchemeSpec{.kind = SchemeKind::gc, .s = 2}, SchemeSpec{.kind = SchemeKind::srsgc, .b = 2, .w = 3, .lambda = 3},
        SchemeSpec{.kind = SchemeKind::msgc, .b = 2, .w = 4, .lambda = 3}}) {
    const auto scheme = make_scheme(spec, 7, 12, CodeKind::automatic, 1);
    for (int64_t round = 0; round < scheme->rounds(); ++round) {
      const std::vector<Task> tasks = scheme->tasks(round);
      for (const Task& task : tasks) {
        int64_t units = 0;
        for (const Slot& slot : task)
          for (const int chunk : slot.chunks) units += scheme->chunks()[static_cast<size_t>(chunk)].count;
        const bool full = round >= scheme->delay() && round < scheme->jobs();
        const double load = static_cast<double>(units) / static_cast<double>(scheme->units());
        if (full) {
          EXPECT_NEAR(load, scheme->load(), 1e-12) << spec.text() << ' ' << round;
        }
        EXPECT_LE(load, scheme->load() + 1e-12);
      }
      scheme->close(Workers(7, 0));
    }
  }
}

TEST(Repeating, ToleratesAsManyLateWorkersAsItSaysAndNoMore) {
  const auto scheme = make_scheme({.kind = SchemeKind::gc, .s = 2}, 7, 3, CodeKind::automatic, 1);
  scheme->tasks(0);
  EXPECT_TRUE(scheme->conforms({1, 0, 0, 1, 0, 0, 0}));
  EXPECT_FALSE(scheme->conforms({1, 0, 0, 1, 0, 0, 1}));
}

TEST(Repeating, RepeatsWhatWasMissing) {
  const auto scheme = make_scheme({.kind = SchemeKind::srsgc, .b = 1, .w = 2, .lambda = 3}, 6, 4, CodeKind::automatic, 1);  // s = 2
  ToyJobs toy(*scheme, 1);
  scheme->tasks(0);
  EXPECT_TRUE(scheme->conforms({1, 1, 1, 1, 0, 0}));  // four of six late: repeated in the next round
  scheme->close({1, 1, 1, 1, 0, 0});
  const std::vector<Task> tasks = scheme->tasks(1);
  EXPECT_EQ(tasks[0].front().job, 0);
  EXPECT_EQ(tasks[1].front().job, 0);
  EXPECT_EQ(tasks[2].front().job, 1);
  EXPECT_FALSE(scheme->conforms({1, 0, 0, 0, 0, 0}));  // job 0 would have three replies
  EXPECT_TRUE(scheme->conforms({0, 0, 1, 1, 1, 1}));
}

TEST(Repeating, DecodesUnderRandomPatterns) {
  CodeCache codes;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const base::Random random = base::Random(seed).for_purpose("pattern");
    const int n = 2 + static_cast<int>(random.below(0, 7));
    const int b = 1 + static_cast<int>(random.below(1, 3)), lambda = 1 + static_cast<int>(random.below(2, static_cast<uint64_t>(n) - 1));
    const auto scheme =
        make_scheme({.kind = SchemeKind::srsgc, .b = b, .w = 2 * b + 1, .lambda = lambda}, n, 6, CodeKind::automatic, 3, &codes);
    ToyJobs toy(*scheme, seed);
    int decoded = 0;
    for (int64_t round = 0; round < scheme->rounds(); ++round) {
      const std::vector<Task> tasks = scheme->tasks(round);
      Workers late(static_cast<size_t>(n), 0);
      for (size_t i = 0; i < late.size(); ++i)
        late[i] = !tasks[i].empty() && random.for_index(static_cast<uint64_t>(round)).uniform(i) < 0.4;
      for (size_t i = 0; i < late.size() && !scheme->conforms(late); ++i) late[i] = 0;
      ASSERT_TRUE(scheme->conforms(late));
      toy.round(tasks, late);
      scheme->close(late);
      JobDecoding job;
      if (!scheme->completed(job)) continue;
      ++decoded;
      EXPECT_LT(toy.error(job), 1e-5);
    }
    EXPECT_EQ(decoded, 6);
  }
}

TEST(Schemes, RefuseParametersThatCannotBe) {
  const auto refusal = [](const SchemeSpec& spec) { return base::message_of([&] { make_scheme(spec, 4, 3, CodeKind::automatic, 1); }); };
  EXPECT_THAT(refusal({.kind = SchemeKind::gc, .s = 4}),
              HasSubstr("study.s = 4: 4 workers, and at least one must not be late: use at most 3"));
  EXPECT_THAT(refusal({.kind = SchemeKind::msgc, .b = 2, .w = 2, .lambda = 1}),
              HasSubstr("study.b = 2: must be below study.w = 2: use study.w = 3"));
  EXPECT_THAT(refusal({.kind = SchemeKind::msgc, .b = 1, .w = 2, .lambda = 5}),
              HasSubstr("study.lambda = 5: there are 4 workers: use 0 to 4"));
  EXPECT_THAT(refusal({.kind = SchemeKind::srsgc, .b = 2, .w = 4, .lambda = 1}), HasSubstr("a multiple of study.b = 2 plus 1: use 3"));
}

}  // namespace
}  // namespace cairn::federate
