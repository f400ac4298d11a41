#include "comm/work.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace cairn::comm {
namespace {

struct Step final : Work::State {
  bool ready() const override { return waited; }
  void wait() override {
    waited = true;
    if (fails) throw std::runtime_error("failed");
  }
  bool waited = false;
  bool fails = false;
};

TEST(Work, DoneIsReadyAndWaitsForNothing) {
  EXPECT_TRUE(Work::done().ready());
  EXPECT_NO_THROW(Work().wait());
  EXPECT_TRUE(Work::all({Work::done(), Work()}).ready());
}

TEST(Work, AllWaitsForEveryPartEvenAfterAnError) {
  const auto first = std::make_shared<Step>(), second = std::make_shared<Step>();
  first->fails = true;
  const Work all = Work::all({Work(first), Work(), Work(second)});
  EXPECT_FALSE(all.ready());
  EXPECT_THROW(all.wait(), std::runtime_error);
  EXPECT_TRUE(second->waited);
}

TEST(Work, ThenRunsOnceOnTheWaitingThread) {
  int runs = 0;
  const Work work = Work(std::make_shared<Step>()).then([&] { ++runs; });
  EXPECT_EQ(runs, 0);
  work.wait();
  work.wait_host();
  EXPECT_EQ(runs, 1);
}

TEST(Work, ThenDoesNotRunAfterAnError) {
  const auto step = std::make_shared<Step>();
  step->fails = true;
  int runs = 0;
  EXPECT_THROW(Work(step).then([&] { ++runs; }).wait(), std::runtime_error);
  EXPECT_EQ(runs, 0);
}

}  // namespace
}  // namespace cairn::comm
