#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::sync {

// Names a batch. The same key at another point gives the same samples and the same random numbers.
struct BatchKey {
  int64_t iteration = 0;
  int64_t device = 0;  // whose data
  int64_t part = 0;    // tells several batches of one iteration apart
  friend bool operator==(const BatchKey&, const BatchKey&) = default;
};

// A player of a game: it controls the elements [begin, end) of the point. The ranges of all players cover the point.
struct Player {
  std::string name;
  int64_t begin = 0, end = 0;
  bool maximises = false;
  double scale = 1;  // of the player's step
};

// A variational inequality: minimisation, a saddle point, a game. Its solver chooses the points at which gradients are taken, so the hooks
// of Sync (sync.h), which surround one backward and one step, do not fit. Implementations are stateless between calls.
class VariationalProblem {
 public:
  virtual ~VariationalProblem() = default;
  virtual int64_t elements() const = 0;
  virtual std::vector<Player> players() const = 0;
  // Whether gradients depend on the key. False: every key names the device's full data.
  virtual bool stochastic() const = 0;
  // Writes to `into`, for each player's elements, the gradient of that player's own loss on this device's batch. `point` and `into` are
  // flat, contiguous and of one type, float or double. `point` must not be changed.
  virtual void gradients(const at::Tensor& point, const BatchKey& batch, const at::Tensor& into) = 0;
};

// Refuses players that overlap, leave elements uncovered, or have no positive scale.
void check_players(const std::vector<Player>& players, int64_t elements);

// The operator F at a point: each player's gradient, negated if the player maximises, times its scale. Solutions satisfy F = 0.
at::Tensor value_at(VariationalProblem& problem, const at::Tensor& point, const BatchKey& batch);

}  // namespace cairn::sync
