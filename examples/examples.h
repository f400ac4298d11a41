// Five ways to train, each from three functions in one short file. `example NAME [SEED [RANKS]]` runs one.
#pragma once
#include <string>
#include <vector>

namespace cairn::task {
class Deployer;
struct TrainStep;
}  // namespace cairn::task

namespace cairn::examples {

// What an example reached, next to what it is measured against and what was to be reached: set before it was run.
struct Outcome {
  std::string measure;
  double reached = 0;
  double baseline = 0;
  double target = 0;
  bool at_most = true;  // the target is an upper bound; otherwise a lower one
  bool met() const { return at_most ? reached <= target : reached >= target; }
};

struct Example {
  std::string name, about;
  Outcome (*run)(task::Deployer&, bool quick);  // quick: a second's worth, which does not reach the target
};
const std::vector<Example>& examples();

Outcome language_model(task::Deployer& deployer, bool quick);
Outcome maml(task::Deployer& deployer, bool quick);
Outcome ppo(task::Deployer& deployer, bool quick);
Outcome private_sgd(task::Deployer& deployer, bool quick);
task::TrainStep private_step();  // of private_sgd: gradients clipped to kPrivateClip, noise of kPrivateNoise * kPrivateClip
inline constexpr double kPrivateClip = 1, kPrivateNoise = 1;
Outcome federated_averaging(task::Deployer& deployer, bool quick);

}  // namespace cairn::examples
