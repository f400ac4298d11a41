#include "cli/text/embedding_model.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "data/selection/framed_file.h"
#include "evaluate/ensemble/ensemble_file.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "model/decoder/decoder.h"
#include "parallel/layout/model_shard.h"
#include "snapshot/pretrained.h"

namespace cairn::cli {
namespace {

void refuse_ensemble(const std::string& folder) {
  if (evaluate::is_ensemble(folder)) base::fail_input("--model {}: an ensemble has no vectors of its own: name one of its experts", folder);
}

}  // namespace

EmbeddingModel::EmbeddingModel(const std::string& folder, comm::World& world, const mesh::Mesh& mesh, int64_t length,
                               const ComputeOptions& on, int ranks_here) {
  refuse_ensemble(folder);
  const at::Device device = kernels::device_from_name(on.device);
  if (on.precision == "bf16" && device.is_cpu())
    base::fail_input("--precision bf16: is for a GPU (--device cuda); a CPU computes in fp32: leave it out");
  const snapshot::Pretrained opened =
      snapshot::open_pretrained(folder, world.log(), static_cast<double>(ranks_here) / std::max(1, world.size()));
  snapshot::check_reads_text(folder, opened.shape);
  model::DecoderShape shape = opened.shape;
  shape.table_length = std::min(shape.length, length);
  model_ = model::make_encoder(shape);
  plan_ = parallel::encoding_plan(mesh, *model_, length);
  const parallel::ModelShard shard = parallel::model_shard(*model_, plan_, world.rank());
  weights_ = parallel::allocate_shards(*model_, plan_, shard, at::kFloat);
  const mesh::NamedTensors local = weights_->layout().views(weights_->flat());
  opened.visit(model_->parameters(), [&](size_t i, const at::Tensor& whole) {
    if (!shard.parameters[i].here) return;
    local[i].tensor.copy_(parallel::cut_out(whole, shard.parameters[i].local_shard));
    snapshot::check_finite(local[i].tensor, opened.weights.path(), local[i].name);
  });
  if (device.is_cuda()) {
    std::vector<mesh::Placement> placements;
    for (size_t i = 0; i < model_->parameters().size(); ++i) placements.push_back(weights_->placement({static_cast<int32_t>(i)}));
    const at::Tensor there = weights_->flat().to(device, on.precision == "bf16" ? at::kBFloat16 : at::kFloat);
    weights_ = std::make_unique<model::FlatWeights>(weights_->layout(), there, std::move(placements));
  }
  buffers_ = model_->make_buffers(weights_->flat().options().dtype(at::kFloat));
  dim_ = shape.embed;
  encoder_ = std::make_unique<parallel::ShardedEncoder>(
      parallel::ShardedModel{.world = world, .model = *model_, .plan = plan_, .weights = *weights_, .buffers = buffers_});
}

at::Device EmbeddingModel::device() const { return weights_->flat().device(); }

std::string model_directory(const std::string& folder, base::Log& log) {
  refuse_ensemble(folder);
  return snapshot::open_pretrained(folder, log, 0).path;
}

int64_t model_length(const std::string& folder) { return snapshot::read_outline(folder).shape.length; }

std::string model_hash(const std::string& directory, const data::DataCache& cache) {
  std::vector<std::filesystem::path> files;
  for (const auto& one : std::filesystem::directory_iterator(directory)) {
    const std::string ending = one.path().extension().string(), name = one.path().filename().string();
    if (one.is_regular_file() && (ending == ".safetensors" || ending == ".bin" || name == "config.json")) files.push_back(one.path());
  }
  std::ranges::sort(files);
  base::Checksum sum;
  for (const auto& file : files) {
    const std::string line = fmt::format("{} {:016x}\n", file.filename().string(), cache.content_hash(file.string()));
    sum.add(std::as_bytes(std::span(line)));
  }
  return data::hash_text(sum.value());
}

void check_embedding_mesh(const std::string& folder, const mesh::Mesh& mesh) {
  refuse_ensemble(folder);
  const model::DecoderShape shape = snapshot::read_outline(folder).shape;
  parallel::encoding_plan(mesh, *model::make_encoder(shape), shape.length);
}

}  // namespace cairn::cli
