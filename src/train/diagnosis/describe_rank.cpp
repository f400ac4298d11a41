#include "train/diagnosis/describe_rank.h"

#include <filesystem>

#include "comm/flight/recorder.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "train/job.h"

namespace cairn::train {

void describe_rank(Job& job, comm::World& world) {
  comm::FlightRecorder* const flight = world.transport().recorder();
  job.instruments.flight = flight;
  if (!flight) return;
  const mesh::Mesh& mesh = job.config.plan.mesh;
  for (const std::string& axis : mesh::axis_names())
    if (mesh.extent_at(world.rank(), axis) > 1) flight->name_group(mesh.peers(world.rank(), axis), axis);
  // Stages of a pipeline, and islands, may have different work.
  const auto stage = static_cast<uint64_t>(mesh.coordinate(world.rank(), "pp")),
             island = static_cast<uint64_t>(mesh.coordinate(world.rank(), "island"));
  flight->set_role(1 + stage + (island << 32));
  const bool reads = job.config.settings.diagnosis.enabled && !job.config.out.empty();
  if (reads) flight->set_run(std::filesystem::absolute(job.config.out).string());
}

}  // namespace cairn::train
