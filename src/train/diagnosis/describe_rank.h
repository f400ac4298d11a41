#pragma once

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Tells this rank's flight recorder what the agent must know: the run directory, the names of the groups, and which ranks do the same work.
void describe_rank(Job& job, comm::World& world);

}  // namespace cairn::train
