// Labelled points for supernets: the colours of a cube that is cut into 6 x 6 x 6 cells, each of which has one of six colours at random. A
// point of [-1, 1]^3 is a picture of one pixel with the channels (x, sin pi x, cos pi x).
#pragma once
#include <cstdint>
#include <filesystem>

#include "base/recipe.h"
#include "proofs/layout_run.h"

namespace cairn::study {

struct ProofOptions;

// Writes images.npy, labels.npy and a test set.
void write_cube_points(const std::filesystem::path& folder, uint64_t seed, int64_t points, int64_t test_points);

// Three stages of residual layers 32 -> 32 e -> 32, which subnets may have 1 to 3 of, with e of 1, 2 or 4, on the points in `folder`.
base::Recipe cube_recipe(const ProofOptions& options, const std::filesystem::path& folder, const Assignments& sets);

// Small pictures: generated textures, or those of --data where it is a folder.
base::Recipe small_pictures(const ProofOptions& options, const Assignments& sets);

}  // namespace cairn::study
