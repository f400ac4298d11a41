#pragma once
#include <cstdint>

namespace cairn::train {

struct Job;

// The learning rate of a step (from 1): the schedule's, times the factor of its draw. A warm-up rises to the rate of the step at which it
// ends, whatever the factors are on the way.
double learning_rate_of(const Job& job, int64_t step, double factor);

}  // namespace cairn::train
