#include "proofs/c4_trials.h"

#include <gtest/gtest.h>

namespace cairn::study {
namespace {

class C4Trials : public testing::TestWithParam<C4Fault> {};

TEST_P(C4Trials, FindTheCulprit) {
  const C4Outcome outcome = run_c4_trial({.fault = GetParam(), .seed = 7});
  EXPECT_TRUE(outcome.right()) << outcome.line();
  EXPECT_LT(outcome.seconds, 10) << outcome.line();
}

INSTANTIATE_TEST_SUITE_P(Faults, C4Trials,
                         testing::Values(C4Fault::none, C4Fault::stuck, C4Fault::frozen, C4Fault::killed, C4Fault::lost_messages,
                                         C4Fault::late_loader, C4Fault::slow_path, C4Fault::slow_sender, C4Fault::slow_receiver,
                                         C4Fault::straggler, C4Fault::slow_loader, C4Fault::all_slower));

}  // namespace
}  // namespace cairn::study
