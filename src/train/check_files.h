#pragma once
#include "base/recipe.h"
#include "train/train.h"

namespace cairn::train {

// Opens what a run will read, as far as that takes no time: the model it starts from, an adapter, the tokenizer, the beginning of the data,
// the snapshot it goes on from. Throws for what is wrong with them, before any rank is started or anybody waits.
void check_files(base::Recipe recipe, const Start& start);

}  // namespace cairn::train
