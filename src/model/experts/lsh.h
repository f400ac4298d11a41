#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kernels/row_groups.h"

namespace cairn::model {

// Compression of the rows that travel to experts by locality-sensitive hashing (LSH-MoE, Nie et al. 2024, arXiv:2411.08446). Similar rows
// for one expert are clustered; the expert sees their mean, and what a row differs from the mean is added to the result at home.
//
//   key(x)    = (h_1, ..., h_Q),  h_q = the vertex of the cross-polytope nearest to R_q^T x: the index of its largest |coordinate|, and the
//               sign                                                    R_q [d, d']: orthonormal columns
//   cluster j = the rows of one expert with one key                     N_j rows
//   c_j       = mean of its rows                                        travels; accumulated in fp32
//   y_i       = E(c_j) + (x_i - c_j)                                    E(c_j) travels back; x_i - c_j stays
//   backward, g = dL/dy:  G_j = sum of g_i travels;  the expert returns J^T G_j;  dL/dx_i = g_i + (J^T G_j - sum of g) / N_j
// A cluster of one row is exact. Keys and order are constants of the gradients. Without the residual: y_i = E(c_j), dL/dx_i = J^T G_j /
// N_j.

struct LshOptions {
  int64_t hashes = 6;     // Q
  int64_t hash_dim = 32;  // d'
  bool residual = true;
  bool operator==(const LshOptions&) const = default;
};

// Bits of a key: Q ceil(log2(2 d')).
int64_t lsh_key_bits(const LshOptions& options);
// Refuses hashes outside 1..16, a hash_dim above `embed` or below 1, and keys of more than 64 bits, with the numbers that would do.
void check(const LshOptions& options, int64_t embed);

// R_1 ... R_Q beside each other: fp32 [embed, Q d'], on the CPU. A function of the options and `embed` alone: the same on all ranks and in
// every run (Gram-Schmidt in double on counter-based random numbers).
at::Tensor lsh_rotations(int64_t embed, const LshOptions& options);

// The key of each row, as the bits of int64 [n]. Ties go to the lowest index, also on a GPU; a row of zeros has key 0. The keys of a row do
// not depend on the number of threads. `rotations` lie on the rows' device. (The length of a row does not change its key.)
at::Tensor lsh_keys(const at::Tensor& rows, const at::Tensor& rotations, const LshOptions& options);

// Rows in clusters: rows of one group (expert) with one key.
struct RowClusters {
  at::Tensor order;           // int64 [n]: the rows by group, then by key, else in their order
  at::Tensor cluster;         // int64 [n]: the cluster of each row
  at::Tensor starts;          // int64 [m + 1]: the first place in `order` of each cluster
  kernels::RowGroups groups;  // clusters per group
  int64_t size() const { return starts.size(0) - 1; }
};

// `rows` are sorted by group.
RowClusters cluster_rows(const at::Tensor& keys, const kernels::RowGroups& rows);

// Sums over clusters, in the order of the rows and in fp32 (fp64 for fp64): [m, d]. No atomics: bitwise the same for any threads.
at::Tensor cluster_sums(const at::Tensor& rows, const RowClusters& clusters);

// The four steps. Results have the dtype of their first argument.
at::Tensor centroids_of(const at::Tensor& rows, const RowClusters& clusters);  // c
at::Tensor restore_rows(const at::Tensor& results, const at::Tensor& rows, const at::Tensor& centroids, const RowClusters& clusters,
                        const LshOptions& options);                                      // y
at::Tensor centroid_gradients(const at::Tensor& gradient, const RowClusters& clusters);  // G
at::Tensor row_gradients(const at::Tensor& returned, const at::Tensor& gradient, const RowClusters& clusters, const LshOptions& options);

}  // namespace cairn::model
