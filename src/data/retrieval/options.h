// The recipe's retrieval.* keys: queries, passages and how they are compared (data.kind = "retrieval").
#pragma once
#include <cstdint>
#include <string>

#include "base/schema.h"

namespace cairn::data {

enum class RetrievalPooling { last, mean, first };
inline constexpr base::EnumName<RetrievalPooling> kRetrievalPoolingNames[] = {
    {RetrievalPooling::last, "last"}, {RetrievalPooling::mean, "mean"}, {RetrievalPooling::first, "first"}};

enum class InBatchLoss { margin_mse, kl_list, labels };
inline constexpr base::EnumName<InBatchLoss> kInBatchLossNames[] = {
    {InBatchLoss::margin_mse, "margin_mse"}, {InBatchLoss::kl_list, "kl_list"}, {InBatchLoss::labels, "labels"}};

struct RetrievalOptions {
  int64_t query_tokens = 30;
  int64_t passage_tokens = 200;
  RetrievalPooling pooling = RetrievalPooling::last;
  double pair_weight = 1;
  double in_batch_weight = 0.75;
  InBatchLoss in_batch_loss = InBatchLoss::margin_mse;
  std::string teacher;  // a model directory; scores all pairs of a batch
  int64_t teacher_ahead = 2;
  double teacher_timeout_s = 600;

  bool operator==(const RetrievalOptions&) const = default;
};

base::Schema<RetrievalOptions> retrieval_schema();

}  // namespace cairn::data
