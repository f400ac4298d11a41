#include "data/loader.h"

#include <atomic>
#include <future>

#include <gtest/gtest.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

mesh::Batch batch_of(int64_t step) {
  mesh::Batch batch;
  batch.ids = at::full({1}, step, at::kLong);
  return batch;
}

TEST(Loader, GivesTheBatchesInOrder) {
  Loader loader(batch_of, 5, 25);
  for (int64_t step = 5; step < 25; ++step) EXPECT_EQ(loader.next().ids.item<int64_t>(), step);
}

TEST(Loader, MakesNoMoreAheadThanAsked) {
  std::atomic<int64_t> made = 0;
  std::promise<void> third;
  Loader loader(
      [&](int64_t step) {
        if (++made == 3) third.set_value();
        return batch_of(step);
      },
      0, 100, 2);
  loader.next();
  third.get_future().wait();  // one was taken, so a third is made
  EXPECT_EQ(made, 3);         // and no fourth: two are waiting
}

TEST(Loader, ThrowsWhatMakingThrewAtTheStepItWasFor) {
  Loader loader(
      [](int64_t step) {
        if (step == 2) base::fail_input("sample 17 is gone");
        return batch_of(step);
      },
      0, 9);
  loader.next();
  loader.next();
  for (int again = 0; again < 2; ++again) EXPECT_EQ(refusal([&] { loader.next(); }), "sample 17 is gone");
}

TEST(Loader, MayBeDroppedAtAnyMoment) {
  for (int taken = 0; taken < 4; ++taken) {
    Loader loader(batch_of, 0, 1000000);
    for (int i = 0; i < taken; ++i) loader.next();
  }
  Loader nothing(batch_of, 3, 3);
}

TEST(Loader, IsNotToBeAskedPastItsEnd) {
  Loader loader(batch_of, 0, 1);
  loader.next();
  try {
    loader.next();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::broken_invariant);
    EXPECT_NE(std::string(error.what()).find("asked for step 1, and the loader ends before step 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cairn::data
