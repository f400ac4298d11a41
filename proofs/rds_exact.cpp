// RDS+, exactness: what is selected against the full matrix of scores, on several ranks, and whether a document's vector depends on what is
// computed beside it.
#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/search/top_k.h"
#include "data/selection/pool.h"
#include "evaluate/embed.h"
#include "evaluate/selection.h"
#include "kernels/aten.h"
#include "mesh/mesh.h"
#include "model/decoder/decoder.h"
#include "parallel/generate/sharded_encoder.h"
#include "proofs/rds_parts.h"
#include "proofs/selection_runs.h"
#include "snapshot/pretrained.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

void on_local_ranks(int ranks, const std::function<void(comm::World&)>& body) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run(body))
    if (error) std::rethrow_exception(error);
}

at::Tensor normal_rows(int64_t rows, int64_t dim, const base::Random& random) {
  const at::Tensor made = at::empty({rows, dim});
  random.fill_normal({made.mutable_data_ptr<float>(), static_cast<size_t>(made.numel())});
  return made;
}

at::Tensor unit_rows(const at::Tensor& rows) { return (rows / rows.norm(2, 1, true)).contiguous(); }

// The full matrix of scores, sorted for every query, and one pick after the other. Ascending.
std::vector<int64_t> turns_by_force(const at::Tensor& queries, const at::Tensor& rows, int64_t keep) {
  const int64_t dim = rows.size(1);
  std::vector<std::vector<data::Match>> orders;
  for (int64_t q = 0; q < queries.size(0); ++q) {
    std::vector<data::Match>& all = orders.emplace_back();
    for (int64_t i = 0; i < rows.size(0); ++i)
      all.push_back({i, data::scalar_product(queries.const_data_ptr<float>() + q * dim, rows.const_data_ptr<float>() + i * dim, dim)});
    std::ranges::sort(all, data::is_better);
  }
  std::vector<int64_t> picks;
  std::vector<size_t> at(orders.size(), 0);
  std::vector<bool> taken(static_cast<size_t>(rows.size(0)), false);
  for (size_t q = 0; static_cast<int64_t>(picks.size()) < keep; q = (q + 1) % orders.size()) {
    while (taken[static_cast<size_t>(orders[q][at[q]].id)]) ++at[q];
    picks.push_back(orders[q][at[q]].id);
    taken[static_cast<size_t>(picks.back())] = true;
  }
  std::ranges::sort(picks);
  return picks;
}

void selections_by_force(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int64_t kPool = 2000, kDim = 24;
  const base::Random random = base::Random(options.seed).for_purpose("exact");
  const at::Tensor rows = unit_rows(normal_rows(kPool, kDim, random.for_name("rows")));
  rows.narrow(0, kPool - 100, 100).copy_(rows.narrow(0, 0, 100));  // equal scores: the smaller id wins
  const auto source = data::rows_in_memory(rows);
  std::vector<int64_t> ids(kPool);
  std::iota(ids.begin(), ids.end(), 0);
  double wrong = 0, rescans = 0;
  std::mutex mutex;
  for (const int64_t m : {1, 7, 50}) {
    // Queries that agree empty each other's lists.
    const at::Tensor queries = unit_rows(0.05 * unit_rows(normal_rows(m, kDim, random.for_name("queries"))) +
                                         unit_rows(normal_rows(1, kDim, random.for_name("centre"))));
    for (const int64_t keep : {int64_t{10}, int64_t{600}, kPool}) {
      const std::vector<int64_t> expected = turns_by_force(queries, rows, keep);
      for (const int ranks : {1, 2, 4})
        on_local_ranks(ranks, [&](comm::World& world) {
          const evaluate::SelectionResult found = evaluate::select_documents(
              {.method = "rds", .keep = keep}, {.ids = ids, .vectors = source.get(), .tasks = {{"t", queries}}}, &world.everyone());
          const std::lock_guard lock(mutex);
          wrong += found.kept != expected;
          rescans += found.figures["rescans"].get<double>();
        });
    }
  }
  log.info("{} lists that ran out were searched again", rescans);
  findings.at_most("1, 7, 50 examples; 10, 600, all of 2,000 kept; 1, 2, 4 ranks: selections unlike those of the full matrix", 0, wrong, 0);
  findings.at_least("likewise: lists that ran out and were searched again, so that this is tried", 1, rescans, 1);
}

// A trained model without its head, in one precision.
struct TrainedEncoder {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::FlatWeights> weights;
  model::Buffers buffers;

  TrainedEncoder(const snapshot::Pretrained& opened, at::ScalarType precision) : model(model::make_encoder(opened.shape)) {
    const at::Tensor flat = at::empty({model->elements()});
    const mesh::NamedTensors views = model->layout().views(flat);
    opened.visit(model->parameters(), [&](size_t i, const at::Tensor& whole) { views[i].tensor.copy_(whole); });
    weights = std::make_unique<model::FlatWeights>(model->layout(), flat.to(precision));
    buffers = model->make_buffers(at::kFloat);
  }

