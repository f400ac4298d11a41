#pragma once
#include <string>
#include <vector>

#include "train/state/full_state.h"

namespace cairn::train {

struct Job;

// Sections of a snapshot, and where their tensors go on this rank.
struct SectionToLoad {
  std::string section;
  std::vector<StateTensor> into;
};

// Loads sections that several ranks have written (snapshot/rank_part.h), in whatever layout. Together the ranks of the step group read
// every byte once, check it, and send each other what they need; no rank has a whole tensor of another one. Refuses sections that hold
// other tensors. Collective.
struct LoadedTogether {
  std::string damage;  // which bytes are damaged, the same on all ranks, empty for none; after damage the tensors have any values
  int64_t bytes = 0;   // of the tensors
  int64_t read = 0;    // from the files, by all ranks
};
LoadedTogether load_together(const Job& job, const snapshot::OpenSnapshot& from, const std::vector<SectionToLoad>& sections);

}  // namespace cairn::train
