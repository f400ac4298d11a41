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

}  // namespace cairn::cli
