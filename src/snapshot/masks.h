// Masks of pruned models on disk: masks.safetensors with a bit tensor NAME.mask for each pruned weight (model/bit_mask.h), beside the
// weights of a Hugging Face directory, or in the training folder of a snapshot.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/named_tensor.h"
#include "model/decoder/shape.h"
#include "model/decoder/sparse_options.h"

namespace cairn::base {
class Disk;
}

namespace cairn::snapshot {

inline constexpr const char* kMasksFile = "masks.safetensors";

// The weights that have a mask in a model's folder; empty: it is not pruned. Only the header is read.
std::vector<std::string> masked_weights(const std::string& folder);
// The masks in a model's folder. Throws corrupt_file for one that does not fit the model of this shape.
mesh::NamedTensors read_masks(const std::string& folder, const model::DecoderShape& shape);
void write_masks(const std::string& folder, const mesh::NamedTensors& masks, const base::Disk& disk);
// Equal for equal masks; of no masks 0.
uint64_t masks_checksum(const mesh::NamedTensors& masks);
// Copies masks into buffers of the same names. Throws bad_input if one is missing.
void load_masks(const mesh::NamedTensors& into, const mesh::NamedTensors& masks);

// How a run trains a pruned model, and the parameters that the forms of its weights have besides: in the training folder of its snapshots.
struct SparseState {
  model::SparseOptions options;
  mesh::NamedTensors factors;
};
inline constexpr const char* kSparseFile = "training/sparse.json";
std::string format_sparse(const model::SparseOptions& options);
// Empty where the run had no pruned weights.
std::optional<SparseState> read_sparse(const std::string& folder);
// Puts the weights that the layers multiply by in the place of the stored ones: pruned weights are exactly 0.
void merge_sparse(const mesh::NamedTensors& parameters, const SparseState& sparse, const mesh::NamedTensors& masks,
                  const model::DecoderShape& shape);

}  // namespace cairn::snapshot
