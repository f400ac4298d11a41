// What a run that trains pools (model.adapter.kind = mos) says about them.
#pragma once
#include <string>

namespace cairn::train {

struct Job;
struct HeldOut;

// How large the pools are and how the layers share them, for the log at the start. Empty: the model has none.
std::string pools_text(const Job& job);

// Adds the norms of public and of private rows to the numbers of an evaluation. Collective.
void measure_pools(Job& job, HeldOut& into);

}  // namespace cairn::train
