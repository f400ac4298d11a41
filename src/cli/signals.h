#pragma once
#include "base/stop.h"

namespace cairn::cli {

// While an object lives, SIGTERM, SIGINT and SIGUSR1 request a snapshot and a stop. A second SIGINT ends the program at once. One at a
// time.
class Signals {
 public:
  Signals();
  ~Signals();
  const base::Stop& stop() const;
};

// While an object lives, and no Signals does, SIGTERM, SIGINT and SIGUSR1 end the program at once with exit code 0: a run that has not
// begun has nothing to save.
class SignalsBeforeRun {
 public:
  SignalsBeforeRun();
  ~SignalsBeforeRun();
  SignalsBeforeRun(const SignalsBeforeRun&) = delete;
  SignalsBeforeRun& operator=(const SignalsBeforeRun&) = delete;
};

}  // namespace cairn::cli
