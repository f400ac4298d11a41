#pragma once
#include <string>
#include <string_view>

#include "parallel/schedule.h"

namespace cairn::parallel {

// A schedule in the format of PyTorch's pipelining (compute actions only): a line for each rank, with cells like 0F0, 0B0, 3I2, 3W2 between
// commas. Name and number of micro-batches are not in it.
std::string to_csv(const Schedule& schedule);

// Reads that format. Empty cells are ignored, and PyTorch's (0F4;7B0)OVERLAP_F_B is its two actions. Which rank runs which stage
// follows from where its actions are. The schedule is checked; every error names the file, and the line and cell if there is one.
Schedule read_schedule_csv(std::string_view text, std::string_view file);

}  // namespace cairn::parallel
