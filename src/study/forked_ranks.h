#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/link_model.h"

namespace cairn::comm {
class World;
}

namespace cairn::study {

// Runs `body` in one process for each rank, forked from this one, on sockets of this machine that `links` slows down (without: shared
// memory). Each process computes on one thread. Returns what each rank's body returned; throws what the first one threw. `scratch` is a
// folder for the results.
std::vector<std::vector<double>> on_forked_ranks(int ranks, const std::optional<comm::LinkModel>& links, const std::string& scratch,
                                                 const std::function<std::vector<double>(comm::World&)>& body);

}  // namespace cairn::study
