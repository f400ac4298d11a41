// A model opened to make vectors of texts.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/compute_options.h"
#include "comm/world.h"
#include "data/corpus/data_cache.h"
#include "data/tokenizer.h"
#include "evaluate/embed.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "parallel/generate/sharded_encoder.h"

namespace cairn::cli {

// One rank's part of an encoder: the model of a directory without its head.
class EmbeddingModel {
 public:
  // `mesh`: dp, tp, pp and cp over all ranks of the world. Texts have up to `length` tokens. Refuses an ensemble, and a model whose
  // tokenizer is missing.
  EmbeddingModel(const std::string& folder, comm::World& world, const mesh::Mesh& mesh, int64_t length, const ComputeOptions& on,
                 int ranks_here);

  at::Tensor encode(const mesh::Batch& batch) { return encoder_->vectors(batch); }
  parallel::ShardedEncoder& encoder() { return *encoder_; }
  at::Device device() const;
  int64_t dim() const { return dim_; }
  const mesh::Mesh& mesh() const { return plan_.mesh; }

 private:
  int64_t dim_ = 0;
  std::unique_ptr<model::Model> model_;
  parallel::Plan plan_;
  std::unique_ptr<model::FlatWeights> weights_;
  model::Buffers buffers_;
  std::unique_ptr<parallel::ShardedEncoder> encoder_;
};

// The directory of a model's files: of a run, its newest good snapshot.
std::string model_directory(const std::string& folder, base::Log& log);
// The tokens that the model reads at most.
int64_t model_length(const std::string& folder);
// A hash of the model's weights and shape.
std::string model_hash(const std::string& directory, const data::DataCache& cache);

// Refuses a mesh that the directory's model cannot be sharded over. Reads no tensors.
void check_embedding_mesh(const std::string& folder, const mesh::Mesh& mesh);

}  // namespace cairn::cli
