// Where trainers and predictors run: the ranks, the device, the seed and the folder that they share.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include <c10/core/Device.h>

#include "base/random.h"
#include "mesh/mesh.h"

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::mesh {
class DTensorAxis;
}

namespace cairn::task {

struct DeployerOptions {
  uint64_t seed = 0;               // of the order of examples and of all random numbers
  std::filesystem::path out = {};  // folder of metrics and checkpoints, with a folder per trainer; empty: nothing is written
  std::string device = "cpu";      // cpu or cuda
  int tp = 1;                      // ranks that split the parameters of one replica (tensor parallelism); divides the number of ranks
};

// One per rank, shared by any number of trainers and predictors. Ranks form `dp` data-parallel replicas of `tp` ranks each. A replica has
// all parameters and its part of the examples. Along tp, the ranks of a replica see the same examples, and the task's functions compute
// with DTensors (mesh/dtensor.h): they are written for one process, and two rules say where parameters lie (tensor_rules.h).
class Deployer {
 public:
  explicit Deployer(comm::World& world, DeployerOptions options = {});  // the world is borrowed

  comm::World& world() const { return world_; }
  comm::Group& replicas() const;  // this rank's counterparts in all replicas
  int dp() const;
  int replica() const;
  int tp() const { return options_.tp; }
  const std::shared_ptr<mesh::DTensorAxis>& tensor_axis() const { return tensor_axis_; }  // null: tp is 1
  const mesh::Mesh& mesh() const { return mesh_; }                                        // dp and tp
  bool writes() const;
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
  mesh::Mesh mesh_;
  std::shared_ptr<mesh::DTensorAxis> tensor_axis_;
  std::set<std::string> names_;
};

}  // namespace cairn::task
