#pragma once
#include "base/recipe.h"
#include "train/train.h"

namespace cairn::train {

// Opens the files that a run will read, before any rank is started, and throws if one is wrong: the pretrained model, an adapter, the
// tokenizer, the first part of the data, and the snapshot to resume from. It reads only as much as takes no noticeable time.
void check_files(base::Recipe recipe, const Start& start);

}  // namespace cairn::train
