#include "task/deployer.h"

#include <algorithm>

#include <ATen/Context.h>

#include "base/check.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "mesh/dtensor.h"

namespace cairn::task {
namespace {

at::Device device_from_name(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda") base::fail_input("device \"{}\": must be cpu or cuda", name);
  if (!at::hasCUDA()) base::fail_input("device \"cuda\": no usable GPU was found, or this build has no CUDA (CAIRN_PRESET=cuda)");
  return kernels::device_from_name(name);
}

}  // namespace

Deployer::Deployer(comm::World& world, DeployerOptions options)
    : world_(world), options_(std::move(options)), device_(device_from_name(options_.device)) {
  if (options_.tp < 1 || world.size() % options_.tp != 0)
    base::fail_input("tp = {}: there are {} ranks, which are not whole replicas of so many. Use a divisor of {}.", options_.tp,
                     world.size(), world.size());
  mesh_.axes = {{"dp", world.size() / options_.tp}, {"tp", options_.tp}};
  if (options_.tp > 1) tensor_axis_ = std::make_shared<mesh::DTensorAxis>(world, "tp", mesh_.peers(world.rank(), "tp"));
}

comm::Group& Deployer::replicas() const { return world_.group(mesh_.peers(world_.rank(), "dp")); }
int Deployer::dp() const { return mesh_.extent("dp"); }
int Deployer::replica() const { return mesh_.coordinate(world_.rank(), "dp"); }
bool Deployer::writes() const { return world_.rank() == 0 && !options_.out.empty(); }

void Deployer::take_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), allowed))
    base::fail_input("a trainer is called \"{}\": use a-z, A-Z, 0-9, '_' and '-' only, because its folder has that name", name);
  if (!names_.insert(name).second)
    base::fail_input("two trainers of one deployer are called \"{}\": give each a name of its own (TrainerOptions::name)", name);
}

}  // namespace cairn::task
