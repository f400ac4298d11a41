// What a user hears of a GPU: that it is there, and when its memory is full how full it is and what takes less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/cause.h"
#include "cli/program.h"
#include "kernels/device.h"

namespace cairn::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(FullGpu, TellsWhatTakesLess) {
  const std::string said = explain_gpu_out_of_memory(
      "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 10.00 GiB of which 8.00 MiB is free. If reserved but "
      "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.");
  EXPECT_THAT(said, HasSubstr("of which 8.00 MiB is free. To use less: a smaller train.micro_batch"));
  EXPECT_THAT(said, Not(HasSubstr("PYTORCH_ALLOC_CONF")));
  EXPECT_THAT(explain_gpu_out_of_memory("CUDA out of memory."), HasSubstr("CUDA out of memory. To use less"));
}

TEST(IdleGpu, IsMentionedWhereTheCpuTrains) {
  const harness::ScratchFolder scratch;
  const Outcome ended = cairn(scratch, tiny({"train", "--set", "train.steps=1"}));
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output.find("--device cuda trains on it") != std::string::npos, kernels::can_use_cuda()) << ended.output;
}

TEST(FullGpu, EndsATrainingThatDoesNotFit) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const harness::ScratchFolder scratch;
  const std::vector<std::string> large{"train",
                                       "--device",
                                       "cuda",
                                       "--set",
                                       "model.embed=65536",
                                       "--set",
                                       "model.layers=16",
                                       "--set",
                                       "model.heads=64",
                                       "--set",
                                       "model.kv_heads=8",
                                       "--set",
                                       "snapshot.every=0",
                                       "--set",
                                       "snapshot.last=false"};
  const Outcome refused = cairn(scratch, large);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("--allow-oversize trains all the same"));
  std::vector<std::string> all_the_same = large;
  all_the_same.push_back("--allow-oversize");
  const Outcome ended = cairn(scratch, all_the_same);
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.output, HasSubstr("To use less: a smaller train.micro_batch"));
}

}  // namespace
}  // namespace cairn::cli
