#pragma once
#include <vector>

#include "train/report/report.h"

namespace cairn::train {

struct Job;

// Generates log.samples texts that begin with log.prompt. Collective; rank 0 gets the texts.
std::vector<ReportData::Sample> write_samples(Job& job);

}  // namespace cairn::train
