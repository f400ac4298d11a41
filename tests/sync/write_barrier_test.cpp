// Rules that do not announce what they write: the chain waits for everything before each of their hooks that may write.
#include "mesh/write_barrier.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "sync/islands/flat_parameters.h"
#include "sync/needs.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

// Counts what is announced.
class CountingBarrier final : public mesh::WriteBarrier {
 public:
  void before_write(const at::Tensor& tensor) override { announced.push_back(tensor); }
  void before_writing_all() override { ++all; }
  bool would_wait(const at::Tensor&) const override { return false; }
  bool active() const override { return true; }
  std::vector<at::Tensor> announced;
  int all = 0;
};

// Notes how often everything was waited for when its hooks were called.
class SilentRule final : public Sync {
 public:
  SilentRule(const CountingBarrier& barrier, std::vector<int>& seen) : barrier_(barrier), seen_(seen) {}
  comm::Work after_step(const StepFacts&) override { return seen_.push_back(barrier_.all), comm::Work::done(); }
  void finish() override { seen_.push_back(barrier_.all); }
  std::optional<int64_t> take_new_position() override { return seen_.push_back(barrier_.all), std::nullopt; }
  void on_membership(const Membership&) override {}

 private:
  const CountingBarrier& barrier_;
  std::vector<int>& seen_;
};

std::unique_ptr<Sync> chain_of(CountingBarrier& barrier, std::vector<int>& seen, bool guarded) {
  std::vector<std::unique_ptr<Sync>> rules;
  rules.push_back(std::make_unique<SilentRule>(barrier, seen));
  return make_chain(std::move(rules), guarded ? &barrier : nullptr);
}

TEST(WriteBarrier, IsWaitedForBeforeRulesThatSayNothing) {
  for (const bool guarded : {true, false}) {
    CountingBarrier barrier;
    std::vector<int> seen;
    const std::unique_ptr<Sync> chain = chain_of(barrier, seen, guarded);
    chain->after_step({}).wait();
    chain->finish();
    (void)chain->take_new_position();
    EXPECT_EQ(seen, guarded ? (std::vector<int>{1, 2, 3}) : (std::vector<int>{0, 0, 0}));
  }
}

TEST(WriteBarrier, HearsOfEveryParameterThatIsAssigned) {
  CountingBarrier barrier;
  const mesh::NamedTensors all{{"a", at::zeros({3})}, {"b", at::zeros({2, 2})}};
  FlatParameters(all, {0, 1}, &barrier).assign(at::ones({7}));
  ASSERT_EQ(barrier.announced.size(), 2u);
  EXPECT_TRUE(barrier.announced[0].is_same(all[0].tensor));
  EXPECT_TRUE(barrier.announced[1].is_same(all[1].tensor));
  FlatParameters(all, {0, 1}).assign(at::ones({7}));
  EXPECT_EQ(barrier.announced.size(), 2u);
}

TEST(WriteBarrier, AllRulesAnnounceWhatTheyWrite) {
  for (const std::string& name : rule_names()) EXPECT_TRUE(needs_of(name).announces_writes) << name;
  for (const std::string& name : island_rule_names()) EXPECT_TRUE(needs_of(name).announces_writes) << name;
}

}  // namespace
}  // namespace cairn::sync
