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
namespace cairn::mesh {
class WriteBarrier;
}

namespace cairn::sync {

struct MashaOptions {
  std::string kind = "masha1";  // randk, unbiased; "masha2": topk with error feedback
  double step = 1e-2;           // gamma
  Compression up = {.kind = "randk", .density = 0.1};
  Compression down = {};
  double refresh = 0;           // 1 - tau: probability of a new reference after an iteration; 0: the density of `up`
  int64_t refresh_batches = 8;  // batches that F(w) averages; 1 if the problem is not stochastic
  double participate = 1;       // share of the devices that send in an iteration
  bool average = false;         // keep the mean of the look-ahead points, for problems that are only monotone
  bool adam = false;            // scale elements by a moving mean of F(w)^2 (heuristic)
  double halve_above = 10;      // halve the step if |F(w)| grows by more than this factor from one reference to the next; 0: never
};

// Refuses options that contradict each other; messages name the recipe keys.
void check(const MashaOptions& options, int devices);

// Facts about one iteration. Identical on all devices, except `difference` and `error_ratio`, which are this device's.
struct MashaFacts {
  int64_t iteration = 0;
  bool refreshed = false;
  bool undone = false;     // a value was not finite: the point has not moved and the step is halved
  double residual = 0;     // |F| at the reference
  double difference = 0;   // |F_m(look-ahead) - F_m(reference)|
  double error_ratio = 0;  // of its compression
  double step = 0;
  std::vector<double> player_residuals = {};
};

// MASHA: distributed extragradient for variational inequalities with compressed communication. The update rule is in masha.cpp. Everything
// that devices must do identically (refresh or not, random indices, who takes part) comes from random numbers that they share.
class Masha {
 public:
  struct Setting {
    VariationalProblem& problem;
    comm::Group& peers;   // one rank per device; the device's number is its rank in the world
    base::Random random;  // identical on all devices
    // For constraints or a regulariser g: replaces x by prox_{step g}(x). Empty: none.
    std::function<void(const at::Tensor& x, double step)> prox = {};
    // Computes F at the start in the first iteration only. Until then a snapshot may be loaded, which has it.
    bool later = false;
    mesh::WriteBarrier* barrier = nullptr;  // told before tensors of state() change; null: nobody asks
  };

  // Starts at `start` (flat, on the CPU, identical on all devices). Messages are float; everything else has the type of `start`, float or
  // double, which bounds how close to the solution rounding lets it come. Collective unless `later`: F at the start is exchanged in full.
  Masha(const MashaOptions& options, const Setting& setting, const at::Tensor& start);

  // One iteration. Collective. Throws Error::Kind::diverged after three iterations in a row that were not finite.
  MashaFacts iterate();

  const at::Tensor& point() const { return point_; }          // the last iterate
  const at::Tensor& reference() const { return reference_; }  // w
  const at::Tensor& mean() const { return mean_; }            // F(w)
  at::Tensor average() const;                                 // of the look-ahead points; before the first iteration the start
  int64_t iteration() const { return counters_.const_data_ptr<int64_t>()[0]; }
  int64_t refreshes() const { return counters_.const_data_ptr<int64_t>()[1]; }  // how often w was replaced
  double step() const;                                                          // as set, after all halvings
  void set_step(double step);                                                   // rescales the residual too

  // The group has changed. Collective over the new group, whose devices may be at different iterations or new: all take the state of the
  // furthest device, drop their residuals and exchange F there.
  void regroup(comm::Group& peers);

  // What a snapshot must hold, by name. The tensors belong to this object: a loader writes into them.
  mesh::NamedTensors state();

 private:
  bool refresh();  // w becomes the current point; false: F there is not finite
  void first_reference();
  void before_residuals_change();
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
  mesh::WriteBarrier* barrier_;
  double refresh_probability_;
  std::vector<Player> players_;
  std::unique_ptr<MashaExchange> exchange_;
  at::Tensor point_, reference_;
  at::Tensor mean_;      // F(w)
  at::Tensor own_;       // F_m(w), if the problem is not stochastic
  at::Tensor average_;   // with MashaOptions::average
  at::Tensor squares_;   // with MashaOptions::adam: moving mean of F(w)^2
  at::Tensor counters_;  // iterations, refreshes, undone in a row, halvings of the step
  at::Tensor step_;      // double; as set, before halvings
};

}  // namespace cairn::sync
