// The trained parameters of a run, whole, as a value: carried from one training of a study to the next.
#pragma once
#include <string>

#include "mesh/named_tensor.h"

namespace cairn::train {
struct Job;
}

namespace cairn::study {

// By name, fp32 on the CPU, on every rank. Collective.
mesh::NamedTensors take_trained(train::Job& job);
// Collective. Every tensor must be a trained parameter of the job.
void put_trained(train::Job& job, const mesh::NamedTensors& weights);

void write_weights(const std::string& path, const mesh::NamedTensors& weights);
// Refuses damaged files.
mesh::NamedTensors read_weights(const std::string& path);

}  // namespace cairn::study
