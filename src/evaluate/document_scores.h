// Scores of documents by a model: how surprising they are, and how much a prompt helps with its answer.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/selection/pool.h"
#include "evaluate/evaluated_model.h"

namespace cairn::evaluate {

// perplexity: of the targets of a document. ifd: the loss of the answer after its prompt, divided by its loss alone (instruction-following
// difficulty); near 1 the prompt did not help.
std::vector<std::string> document_score_names();
bool is_document_score(const std::string& name);

// The scores of documents first .. first + count - 1. Of each, at most `max_tokens` tokens are read. Refuses documents that cannot have the
// score (nothing but a prompt, or no prompt), and lists them.
std::vector<float> document_scores(const EvaluatedModel& evaluated, const data::Pool& pool, const std::string& name, int64_t first,
                                   int64_t count, int64_t max_tokens, int64_t batch, const OnProgress& progress = {});

}  // namespace cairn::evaluate
