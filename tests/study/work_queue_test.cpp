#include "study/work_queue.h"

#include <csignal>
#include <fstream>
#include <map>
#include <poll.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/error_of.h"
#include "base/stop.h"
#include "harness/scratch_folder.h"
#include "study/result_rows.h"

namespace cairn::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<double> squares(int64_t unit) { return {static_cast<double>(unit), static_cast<double>(unit * unit)}; }

std::vector<double> delivered(WorkQueue queue) {
  std::vector<double> all;
  queue.deliver = [&](int64_t unit, const std::vector<double>& result) {
    EXPECT_EQ(result[0], static_cast<double>(unit));
    all.push_back(result[1]);
    return true;
  };
  EXPECT_TRUE(run_queue(std::move(queue)));
  return all;
}

TEST(RunQueue, DeliversInOrderOnAnyNumberOfProcesses) {
  for (const int processes : {1, 3})
    EXPECT_THAT(delivered({.processes = processes, .first = 1, .end = 6, .compute = squares}), ElementsAre(1, 4, 9, 16, 25)) << processes;
}

TEST(RunQueue, EndsWhenThereIsEnough) {
  for (const int processes : {1, 2}) {
    std::vector<int64_t> units;
    EXPECT_TRUE(run_queue({.processes = processes, .compute = squares, .deliver = [&](int64_t unit, const std::vector<double>&) {
                             units.push_back(unit);
                             return unit < 3;
                           }}));
    EXPECT_THAT(units, ElementsAre(0, 1, 2, 3));
  }
}

TEST(RunQueue, AnotherProcessTakesTheUnitOfOneThatDied) {
  int started = 0;
  EXPECT_THAT(delivered({.processes = 2,
                         .end = 5,
                         .compute =
                             [](int64_t unit) {
                               ::poll(nullptr, 0, 2);
                               return squares(unit);
                             },
                         .on_start =
                             [&](int pid) {
                               if (started++ < 3) ::kill(pid, SIGKILL);
                             }}),
              ElementsAre(0, 1, 4, 9, 16));
  EXPECT_GE(started, 4);
}

TEST(RunQueue, GivesUpAfterTooManyDeaths) {
  EXPECT_THAT(base::message_of([] {
                run_queue({.processes = 2,
                           .end = 5,
                           .compute = [](int64_t) -> std::vector<double> { ::_exit(7); },
                           .deliver = [](int64_t, const std::vector<double>&) { return true; },
                           .restarts = 3});
              }),
              HasSubstr("4 worker processes were lost"));
}

TEST(RunQueue, ThrowsWhatAWorkerThrew) {
  for (const int processes : {1, 2})
    EXPECT_THAT(base::message_of([&] {
                  run_queue({.processes = processes,
                             .end = 3,
                             .compute = [](int64_t) -> std::vector<double> { base::fail_input("train.steps = 0: no steps"); },
                             .deliver = [](int64_t, const std::vector<double>&) { return true; }});
                }),
                HasSubstr("train.steps = 0: no steps"));
}

TEST(RunQueue, ComputesNothingAgainThatIsKnown) {
  std::vector<int64_t> computed;
  EXPECT_THAT(delivered({.end = 4,
                         .compute =
                             [&](int64_t unit) {
                               computed.push_back(unit);
                               return squares(unit);
                             },
                         .known = {{0, {0, 0}}, {2, {2, 4}}}}),
              ElementsAre(0, 1, 4, 9));
  EXPECT_THAT(computed, ElementsAre(1, 3));
}

TEST(RunQueue, ReturnsFalseWhenItIsStopped) {
  base::Stop stop;
  EXPECT_FALSE(run_queue({.compute = squares,
                          .deliver =
                              [&](int64_t unit, const std::vector<double>&) {
                                if (unit == 2) stop.request();
                                return true;
                              },
                          .stop = &stop}));
}

TEST(ResultRows, KeepsRowsAndDropsAnIncompleteEnd) {
  const harness::ScratchFolder folder;
  const auto path = folder / "rows.bin";
  {
    ResultRows rows(path, 42);
    EXPECT_THAT(rows.take(), IsEmpty());
    rows.add(3, {1, 2.5});
    rows.add(0, {});
    rows.add(7, {9});
  }
  const auto bytes = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, bytes - 5);
  {
    ResultRows rows(path, 42);
    const auto found = rows.take();
    ASSERT_EQ(found.size(), 2u);
    EXPECT_THAT(found.at(3), ElementsAre(1, 2.5));
    rows.add(8, {4});
  }
  EXPECT_THAT(ResultRows(path, 42).take().at(8), ElementsAre(4));
}

TEST(ResultRows, DropsRowsFromADamagedOneOn) {
  const harness::ScratchFolder folder;
  const auto path = folder / "rows.bin";
  {
    ResultRows rows(path, 1);
    for (int64_t i = 0; i < 3; ++i) rows.add(i, {1, 2, 3});
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(16 + 48 + 20);  // in the second row
  file.put('x');
  file.close();
  EXPECT_EQ(ResultRows(path, 1).take().size(), 1u);
}

TEST(ResultRows, RefusesResultsOfAnotherRecipe) {
  const harness::ScratchFolder folder;
  { ResultRows rows(folder / "rows.bin", 1); }
  EXPECT_THAT(base::message_of([&] { ResultRows(folder / "rows.bin", 2); }), HasSubstr("another recipe"));
  folder.file("other.bin", "something else altogether");
  EXPECT_THAT(base::message_of([&] { ResultRows(folder / "other.bin", 2); }), HasSubstr("other.bin"));
}

}  // namespace
}  // namespace cairn::study
