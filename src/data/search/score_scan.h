// The inner loops of search over a tile of scores, for the vectors of this machine.
#pragma once
#include <cstdint>
#include <vector>

namespace cairn::data {

// For each of `rows` rows of `columns` scores: raises best[row] to the largest score - offset[column], where it is larger, notes
// first_column + column in which[row], and raises second[row] to the largest of all others. Of equal scores the first is best.
void raise_to_largest(const float* scores, int64_t rows, int64_t columns, const float* offset, int32_t first_column, float* best,
                      float* second, int32_t* which);

// Appends the columns of one row whose score is at least `bound`.
void columns_from(const float* scores, int64_t columns, float bound, std::vector<int32_t>& into);

// The largest of them; columns >= 1.
float largest_of(const float* scores, int64_t columns);

// into[i] += x[i] rounded to a multiple of a power of two: magic is 1.5 * 2^52 times it, so that these sums are exact.
void add_rounded(const float* x, int64_t count, double magic, double* into);

}  // namespace cairn::data
