#include "study/job_schedule.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace cairn::study {
namespace {

using testing::ElementsAre;

// Of all ways to place the jobs, the shortest.
double best_of_all(const std::vector<JobCost>& jobs, const std::vector<Island>& islands) {
  double best = INFINITY;
  const auto ways = static_cast<size_t>(std::pow(islands.size(), jobs.size()));
  for (size_t way = 0; way < ways; ++way) {
    std::vector<double> busy(islands.size(), 0);
    for (size_t job = 0, rest = way; job < jobs.size(); ++job, rest /= islands.size())
      busy[rest % islands.size()] += jobs[job].flops / islands[rest % islands.size()].speed;
    best = std::min(best, *std::max_element(busy.begin(), busy.end()));
  }
  return best;
}

TEST(PlaceJobs, PutsTheLongestWhereItEndsSoonest) {
  const JobSchedule placed = schedule_jobs({{"s", 2, 0}, {"l", 8, 0}, {"m", 5, 0}}, {{"slow", 1, 0}, {"fast", 2, 0}});
  EXPECT_THAT(placed.jobs[1], ElementsAre(1, 0));  // l, then s behind it: 4 and 5, against 5 and 7 on the slow one
  EXPECT_THAT(placed.jobs[0], ElementsAre(2));
  EXPECT_EQ(placed.makespan, 5);
}

TEST(PlaceJobs, StaysWithinFourThirdsOfTheBestOnEqualIslands) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<JobCost> jobs;
    for (uint64_t i = 0; i < 7; ++i) jobs.push_back({"job", 1 + 9 * base::Random(seed).uniform(i), 0});
    const std::vector<Island> islands{{"a", 1, 0}, {"b", 1, 0}, {"c", 1, 0}};
    EXPECT_LE(schedule_jobs(jobs, islands).makespan, 4.0 / 3 * best_of_all(jobs, islands) + 1e-9) << "seed " << seed;
  }
}

TEST(PlaceJobs, KeepsLargeJobsOffIslandsWithoutTheMemory) {
  const JobSchedule placed = schedule_jobs({{"s", 2, 10}, {"l", 8, 100}}, {{"small but fast", 100, 50}, {"large", 1, 100}});
  EXPECT_THAT(placed.jobs[0], ElementsAre(0));
  EXPECT_THAT(placed.jobs[1], ElementsAre(1));
  try {
    schedule_jobs({{"l", 8, 101}}, {{"a", 1, 50}, {"b", 1, 100}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("l needs 101 B and no island has more than 100 B"));
  }
}

}  // namespace
}  // namespace cairn::study
