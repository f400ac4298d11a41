#pragma once
#include <vector>

#include "train/report/report.h"

namespace cairn::train {

struct Job;

// What the model writes now: log.samples texts that begin with log.prompt. All ranks call it; rank 0 gets the texts.
std::vector<ReportData::Sample> write_samples(Job& job);

}  // namespace cairn::train
