// Chooses a scheme's parameters by replaying recorded times through the master's own rounds.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "federate/coding/rounds.h"

namespace cairn::federate {

// Seconds that a worker takes for a task of this load (share of a batch) in a round.
using WorkerSeconds = std::function<double(int64_t round, int worker, double load)>;

struct Replayed {
  double seconds = 0;  // of all rounds
  int64_t rounds = 0, waited = 0, jobs = 0;
  int64_t late = 0;  // replies that did not count
};

// Runs all rounds in virtual time. Whoever is late gives up, and begins the next round with the others.
Replayed replay(std::unique_ptr<Scheme> scheme, double mu, const WorkerSeconds& seconds);

// What was measured without coding: seconds by round and worker at one load, and how many seconds more a worker takes per unit of load.
struct Profile {
  std::vector<std::vector<double>> seconds = {};
  double load = 0;
  double per_load = 0;
  WorkerSeconds times() const;  // rounds repeat from the beginning
};

// Fits d = c0 + c1 load by least squares over pairs of (load, seconds); 0 where the loads are all the same.
double fit_per_load(const std::vector<std::pair<double, double>>& measured);

struct Choice {
  SchemeSpec spec;
  double seconds = 0;  // predicted, for all jobs
  double load = 0;
};

struct ChooseOptions {
  std::vector<SchemeKind> kinds = {SchemeKind::none, SchemeKind::gc, SchemeKind::srsgc, SchemeKind::msgc};
  int workers = 1;
  int64_t jobs = 100;
  int delay_max = 3;
  double mu = 1;
  sync::CodeKind code = sync::CodeKind::automatic;
  uint64_t seed = 1;
  CodeCache* codes = nullptr;  // null: one of its own
};

// Every set of parameters that works, fastest first.
std::vector<Choice> rank_parameters(const ChooseOptions& options, const WorkerSeconds& seconds);

}  // namespace cairn::federate
