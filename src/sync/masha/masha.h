#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/named_tensor.h"
#include "sync/masha/exchange.h"
#include "sync/variational_problem.h"

namespace cairn::comm {
class Group;
}

namespace cairn::sync {

struct MashaOptions {
  std::string kind = "masha1";  // unbiased compression; "masha2": the largest, with error feedback
  double step = 1e-2;
  Compression up = {.kind = "randk", .density = 0.1};
  Compression down = {};
  double refresh = 0;           // probability of a new reference after an iteration; 0: as dense as `up`
  int64_t refresh_batches = 8;  // averaged at a new reference; one where the problem is not stochastic
  double participate = 1;       // share of the devices that send in an iteration
  bool average = false;         // keep the mean of the points looked at: for problems that are only monotone
  bool adam = false;            // scale elements by the sizes of F at references: heuristic
  double halve_above = 10;      // the step is halved where |F| grows by more than this from one reference to the next; 0: never
};

// Refuses what does not go together, naming the key as a recipe would.
void check(const MashaOptions& options, int devices);

// What an iteration was like. All devices see the same but for `difference` and `error_ratio`, which are this device's.
struct MashaFacts {
  int64_t iteration = 0;
  bool refreshed = false;
  bool undone = false;     // something was not finite: nothing has moved, and the step is halved
  double residual = 0;     // |F| at the reference
  double difference = 0;   // |F_m(look-ahead) - F_m(reference)|
  double error_ratio = 0;  // of its compression
  double step = 0;
  std::vector<double> player_residuals = {};
};

// MASHA (Beznosikov et al., Distributed Methods with Compressed Communication for Solving Variational Inequalities): extragradient over
// devices that send each other compressed differences. They are taken against a reference point w, where all know the mean F(w), and
// vanish at the solution, so compression's noise does too. A shared coin lets w become the newest point now and then; only then does
// a whole vector travel. What all devices must agree on (coin, places, who takes part) comes from random numbers they share.
class Masha {
 public:
  struct Setting {
    VariationalProblem& problem;
    comm::Group& peers;   // a device each; its number is the rank in the world
    base::Random random;  // alike on all devices
    // Where the problem has constraints or a regulariser g: x becomes prox_{step g}(x). Empty: none.
    std::function<void(const at::Tensor& x, double step)> prox = {};
    // F at the start is asked for at the first iteration, not before: until then a state may be loaded, which has it.
    bool later = false;
  };

  // Starts at `start` (flat, on the CPU, alike on all devices). Messages are float; everything else is of start's type, float or double,
  // which decides how close to the solution rounding lets it come. Collective, unless `later`: F at the start is exchanged whole.
  Masha(const MashaOptions& options, const Setting& setting, const at::Tensor& start);

  // Collective. Throws Error::Kind::diverged where three iterations in a row had to be undone.
  MashaFacts iterate();

  const at::Tensor& point() const { return point_; }          // the last iterate
  const at::Tensor& reference() const { return reference_; }  // w
  const at::Tensor& mean() const { return mean_; }            // F(w)
  at::Tensor average() const;                                 // of the points looked at; the last iterate before there is any
  int64_t iteration() const { return counters_.const_data_ptr<int64_t>()[0]; }
  int64_t refreshes() const { return counters_.const_data_ptr<int64_t>()[1]; }  // the epoch of w
  double step() const;                                                          // as it was set, halved as often as had to be
  void set_step(double step);                                                   // what is owed is rescaled

  // Devices came or went. Collective among those of the new group, who may have got to different places when the old one broke, or be new:
  // all take the point of whoever got furthest, owe nothing, and exchange F there.
  void regroup(comm::Group& peers);

  // All that a restart needs, by logical name. The tensors are this object's own: a loader writes into them.
  mesh::NamedTensors state();

 private:
  bool refresh();  // false: not finite
  void first_reference();
  void halve();
  void begin(comm::Group& peers);
  at::Tensor own_value(const BatchKey& first, int64_t batches) const;
  std::vector<bool> takes_part() const;
  int64_t device() const;
  void apply_prox(const at::Tensor& x) const;
  void undo(MashaFacts& facts);
  at::Tensor scaled(const at::Tensor& direction) const;  // by the preconditioner

  MashaOptions options_;
  VariationalProblem& problem_;
  comm::Group* peers_;
  base::Random random_;
  std::function<void(const at::Tensor&, double)> prox_;
  double refresh_probability_;
  std::vector<Player> players_;
  std::unique_ptr<MashaExchange> exchange_;
  at::Tensor point_, reference_;
  at::Tensor mean_;      // F(w)
  at::Tensor own_;       // F_m(w), where the problem is not stochastic
  at::Tensor average_;   // where it is kept
  at::Tensor squares_;   // where elements are scaled: moving mean of F(w)^2
  at::Tensor counters_;  // iterations, refreshes, undone in a row, halvings of the step
  at::Tensor step_;      // double; as it was set
};

}  // namespace cairn::sync
