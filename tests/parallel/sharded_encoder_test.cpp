// Vectors of texts on several ranks are those of one rank.
#include "parallel/generate/sharded_encoder.h"

#include <mutex>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "parallel/layout/model_shard.h"

namespace cairn::parallel {
namespace {

model::DecoderShape encoder_shape() {
  return {.vocab = 31, .embed = 24, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 6, .mlp = 26, .length = 64};
}

at::Tensor encoder_weights(const model::Model& model) {
  const at::Tensor flat = at::empty({model.elements()});
  base::Random(5).fill_normal({flat.mutable_data_ptr<float>(), static_cast<size_t>(flat.numel())});
  return flat.mul_(0.4);
}

// Rows of 3 texts each where they are packed, else of one text; weights by position.
mesh::Batch texts(int64_t rows, int64_t length, bool packed, uint64_t seed) {
  mesh::Batch batch;
  batch.ids = at::arange(rows, at::kLong);
  at::Tensor tokens = at::empty({rows, length}, at::kLong), documents = at::zeros({rows, length}, at::kLong),
             positions = at::zeros({rows, length}, at::kLong), pool = at::zeros({rows, packed ? 3 : 1, length});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < length; ++i) {
      tokens[r][i] = static_cast<int64_t>(base::Random(seed).below(static_cast<uint64_t>(r * length + i), 31));
      const int64_t text = packed ? std::min<int64_t>(3 * i / length, 2) : 0, begin = (text * length + 2) / 3;
      documents[r][i] = text;
      positions[r][i] = packed ? i - begin : i;
      pool[r][text][i] = static_cast<double>(positions[r][i].item<int64_t>() + 1) / static_cast<double>(length);
    }
  batch.fields["tokens"] = {tokens};
  batch.fields["pool"] = {pool};
  if (packed) batch.fields["documents"] = {documents}, batch.fields["positions"] = {positions};
  return batch;
}

// The vectors of each batch on a mesh, as every rank that has them sees them.
std::vector<std::vector<at::Tensor>> on_mesh(const std::string& text, const std::vector<mesh::Batch>& batches) {
  const mesh::Mesh mesh = text.empty() ? mesh::Mesh{} : mesh::parse_mesh(text);
  std::vector<std::vector<at::Tensor>> found;
  std::mutex mutex;
  int first = 0;
  harness::on_ranks(mesh.size(), [&](comm::World& world) {
    const auto model = model::make_encoder(encoder_shape());
    const Plan plan = encoding_plan(mesh, *model, 64);
    const ModelShard shard = model_shard(*model, plan, world.rank());
    const auto weights = allocate_shards(*model, plan, shard, at::kFloat);
    const mesh::NamedTensors local = weights->layout().views(weights->flat()), whole = model->layout().views(encoder_weights(*model));
    for (size_t i = 0; i < local.size(); ++i)
      if (shard.parameters[i].here) local[i].tensor.copy_(cut_out(whole[i].tensor, shard.parameters[i].local_shard));
    model::Buffers buffers = model->make_buffers(at::kFloat);
    ShardedEncoder encoder({.world = world, .model = *model, .plan = plan, .weights = *weights, .buffers = buffers});
    std::vector<at::Tensor> mine;
    for (const mesh::Batch& batch : batches)
      if (const at::Tensor vectors = encoder.vectors(batch); vectors.defined()) mine.push_back(vectors);
    encoder.finish();
    const std::lock_guard lock(mutex);
    if (!mine.empty()) found.push_back(mine);
    first += encoder.is_first_with_vectors();
  });
  EXPECT_EQ(first, mesh.extent("dp")) << "one of each replica writes";
  return found;
}

TEST(ShardedEncoder, GivesTheVectorsOfOneRank) {
  for (const bool packed : {false, true}) {
    const std::vector<mesh::Batch> batches{texts(3, 21, packed, 1), texts(1, 6, packed, 2), texts(5, 13, packed, 3)};
    const std::vector<at::Tensor> expected = on_mesh("", batches).at(0);
    for (const char* mesh : {"dp=2", "tp=2", "pp=2", "pp=3", "cp=2", "pp=2,tp=2", "cp=2,tp=2", "pp=2,cp=2"}) {
      const auto found = on_mesh(mesh, batches);
      ASSERT_FALSE(found.empty()) << mesh;
      for (const auto& of_rank : found)
        for (size_t i = 0; i < batches.size(); ++i) {
          const float scale = expected[i].abs().max().item<float>();
          EXPECT_LT((of_rank[i] - expected[i]).abs().max().item<float>(), 1e-5f * scale) << mesh << (packed ? ", packed" : "");
        }
    }
  }
}

TEST(ShardedEncoder, RefusesMeshesThatDoNotFit) {
  const auto model = model::make_encoder(encoder_shape());
  EXPECT_NE(base::message_of([&] { encoding_plan(mesh::parse_mesh("ep=2"), *model, 8); }).find("not along ep"), std::string::npos);
  EXPECT_NE(base::message_of([&] { encoding_plan(mesh::parse_mesh("pp=90"), *model, 8); }).find("use at most pp="), std::string::npos);
}

}  // namespace
}  // namespace cairn::parallel
