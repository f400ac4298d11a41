#include "sync/variational_problem.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::sync {

void check_players(const std::vector<Player>& players, int64_t elements) {
  std::vector<Player> sorted = players;
  std::sort(sorted.begin(), sorted.end(), [](const Player& a, const Player& b) { return a.begin < b.begin; });
  int64_t next = 0;
  for (const Player& player : sorted) {
    if (player.begin < next)
      base::fail_input("player \"{}\": elements {} to {} belong to another player too", player.name, player.begin,
                       std::min(next, player.end));
    if (player.begin > next) base::fail_input("elements {} to {} belong to no player", next, player.begin);
    if (player.end <= player.begin) base::fail_input("player \"{}\" has no elements", player.name);
    if (!(player.scale > 0)) base::fail_input("player \"{}\": lr_scale = {}: must be above 0", player.name, player.scale);
    next = player.end;
  }
  if (next != elements) base::fail_input("elements {} to {} belong to no player", next, elements);
}

at::Tensor value_at(VariationalProblem& problem, const at::Tensor& point, const BatchKey& batch) {
  at::Tensor value = at::empty_like(point);
  problem.gradients(point, batch, value);
  for (const Player& player : problem.players()) {
    const double factor = player.maximises ? -player.scale : player.scale;
    if (factor != 1) value.slice(0, player.begin, player.end).mul_(factor);
  }
  return value;
}

}  // namespace cairn::sync
