#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::sync {

// Names a batch: who asks for the same key again, at another point, gets the same samples and the same random numbers.
struct BatchKey {
  int64_t iteration = 0;
  int64_t device = 0;  // whose data
  int64_t part = 0;    // of several batches of one iteration
  friend bool operator==(const BatchKey&, const BatchKey&) = default;
};

// Who moves which elements of the point, and where to: the ranges of all players are the whole point.
struct Player {
  std::string name;
  int64_t begin = 0, end = 0;
  bool maximises = false;
  double scale = 1;  // of the step
};

// A problem whose solver chooses the points at which it is looked at: minimisation, a saddle point, a game. For it there is no order of
// backward and step that hooks could be put around (sync.h); it is asked, and remembers nothing that was asked.
class VariationalProblem {
 public:
  virtual ~VariationalProblem() = default;
  virtual int64_t elements() const = 0;
  virtual std::vector<Player> players() const = 0;
  // Whether keys matter: without, all keys name the device's whole data.
  virtual bool stochastic() const = 0;
  // `into` becomes, for each player's elements, the gradient of that player's own loss on this device's batch. Both are flat, contiguous
  // and of one type, float or double as the solver was started; the point is not to be changed.
  virtual void gradients(const at::Tensor& point, const BatchKey& batch, const at::Tensor& into) = 0;
};

// Refuses players that overlap, leave elements out, or have no scale.
void check_players(const std::vector<Player>& players, int64_t elements);

// F at the point: each player's gradient with the sign that its step must have, times its scale. Solutions are where F is 0.
at::Tensor value_at(VariationalProblem& problem, const at::Tensor& point, const BatchKey& batch);

}  // namespace cairn::sync
