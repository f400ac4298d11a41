// What was said to wrong input.
#pragma once
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::evaluate {

// The message of the bad input that `act` is refused as.
inline std::string refused(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

}  // namespace cairn::evaluate
