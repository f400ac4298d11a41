#pragma once
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::base {

// The error that `act` throws; a test failure if it throws none.
template <typename Act>
Error error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Error::Kind::broken_invariant, "nothing was thrown"};
}

template <typename Act>
std::string message_of(Act act) {
  return error_of(act).what();
}

}  // namespace cairn::base
