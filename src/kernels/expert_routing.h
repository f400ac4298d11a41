// Which experts a row goes to, and rows in the order of their experts.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kernels/row_groups.h"

namespace cairn::kernels {

// The k largest of each row, the largest first; of equal ones the lower index first. Returns int64 [rows, k]. scores [rows, n] fp32 or
// double; a NaN is smaller than every number.
at::Tensor top_k(const at::Tensor& scores, int64_t k);

// Slots sorted by expert: slot i = token * k + place goes to expert ids[token][place].
struct ExpertOrder {
  at::Tensor slots;   // int64 [tokens * k]: the slot at each place of the sorted list; slots of one expert keep their order
  at::Tensor places;  // int64 [tokens, k]: the inverse, the place of each slot
  RowGroups groups;   // slots of each expert
};
ExpertOrder order_by_expert(const at::Tensor& ids /*int64 [tokens, k]*/, int64_t experts);

// Row t is the sum over k of weights[t, k] rows[places[t, k]], in the order of k; without weights a plain sum. A new tensor [tokens, d] in
// the rows' precision. places int64 [tokens, k], weights [tokens, k] or undefined.
at::Tensor gather_sum(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& weights = {});

namespace reference {
at::Tensor gather_sum(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& weights = {});
at::Tensor top_k(const at::Tensor& scores, int64_t k);
ExpertOrder order_by_expert(const at::Tensor& ids, int64_t experts);
}  // namespace reference

}  // namespace cairn::kernels