  // The vectors of all documents on the ranks of a mesh.
  at::Tensor vectors(const data::Pool& pool, const evaluate::EmbedOptions& how, const mesh::Mesh& mesh = {}) const {
    at::Tensor found;
    std::mutex mutex;
    on_local_ranks(mesh.size(), [&](comm::World& world) {
      model::Buffers own = model->make_buffers(at::kFloat);
      const parallel::Plan plan = parallel::encoding_plan(mesh, *model, kExactTokens);
      parallel::ShardedEncoder encoder({.world = world, .model = *model, .plan = plan, .weights = *weights, .buffers = own});
      const at::Tensor mine = evaluate::embed_documents(pool, 0, pool.documents(), how, at::kCPU,
                                                        [&](const mesh::Batch& batch) { return encoder.vectors(batch); });
      encoder.finish();
      const std::lock_guard lock(mutex);
      if (encoder.is_first_with_vectors()) found = mine;
    });
    return found;
  }
};

double largest_gap(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

void vectors_alone_and_together(const ProofOptions& options, const fs::path& model, Findings& findings, base::Log& log) {
  std::vector<std::string> texts = built_in_stories(400, options.seed + 3, kExactTokens - 2);
  for (size_t i = 0; i < texts.size(); ++i) texts[i].resize(std::min(texts[i].size(), 1 + i * 7 % (kExactTokens - 2)));
  const fs::path file = fs::path(options.scratch) / "texts-of-all-lengths.jsonl";
  write_texts(file, texts);
  data::DataOptions data;
  data.path = file.string();
  data.tokenizer = data::TokenizerKind::bytes;
  const data::Pool pool = data::open_pool(data, {}, log);
  const snapshot::Pretrained opened = snapshot::open_pretrained(model.string(), log);
  const TrainedEncoder encoder(opened, at::kFloat);
  const evaluate::EmbedOptions one_by_one{.max_tokens = kExactTokens, .batch_tokens = 1},
      padded{.max_tokens = kExactTokens, .batch_tokens = 500}, packed{.max_tokens = kExactTokens, .batch_tokens = 480, .packs = true};
  const at::Tensor alone = encoder.vectors(pool, one_by_one);
  findings.at_most("vectors in batches with padding, off those of one document at a time, fp32", 0,
                   largest_gap(encoder.vectors(pool, padded), alone), 1e-5);
  findings.at_most("likewise packed into rows", 0, largest_gap(encoder.vectors(pool, packed), alone), 1e-5);
  findings.at_most("likewise on two ranks along cp", 0, largest_gap(encoder.vectors(pool, padded, mesh::parse_mesh("cp=2")), alone), 1e-5);
  const TrainedEncoder narrow(opened, at::kBFloat16);
  const auto narrow_gap = [&](const data::Pool& of) {
    const at::Tensor narrow_alone = narrow.vectors(of, one_by_one);
    return std::max(largest_gap(narrow.vectors(of, padded), narrow_alone), largest_gap(narrow.vectors(of, packed), narrow_alone));
  };
  log.info("vectors in batches and packed, in bf16, of documents of all lengths: off by {:.2e}", narrow_gap(pool));
  // A state in bf16 is off by up to 2^-9 of itself; over a document that averages out.
  std::erase_if(texts, [](const std::string& text) { return text.size() < kExactTokens / 2; });
  write_texts(file, texts);
  findings.at_most("likewise in batches and packed, in bf16, of documents of 12 tokens or more", 0,
                   narrow_gap(data::open_pool(data, {}, log)), 1e-3);
  // Constant states: the weights of each document must add up to one.
  const at::Tensor constant = normal_rows(1, 48, base::Random(options.seed).for_purpose("constant"))[0];
  double apart = 0;
  evaluate::embed_documents(pool, 0, pool.documents(), padded, at::kCPU, [&](const mesh::Batch& batch) {
    const at::Tensor& weights = batch.field("pool");
    const at::Tensor pooled = at::matmul(weights, constant.expand({weights.size(0), weights.size(2), 48}));
    apart = std::max(apart, largest_gap(pooled, constant.expand_as(pooled)) / constant.abs().max().item<double>());
    return pooled;
  });
  findings.at_most("weighted pooling of constant states, off that state", 0, apart, 1e-6);
}

}  // namespace

void prove_rds_exactness(const ProofOptions& options, const fs::path& model, Findings& findings, base::Log& log) {
  const at::NoGradGuard no_grad;
  selections_by_force(options, findings, log);
  vectors_alone_and_together(options, model, findings, log);
}

}  // namespace cairn::study
