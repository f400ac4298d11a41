// Vectors of documents: reading tokens, batches, the model, pooling and the file of the index, against passes of the same model over full
// batches of random tokens. Tokens/s; padding does not count.
#include <chrono>
#include <filesystem>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "bench/select_parts.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/selection/embedding_index.h"
#include "data/selection/pool.h"
#include "evaluate/embed.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "model/decoder/decoder.h"
#include "parallel/generate/sharded_encoder.h"

namespace cairn::study {
namespace {

constexpr int kEmbeddingRounds = 5;
constexpr double kEmbeddingGoal = 0.7;
constexpr int64_t kDocumentTokens = 256, kTokensOfPass = 4096, kDocumentsOfWrite = 512;

// 5M parameters on a CPU, 130M on a GPU.
model::DecoderShape encoder_shape(bool on_gpu) {
  model::DecoderShape shape{.vocab = 257, .embed = 256, .layers = 6, .heads = 4, .kv_heads = 4, .head_dim = 64, .mlp = 704};
  if (on_gpu) shape = {.vocab = 257, .embed = 896, .layers = 12, .heads = 14, .kv_heads = 14, .head_dim = 64, .mlp = 2432};
  shape.length = kDocumentTokens;
  return shape;
}

class EmbeddingBench {
 public:
  EmbeddingBench(comm::World& world, const data::Pool& pool, bool on_gpu)
      : pool_(pool), device_(on_gpu ? at::kCUDA : at::kCPU), model_(model::make_encoder(encoder_shape(on_gpu))) {
    plan_ = parallel::encoding_plan({}, *model_, kDocumentTokens);
    const at::Tensor flat = at::empty({model_->elements()});
    base::Random(1).fill_normal({flat.mutable_data_ptr<float>(), static_cast<size_t>(flat.numel())});
    flat.mul_(0.02);
    weights_ = std::make_unique<model::FlatWeights>(model_->layout(), flat.to(device_, on_gpu ? at::kBFloat16 : at::kFloat));
    buffers_ = model_->make_buffers(at::TensorOptions().dtype(at::kFloat).device(device_));
    encoder_ = std::make_unique<parallel::ShardedEncoder>(
        parallel::ShardedModel{.world = world, .model = *model_, .plan = plan_, .weights = *weights_, .buffers = buffers_});
  }

  double embedding(const std::filesystem::path& folder) {
    const evaluate::EmbedOptions how{.max_tokens = kDocumentTokens, .batch_tokens = kTokensOfPass};
    int64_t tokens = 0;
    for (int64_t i = 0; i < pool_.documents(); ++i) tokens += std::min(pool_.tokens_in(i), kDocumentTokens);
    const auto began = clock_.now();
    const data::EmbeddingIndex index(
        folder, {.model = "m", .text = "t", .pooling = "p", .dim = encoder_shape(device_.is_cuda()).embed}, pool_.documents(),
        [this](int64_t first, int64_t count) { return pool_.digest_of(first, count); }, "--index");
    for (size_t shard = 0; shard < index.shards().size(); ++shard) {
      data::EmbeddingIndex::Writer writer = index.write(shard);
      const auto& [first, count] = index.shards()[shard];
      for (int64_t some = 0; writer.done() < count;) {
        some = std::min(kDocumentsOfWrite, count - writer.done());
        writer.append(evaluate::embed_documents(pool_, first + writer.done(), some, how, device_,
                                                [&](const mesh::Batch& batch) { return encoder_->vectors(batch); }));
      }
      writer.finish();
    }
    return static_cast<double>(tokens) / std::chrono::duration<double>(clock_.now() - began).count();
  }

  double forward_alone() {
    const at::NoGradGuard no_grad;
    const int64_t rows = kTokensOfPass / kDocumentTokens, passes = device_.is_cuda() ? 200 : 12;
    mesh::Batch batch;
    batch.ids = at::arange(rows, at::kLong);
    batch.fields["tokens"] = {at::randint(257, {rows, kDocumentTokens}, at::TensorOptions().dtype(at::kLong).device(device_))};
    batch.fields["pool"] = {at::zeros({rows, 1, kDocumentTokens}, at::TensorOptions().device(device_))};
    double sum = encoder_->vectors(batch).sum().item<double>();
    const auto began = clock_.now();
    for (int64_t pass = 0; pass < passes; ++pass) sum += encoder_->vectors(batch).sum().item<double>();
    const double seconds = std::chrono::duration<double>(clock_.now() - began).count();
    return sum > 1 ? 0 : static_cast<double>(passes * kTokensOfPass) / seconds;
  }

 private:
  const data::Pool& pool_;
  at::Device device_;
  std::unique_ptr<model::Model> model_;
  parallel::Plan plan_;
  std::unique_ptr<model::FlatWeights> weights_;
  model::Buffers buffers_;
  std::unique_ptr<parallel::ShardedEncoder> encoder_;
  base::RealClock clock_;
};

}  // namespace

std::vector<BenchRow> bench_embedding(const BenchOptions& options, base::Log& log) {
  if (!options.only.empty() && options.only != "embedding") return {};
  const bool on_gpu = kernels::can_use_cuda();
  data::DataOptions data;
  data.path = options.data;
  data.tokenizer = data::TokenizerKind::bytes;
  data.stories_bytes = on_gpu ? 40'000'000 : 150'000;
  const data::Pool pool = data::open_pool(data, {}, log);
  std::vector<double> ours, peer;
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         EmbeddingBench bench(world, pool, on_gpu);
         for (int round = 0; round < kEmbeddingRounds; ++round) {
           const auto embed = [&] {
             const std::filesystem::path folder = std::filesystem::path(options.scratch) / fmt::format("index-{}", round);
             ours.push_back(bench.embedding(folder));
             std::filesystem::remove_all(folder);
           };
           if (round % 2 == 0) embed();
           peer.push_back(bench.forward_alone());
           if (round % 2 == 1) embed();
           log.info("embedding: {:.0f} tokens/s, the forward pass alone {:.0f}", ours.back(), peer.back());
         }
       }))
    if (error) std::rethrow_exception(error);
  return {compare(fmt::format("vectors of {} documents against the forward pass alone", pool.documents()), ours, peer, "tokens/s",
                  Better::higher, kEmbeddingGoal)};
}

}  // namespace cairn::study
