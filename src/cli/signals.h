#pragma once
#include "base/stop.h"

namespace cairn::cli {

// Turns SIGTERM, SIGINT and SIGUSR1 into a wish to save and stop, for as long as it lives. A second SIGINT ends the program at once.
class Signals {
 public:
  Signals();
  ~Signals();
  const base::Stop& stop() const;
};

}  // namespace cairn::cli
