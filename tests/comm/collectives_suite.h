#pragma once
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "harness/ranks.h"

namespace cairn::comm {

// The tests of collectives_test.cpp, for whoever says where they run.
struct Case {
  harness::On on;
  int ranks;
};

class Collectives : public testing::TestWithParam<Case> {
 protected:
  int n() const { return GetParam().ranks; }
  harness::Run run(const std::function<void(World&)>& body) const { return harness::on_ranks(n(), {.on = GetParam().on}, body); }
};

inline std::string name_of(const testing::TestParamInfo<Case>& one) {
  return harness::name(one.param.on) + std::to_string(one.param.ranks);
}

}  // namespace cairn::comm
