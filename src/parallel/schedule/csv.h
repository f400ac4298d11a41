#pragma once
#include <string>
#include <string_view>

#include "parallel/schedule.h"

namespace cairn::parallel {

// A schedule as PyTorch writes the compute actions of one: a line for each rank, cells like 0F0, 0B0, 3I2, 3W2 with commas between
// them. Name and number of micro-batches are not in it.
std::string to_csv(const Schedule& schedule);

// The same read back; empty cells are ignored, and PyTorch's (0F4;7B0)OVERLAP_F_B is its two actions. Which rank runs which stage
// follows from where its actions are. The schedule is checked; every error names the file, and the line and cell if there is one.
Schedule read_schedule_csv(std::string_view text, std::string_view file);

}  // namespace cairn::parallel
