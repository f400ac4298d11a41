// The teacher of a batch's passages: scores of all queries of a rank against all passages of the batch.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "data/retrieval/dataset.h"
#include "train/start.h"

namespace cairn::base {
class Log;
}

namespace cairn::train {

// A frozen model in the directory `folder` that scores by late interaction (model/losses/retrieval.h), as a function. It reads the token
// ids of `texts`, which must outlive it: a directory with another tokenizer than `tokenizer` is refused. On a GPU it has a stream of its
// own.
PassageScores open_teacher(const std::string& folder, const data::RetrievalTexts& texts, const data::RetrievalOptions& options,
                           const data::Tokenizer& tokenizer, const at::Device& device, base::Log& log);

}  // namespace cairn::train
