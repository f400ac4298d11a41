// Scores of documents by a model: how surprising they are, and how much a prompt helps with its answer.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/selection/pool.h"
#include "evaluate/evaluated_model.h"

namespace cairn::comm {
class Group;
}

namespace cairn::evaluate {

// perplexity: of the targets of a document. ifd: the loss of the answer after its prompt, divided by its loss alone (instruction-following
// difficulty); near 1 the prompt did not help.
std::vector<std::string> document_score_names();
bool is_document_score(const std::string& name);

struct DocumentScoreOptions {
  int64_t max_tokens = 2048;  // of a document; the rest is not read
  int64_t batch = 8;          // texts of one forward pass
};

// The scores of all documents of the pool, on every rank of `ranks`, each of which calls it with the whole model; null: one process. Ranks
// take turns with blocks of documents, and a pass never mixes two blocks, so the number of ranks changes no bit of a score. Refuses
// documents that cannot have the score (nothing but a prompt, or no prompt), and lists them; the same on all ranks.
std::vector<float> document_scores(const EvaluatedModel& evaluated, const data::Pool& pool, const std::string& name,
                                   const DocumentScoreOptions& options, comm::Group* ranks = nullptr, const OnProgress& progress = {});

}  // namespace cairn::evaluate
