// Where trainers and predictors run: the ranks, the device, the seed and the folder that they share.
#pragma once
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include <c10/core/Device.h>

#include "base/random.h"

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::task {

struct DeployerOptions {
  uint64_t seed = 0;               // of the order of examples and of all random numbers
  std::filesystem::path out = {};  // folder of metrics and checkpoints, with a folder per trainer; empty: nothing is written
  std::string device = "cpu";      // cpu or cuda
};

// One per rank, shared by any number of trainers and predictors. Every rank is a data-parallel replica (`dp` of them): it has all
// parameters and its part of the examples. Functions of plain tensors cannot be split over ranks; recipes train models that are.
class Deployer {
 public:
  explicit Deployer(comm::World& world, DeployerOptions options = {});  // the world is borrowed

  comm::World& world() const { return world_; }
  comm::Group& replicas() const;
  int dp() const;
  int replica() const;
  bool writes() const { return replica() == 0 && !options_.out.empty(); }
  const DeployerOptions& options() const { return options_; }
  at::Device device() const { return device_; }

  // Random numbers for a purpose; the same on all ranks.
  base::Random random(std::string_view purpose) const { return base::Random(options_.seed).for_purpose(purpose); }

  // Registers a trainer's name, which must be unique: it names the folder and keys the random numbers.
  void take_name(const std::string& name);
  std::filesystem::path folder(const std::string& name) const { return options_.out / name; }

 private:
  comm::World& world_;
  DeployerOptions options_;
  at::Device device_;
  std::set<std::string> names_;
};

}  // namespace cairn::task
