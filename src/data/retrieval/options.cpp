#include "data/retrieval/options.h"

namespace cairn::data {

base::Schema<RetrievalOptions> retrieval_schema() {
  using O = RetrievalOptions;
  return {
      "retrieval",
      "Queries and passages (data.kind = \"retrieval\"): lengths, vectors and losses.",
      {{"query_tokens", &O::query_tokens, "Longest query in tokens; the rest is cut off.", base::between(1, 1 << 20)},
       {"passage_tokens", &O::passage_tokens, "Longest passage in tokens; the rest is cut off.", base::between(1, 1 << 20)},
       {"pooling", &O::pooling, "The vector of a text: the hidden state of its last token, the mean of all, or that of the first.",
        kRetrievalPoolingNames},
       {"pair_weight", &O::pair_weight, "Weight of the loss of each query's own pair.", base::at_least(0)},
       {"in_batch_weight", &O::in_batch_weight, "Weight of the loss over all passages of the batch.", base::at_least(0)},
       {"in_batch_loss", &O::in_batch_loss,
        "That loss: margin_mse and kl_list follow the scores of retrieval.teacher, labels takes every other passage for wrong.",
        kInBatchLossNames},
       {"teacher", &O::teacher, "A directory with the model that scores all pairs of a batch by single tokens; empty: none.", base::path()},
       {"teacher_ahead", &O::teacher_ahead, "Batches that the teacher is ahead.", base::between(1, 64)},
       {"teacher_timeout_s", &O::teacher_timeout_s, "Seconds after which a batch that the teacher does not finish is an error.",
        base::more_than(0)}}};
}

}  // namespace cairn::data
