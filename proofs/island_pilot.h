// The pilot of all rules of islands: a small classifier on a mixture of Gaussians, trained on islands that are threads of this process, on
// the CPU or hosted together on one GPU.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "comm/local/local.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::study {

// Ten classes of six Gaussians each in 32 dimensions: means N(0, 0.75^2), noise 1.
class Mixture {
 public:
  static constexpr int64_t kClasses = 10, kModes = 6, kFeatures = 32;

  // As images: gratings, each class in a direction of its own and each example in a phase of its own, as strong as the noise.
  static constexpr int64_t kPixels = 16;

  Mixture(uint64_t seed, int64_t train, int64_t test, bool as_images = false, const at::Device& device = at::kCPU);

  struct Examples {
    at::Tensor x, y;
  };
  Examples pick(const std::vector<int64_t>& which) const;  // of the training examples
  const Examples& test() const { return test_; }
  const Examples& train() const { return train_; }
  // Which examples each island has: all shuffled and dealt out evenly (alpha 0), or, of `each` times as many as there are islands,
  // every class in shares drawn from Dirichlet(alpha), so that islands see very different classes, and more or fewer examples.
  std::vector<std::vector<int64_t>> dealt(int islands, double alpha, int64_t each, uint64_t seed) const;

 private:
  Examples train_, test_;
};

// A classifier with its gradients.
class PilotModel {
 public:
  virtual ~PilotModel() = default;

  const mesh::NamedTensors& parameters() const { return parameters_; }
  const mesh::NamedTensors& gradients() const { return gradients_; }
  const std::vector<sync::FullParameter>& whole() const { return whole_; }

  // Writes the mean gradient.
  virtual void learn(const Mixture::Examples& batch) = 0;
  virtual at::Tensor squares() const;  // of all gradients, summed
  struct Score {
    double loss = 0, accuracy = 0;
  };
  Score score(const Mixture::Examples& batch) const;

  at::Tensor flat() const;
  void put(const at::Tensor& flat);

 protected:
  void add(const std::string& name, const at::Tensor& start);
  virtual at::Tensor scores(const at::Tensor& x) const = 0;  // [examples, classes], to be exponentiated

  mesh::NamedTensors parameters_, gradients_;
  std::vector<sync::FullParameter> whole_;
};

// A perceptron with two hidden layers of 64, gradients by hand: a step costs microseconds, not the overhead of a framework.
class Perceptron final : public PilotModel {
 public:
  explicit Perceptron(uint64_t seed);
  void learn(const Mixture::Examples& batch) override;

 private:
  at::Tensor scores(const at::Tensor& x) const override;
};

// A vision transformer of two layers on images of a mixture (pilot_vit.cpp).
std::unique_ptr<PilotModel> make_small_vit(uint64_t seed, const at::Device& device);

// One run of the pilot.
struct PilotRun {
  uint64_t seed = 1;
  int islands = 8;
  int64_t steps = 1200;
  sync::SyncOptions sync = {};                                                      // all_reduce: every step
  std::function<std::unique_ptr<sync::Sync>(const sync::Replica&)> reference = {};  // in the place of the product's rule
  bool alone = false;                                                               // islands never talk; their first one is what counts
  double rate = 3e-3;
  bool constant_rate = false;
  double beta2 = 0.999, weight_decay = 0;
  std::optional<at::Device> vit = {};  // a vision transformer there in place of the perceptron
  bool same_start = true;
  double dirichlet = 0;  // alpha; 0: all islands see the same mixture
  int64_t each = 2000;   // examples of an island, with dirichlet
  bool finish = true;
  comm::LinkModel link = {};
  double step_s = 0;       // virtual time that a step takes; 0: none
  int64_t loss_every = 0;  // how often the model is scored on the way; 0: never
  std::function<void(comm::World&, sync::Sync&, int64_t step)> after = {};
  std::function<void(int64_t number)> before_collective = {};  // of any island
};

struct PilotEnd {
  std::vector<at::Tensor> own;                // by island: what it trains on
  std::vector<at::Tensor> global_parameters;  // by island: what it calls the model
  std::vector<at::Tensor> before_finish;      // by island: what it trained, before the end brought them together
  std::vector<std::exception_ptr> errors;
  std::vector<double> seconds;                                 // by island, virtual: of the steps
  std::vector<double> stalls;                                  // by island, virtual: spent waiting for others
  std::vector<std::vector<std::pair<double, double>>> losses;  // by island: step, test loss of its model
  std::vector<std::vector<int64_t>> bytes;                     // by island and step: sent
  comm::Ledger ledger;
};
PilotEnd run_pilot(const PilotRun& run);

// Of the test examples of the run's mixture.
PilotModel::Score score_of(const PilotRun& run, const at::Tensor& flat);
at::Tensor mean_of(const std::vector<at::Tensor>& all);

// Sync options by kind, with the usual names.
sync::SyncOptions diloco(int64_t every, double lr, double momentum);
sync::SyncOptions streaming(int64_t every, double lr, double momentum, int64_t delay, double blend, const std::string& wire);

}  // namespace cairn::study
