#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/flight/log.h"

namespace cairn::elastic {

// running: its heartbeat goes on. ended: in good order, or because it lost another rank.
enum class Liveness { running, frozen, dead, ended };

// What is known of one rank at one moment. All times are of its own machine: only differences of them are used.
struct RankView {
  int rank = -1;
  std::string host = {};
  Liveness liveness = Liveness::running;
  std::string how = {};  // of a dead or frozen one: "was killed by signal 9 (SIGKILL)"
  std::chrono::nanoseconds now{};
  std::optional<comm::FlightLog> log = {};  // nothing: its records are missing
};

}  // namespace cairn::elastic
