// Traffic of blocks while they compute: see model/decoder/residual_stream.h and branch.h, model/context/attention.h,
// and parallel/pipeline/stage_edges.h.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "kernels/attention.h"
#include "model/context/attention.h"
#include "model/families/config.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/activations/slices.h"
#include "parallel/batch/context_batch.h"
#include "parallel/dtensor_block.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pipeline/stage_edges.h"
#include "planner/traffic/table.h"

namespace cairn::planner {
namespace {

using model::BlockOp;

enum class BlockKind { embedding, branch, branch_whole, norm, head, other };

bool has(const model::Card& card, BlockOp::Kind kind) {
  return std::any_of(card.operations.begin(), card.operations.end(), [&](const BlockOp& one) { return one.kind == kind; });
}

// From the cards of decoder blocks (model/decoder/blocks.h). Other blocks are unknown.
BlockKind kind_of(const model::Card& card) {
  if (card.operations.empty() || card.reads.empty() || card.writes.size() != 1) return BlockKind::other;
  if (card.operations.front().kind == BlockOp::Kind::lookup) return BlockKind::embedding;
  const bool norm_first = card.operations.front().kind == BlockOp::Kind::norm, product = has(card, BlockOp::Kind::product);
  if (norm_first && !product) return BlockKind::norm;
  if (norm_first) return card.writes.front() == "logits" ? BlockKind::head : BlockKind::branch;
  const bool layer = card.name.ends_with(".attention") || card.name.ends_with(".mlp");
  return layer && product ? BlockKind::branch_whole : BlockKind::other;
}

// Whether every rank along tp has the whole stream (model::TokenLayout::replicated).
bool whole_stream(const model::Model& model) {
  return std::any_of(model.blocks().begin(), model.blocks().end(),
                     [](const auto& block) { return kind_of(block->card()) == BlockKind::branch_whole; });
}

// The width of the residual stream; 0: this model has none.
int64_t stream_width(const model::Model& model) {
  for (const auto& block : model.blocks())
    if (kind_of(block->card()) == BlockKind::embedding)
      return model.parameters()[static_cast<size_t>(block->card().operations.front().parameters.front().first)].shape.back();
  return 0;
}

// The values of the residual stream.
using Streams = std::map<std::string, model::TokenLayout>;
Streams streams_of(const TrafficCase& step) {
  Streams all;
  for (const auto& block : step.model.blocks()) all.insert(block->card().streams.begin(), block->card().streams.end());
  if (step.rules.slice > 0)  // passes in slices replicate it
    for (auto& [name, layout] : all) layout = model::TokenLayout::replicated;
  return all;
}
bool in_parts(model::TokenLayout tokens) { return tokens == model::TokenLayout::sharded; }
// Whether a value that recomputation reads is kept in another form than the stream has, which takes an all-gather.
bool changes_form(model::TokenLayout tokens, model::PartitionActivations rule) {
  return rule != model::PartitionActivations::automatic && in_parts(tokens) != (rule == model::PartitionActivations::on);
}

// By block: what it keeps for the recomputation of a layer in slices, which is the input of the layer's first block.
std::vector<std::vector<std::string>> inputs_of_groups(const TrafficCase& step) {
  const size_t blocks = step.model.blocks().size();
  std::vector<std::vector<std::string>> inputs(blocks);
  const std::vector<int> ranks = parallel::rank_of_blocks(step.plan, blocks);
  for (size_t first = 0, last = 0; first < blocks && step.rules.slice > 0; first = last) {
    while (last < blocks && (ranks.empty() || ranks[last] == ranks[first])) ++last;
    for (const parallel::BlockGroup& group : parallel::group_blocks(step.model, first, last, {}, step.rules.slice))
      inputs[group.first] = group.sliced ? group.reads : step.model.blocks()[group.first]->card().reads;
  }
  return inputs;
}

// How often a block runs forward for each micro-batch.
struct Forwards {
  int64_t first = 1;  // for its outputs
  int64_t again = 0;  // recomputation
};
Forwards forwards(const TrafficCase& step, size_t block, const MicroBatches& of) {
  const bool again = of.recomputed && (step.rules.recompute_stage || (!step.rules.recompute.empty() && step.rules.recompute[block]));
  return {1 + step.rules.reference_passes, again ? 1 : 0};
}

// One collective over the tokens of the residual stream along tp.
struct BlockCollective {
  const char* collective;
  const char* reason;
};
constexpr BlockCollective kGather{"all_gather", "tokens are sharded along tp; each rank needs all of them for its part of the layer"};
constexpr BlockCollective kScatter{
    "reduce_scatter", "each rank has the terms of its part of the layer; a token's sum is kept by the rank that has the token"};
constexpr BlockCollective kSum{"all_reduce", "each rank has the terms of its part of the layer, and every rank keeps the whole stream"};
constexpr BlockCollective kGatherBack{"all_gather", "the gradient of a sum of which each rank kept its tokens"};
constexpr BlockCollective kScatterBack{"reduce_scatter", "the gradient of tokens that were gathered"};
constexpr BlockCollective kSumBack{"all_reduce", "every rank's part of the layer has a gradient for every token"};

constexpr BlockCollective kKeptPart{"all_gather", "each rank kept its part of what a recomputed block reads (partition_activations = on)"};
constexpr BlockCollective kKeptWhole{"all_gather", "each rank keeps all of what a recomputed block reads (partition_activations = off)"};
constexpr BlockCollective kArrives{"all_gather", "each rank received its part of what goes between stages (scatter_boundaries)"};
constexpr BlockCollective kLeaves{"all_gather", "each rank sends all of what goes between stages (scatter_boundaries = false)"};

struct BlockCollectives {
  std::vector<BlockCollective> forward, backward;
};
BlockCollectives collectives_of(const model::Card& card, BlockKind kind, bool whole) {
  switch (kind) {
    case BlockKind::embedding:
      return whole ? BlockCollectives{{kSum}, {}} : BlockCollectives{{kScatter}, {kGatherBack}};
    case BlockKind::branch:
      if (whole) return {{kSum}, {kSumBack}};
      return {{kGather, kScatter}, {kGatherBack, kScatterBack}};
    case BlockKind::branch_whole:  // a branch that adds to nothing leaves its partial sums to another
      return card.reads.size() > 1 ? BlockCollectives{{kSum}, {kSumBack}} : BlockCollectives{{}, {kSumBack}};
    case BlockKind::head:
      return whole ? BlockCollectives{{}, {kSumBack}} : BlockCollectives{{kGather}, {kScatterBack}};
    case BlockKind::norm:
    case BlockKind::other:
      break;
  }
  return {};
}

// Whether a value has several rows for each sequence of the batch.
bool has_more_rows(const model::Model& model, const std::string& value) {
  return std::any_of(model.blocks().begin(), model.blocks().end(), [&](const auto& one) {
    const model::Card& card = one->card();
    return card.rows > 1 && std::find(card.writes.begin(), card.writes.end(), value) != card.writes.end();
  });
}

std::string dtype_of(const TrafficCase& step) { return step.element_bytes() == 2 ? "bf16" : "fp32"; }

// Key heads of one rank, as model/decoder/attention_block.cpp counts them.
int64_t key_heads(const TrafficCase& step, const model::Card& card, const parallel::ModelShard& shard) {
  for (const mesh::ParamId& id : model::named_parameters(card))
    for (int32_t k = id.first; k < id.first + id.count; ++k) {
      const model::Parameter& p = step.model.parameters()[static_cast<size_t>(k)];
      for (size_t dim = 0; dim < p.axes.size(); ++dim) {
        const int64_t here = shard.parameters[static_cast<size_t>(k)].local_shard.local_shape()[dim] / std::max<int64_t>(1, p.head_width);
        if (p.axes[dim] == "kv_heads") return here;
        if (p.axes[dim] == "qkv") return here / (p.queries_per_key + 2);
      }
    }
  return 0;
}

// Query heads of one rank, likewise.
int64_t query_heads(const TrafficCase& step, const model::Card& card, const parallel::ModelShard& shard) {
  for (const mesh::ParamId& id : model::named_parameters(card))
    for (int32_t k = id.first; k < id.first + id.count; ++k) {
      const model::Parameter& p = step.model.parameters()[static_cast<size_t>(k)];
      for (size_t dim = 0; dim < p.axes.size(); ++dim) {
        const int64_t here = shard.parameters[static_cast<size_t>(k)].local_shard.local_shape()[dim] / std::max<int64_t>(1, p.head_width);
        if (p.axes[dim] == "heads") return here;
        if (p.axes[dim] == "qkv") return here * p.queries_per_key / (p.queries_per_key + 2);
      }
    }
  return 0;
}

// Elements per sample that a block outside of a residual stream writes: the outputs of its last product, if only elementwise operations and
// norms follow. 0: unknown.
int64_t written_width(const TrafficCase& step, const model::Card& card) {
  int64_t width = 0;
  for (const BlockOp& one : card.operations) {
    if (one.kind == BlockOp::Kind::product && !one.parameters.empty()) {
      width = model::dense_weight(one, 0, step.model).shape.size() != 2 ? 0 : model::output_width(one, 0, step.model);
    } else if (one.kind != BlockOp::Kind::elementwise && one.kind != BlockOp::Kind::norm) {
      width = one.width;
    }
  }
  return width;
}

const model::Card& writer_of(const model::Model& model, const std::string& value) {
  const auto& blocks = model.blocks();
  return (*std::find_if(blocks.begin(), blocks.end(),
                        [&](const auto& block) {
                          const auto& writes = block->card().writes;
                          return std::find(writes.begin(), writes.end(), value) != writes.end();
                        }))
      ->card();
}

}  // namespace

namespace {

bool moves_keys(const model::ContextMethod& method) {
  return method.ulysses == 1 && method.form != model::ContextForm::ulysses && method.form != model::ContextForm::token_ring;
}

const char* collective_of(const model::ContextMethod& method) {
  if (method.ulysses > 1) return "all_to_all and more";
  switch (method.form) {
    case model::ContextForm::gather:
      return "all_gather";
    case model::ContextForm::ulysses:
      return "all_to_all";
    case model::ContextForm::ring:
    case model::ContextForm::ring_both_ways:
    case model::ContextForm::token_ring:
      return "ring";
  }
  return "";
}

// Why it is sent in forward, and in backward.
std::pair<const char*, const char*> reasons_of(const model::ContextMethod& method) {
  if (method.ulysses > 1 || method.form == model::ContextForm::ulysses)
    return {"ranks exchange heads for positions, and outputs back", "the same again with gradients"};
  if (method.form == model::ContextForm::token_ring)
    return {"queries go round, as far as they see keys, and partial outputs return to their owners",
            "queries and gradients of outputs go round again, and gradients of queries return"};
  if (method.form == model::ContextForm::gather)
    return {"every rank needs the keys and values of all positions",
            "keys and values are gathered again, and their gradients go to the ranks that have the positions"};
  return {"keys and values go round, as far as some rank may still see them",
          "keys and values go round again, and their gradients follow them home"};
}

// States of linear attention, as model/context/linear_attention.cpp passes them along the ranks.
void add_linear_states(const TrafficCase& step, const model::LinearAttentionShape& linear, TrafficTable& table) {
  const int64_t cp = step.extent("cp"), tp = step.extent("tp");
  const parallel::ContextRule& rule = step.plan.context;
  const bool gathered = rule.linear == model::LinearForm::lasp2, rounded = rule.state_dtype == model::StateDtype::bf16;
  const char* collective = gathered ? "all_gather" : rule.linear == model::LinearForm::zeco ? "all_scan" : "send";
  for (const MicroBatches& of : step.micro_batches)
    for (size_t i = 0; i < step.model.blocks().size(); ++i) {
      const model::Card& card = step.model.blocks()[i]->card();
      if (std::none_of(card.operations.begin(), card.operations.end(), [](const BlockOp& one) { return one.name == "linear_attention"; }))
        continue;
      const int64_t sequences = of.samples * step.batch.rows, width = linear.value_dim + (gathered ? 1 : 0);  // decays travel beside states
      const int64_t state = sequences * linear.heads * linear.key_dim * width * (rounded ? 2 : 4);
      const int64_t sent = gathered ? gather_bytes(cp * state, cp) : (cp - 1) * state;
      const auto add = [&](const char* when, int64_t times, const char* reason) {
        table.add({.what = folded_name(card.name) + when,
                   .axis = "cp",
                   .collective = collective,
                   .shape = {sequences, linear.heads, linear.key_dim, linear.value_dim},
                   .dtype = rounded ? "bf16" : "fp32",
                   .times = times * of.times * tp,
                   .bytes = times * of.times * sent,
                   .purpose = comm::Purpose::activation,
                   .reason = reason});
      };
      const Forwards forward = forwards(step, i, of);
      const char* seen =
          gathered ? "every rank adds up the states of the ranks before it" : "a rank needs the state after the one before it";
      add(", states forward", forward.first, seen);
      add(", states forward again (recompute)", forward.again, seen);
      add(", states backward", 1, "gradients of states go the other way");
    }
}

}  // namespace

void add_tensor_parallel(const TrafficCase& step, TrafficTable& table) {
  const int64_t tp = step.extent("tp"), cp = step.extent("cp");
  if (tp == 1) return;
  const int64_t width = stream_width(step.model);
  const bool whole = whole_stream(step.model) || step.rules.slice > 0;
  const Streams streams = streams_of(step);
  const std::vector<std::vector<std::string>> kept_in_slices = inputs_of_groups(step);
  const std::vector<bool> on_dtensors = parallel::dtensor_blocks(step.model, step.plan);
  for (const MicroBatches& of : step.micro_batches) {
    // Ranks along cp have different tokens of the same samples.
    const int64_t tokens = of.samples * step.batch.rows * step.batch.length;
    const int64_t most = (tokens + cp - 1) / cp;
    const auto add = [&](const std::string& what, const BlockCollective& one, int64_t times) {
      const int64_t bytes = tokens * width * step.element_bytes();
      const bool sum = std::string_view(one.collective) == "all_reduce";
      table.add({.what = what,
                 .axis = "tp",
                 .collective = one.collective,
                 .shape = {most, width},
                 .dtype = dtype_of(step),
                 .times = times * of.times * cp,
                 .bytes = times * of.times * (sum ? all_reduce_bytes(bytes, tp) : gather_bytes(bytes, tp)),
                 .purpose = comm::Purpose::activation,
                 .reason = one.reason});
    };
    for (size_t i = 0; i < step.model.blocks().size(); ++i) {
      const model::Card& card = step.model.blocks()[i]->card();
      const BlockKind kind = kind_of(card);
      const std::string name = folded_name(card.name);
      if (has_experts(step.model, card)) continue;
      if (kind == BlockKind::other) {
        table.add_unpredicted(name, "tp", comm::Purpose::activation, "not predicted: nothing is known of what this block sends along tp");
        continue;
      }
      if (card.rows > 1) {
        table.add_unpredicted(name, "tp", comm::Purpose::activation, "not predicted: the block has several rows for each sequence");
        continue;
      }
      if (on_dtensors[i]) {
        table.add_unpredicted(name, "tp", comm::Purpose::activation,
                              "not predicted: the block runs on DTensors, which choose for each operation what to send");
        continue;
      }
      const BlockCollectives collectives = collectives_of(card, kind, whole);
      const Forwards forward = forwards(step, i, of);
      for (const BlockCollective& one : collectives.forward) add(name + ", forward", one, forward.first);
      for (const BlockCollective& one : collectives.forward) add(name + ", forward again (recompute)", one, forward.again);
      for (const BlockCollective& one : collectives.backward) add(name + ", backward", one, 1);
      if (forward.again == 0 || step.rules.recompute_stage) continue;
      for (const std::string& value : step.rules.slice > 0 ? kept_in_slices[i] : card.reads)
        if (const auto kept = streams.find(value); kept != streams.end() && changes_form(kept->second, step.rules.partition_activations))
          add(name + ", its input", kept->second == model::TokenLayout::replicated ? kKeptPart : kKeptWhole, 1);
    }
    for (const parallel::StageEdge& edge : parallel::stage_edges(step.model, step.plan)) {
      const auto kept = streams.find(edge.value);
      if (!of.recomputed || !step.rules.recompute_stage || kept == streams.end()) continue;
      if (!changes_form(kept->second, step.rules.partition_activations)) continue;
      add(edge.value + ", a stage's input", kept->second == model::TokenLayout::replicated ? kKeptPart : kKeptWhole, 1);
    }
    const int64_t numbers = tp * 2 * tokens * 4;
    table.add({.what = "cross entropy",
               .axis = "tp",
               .collective = "all_gather",
               .shape = {tp, 2, most},
               .times = (1 + step.rules.reference_passes) * of.times * cp,
               .bytes = (1 + step.rules.reference_passes) * of.times * gather_bytes(numbers, tp),
               .purpose = comm::Purpose::loss,
               .reason = "each rank has the logits of its part of the vocabulary: two numbers for each token tell the others enough"});
  }
}

void add_context_parallel(const TrafficCase& step, TrafficTable& table) {
  const int cp = step.extent("cp");
  if (cp == 1) return;
  const std::string config = step.model.config_json();
  const auto& blocks = step.model.blocks();
  if (config.empty() || std::any_of(blocks.begin(), blocks.end(), [](const auto& one) { return one->card().rows > 1; })) {
    table.add_unpredicted("attention", "cp", comm::Purpose::activation, "not predicted: nothing is known of how this model attends");
    return;
  }
  const model::DecoderShape shape = model::parse_config(config, "the model");
  add_linear_states(step, shape.linear, table);
  const int64_t window = shape.window;
  const model::ContextSplit split = parallel::make_context_split(step.batch.length, cp, step.plan.context.balanced);
  const model::ContextMethod& method = step.plan.context.method;
  const char* collective = collective_of(method);
  const kernels::AttentionOptions options{.window = step.batch.length > window ? window : 0};
  std::vector<parallel::ModelShard> shards;
  for (const int rank : step.plan.mesh.peers(0, "tp")) shards.push_back(parallel::model_shard(step.model, step.plan, rank));
  for (const MicroBatches& of : step.micro_batches)
    for (size_t i = 0; i < step.model.blocks().size(); ++i) {
      const model::Card& card = step.model.blocks()[i]->card();
      if (!has(card, BlockOp::Kind::attention)) continue;
      model::ContextBytes bytes;
      int64_t heads = 0, head_dim = 1;
      for (const mesh::ParamId& id : model::named_parameters(card))
        head_dim = std::max(head_dim, step.model.parameters()[static_cast<size_t>(id.first)].head_width);
      for (const parallel::ModelShard& shard : shards) {
        const int64_t here = key_heads(step, card, shard);
        heads = std::max(heads, here);
        const model::ContextBytes one = model::context_bytes({.batch = of.samples * step.batch.rows,
                                                              .kv_heads = here,
                                                              .head_dim = head_dim,
                                                              .element_bytes = step.element_bytes(),
                                                              .documents = step.batch.documents,
                                                              .heads = query_heads(step, card, shard)},
                                                             options, split, method);
        bytes.forward += one.forward;
        bytes.backward += one.backward;
      }
      const Forwards forward = forwards(step, i, of);
      const auto add = [&](const std::string& when, const char* operation, int64_t sent, int64_t times, const char* reason) {
        table.add({.what = folded_name(card.name) + when,
                   .axis = "cp",
                   .collective = operation,
                   .shape = {step.batch.length, of.samples * step.batch.rows, 2, heads, head_dim},
                   .dtype = dtype_of(step),
                   .times = times * of.times * static_cast<int64_t>(shards.size()),
                   .bytes = times * of.times * sent,
                   .purpose = comm::Purpose::activation,
                   .reason = reason});
      };
      const auto [seen, back] = reasons_of(method);
      const char* what = moves_keys(method) ? ", keys" : ", queries";
      add(fmt::format("{} forward", what), collective, bytes.forward, forward.first, seen);
      add(fmt::format("{} forward again (recompute)", what), collective, bytes.forward, forward.again, seen);
      add(fmt::format("{} backward", what), method == model::ContextForm::gather ? "gather, scatter" : collective, bytes.backward, 1, back);
    }
  if (step.batch.rows == 1) return;
  for (const MicroBatches& of : step.micro_batches) {
    const int64_t answers = of.samples * step.batch.rows, times = (1 + step.rules.reference_passes) * of.times * step.extent("tp");
    table.add({.what = "losses of answers",
               .axis = "cp",
               .collective = "all_reduce",
               .shape = {answers},
               .dtype = "fp64",
               .times = times,
               .bytes = times * all_reduce_bytes(answers * 8, cp),
               .purpose = comm::Purpose::loss,
               .reason = "each rank has some positions of every answer, and a preference compares whole answers"});
  }
}

void add_pipeline(const TrafficCase& step, TrafficTable& table) {
  if (step.plan.stage_blocks.size() <= 1) return;
  const int64_t tp = step.extent("tp"), cp = step.extent("cp");
  const int64_t width = stream_width(step.model);
  const Streams streams = streams_of(step);
  for (const parallel::StageEdge& edge : parallel::stage_edges(step.model, step.plan)) {
    const int from = step.plan.rank_of_stage[static_cast<size_t>(edge.from)], to = step.plan.rank_of_stage[static_cast<size_t>(edge.to)];
    if (from == to) continue;
    const int64_t each = width > 0 ? width : written_width(step, writer_of(step.model, edge.value));
    const std::string route = fmt::format("stage {} to {}", edge.from, edge.to);
    if (each == 0 || has_more_rows(step.model, edge.value)) {
      table.add_unpredicted(edge.value, "pp", comm::Purpose::activation,
                            fmt::format("not predicted: goes from {}, and nothing is known of its shape", route));
      continue;
    }
    const auto stream = streams.find(edge.value);
    const bool whole = stream == streams.end() ? whole_stream(step.model) : !step.rules.scatter_boundaries;
    const int64_t copies = whole ? tp : 1;  // of each token
    const bool gathers = tp > 1 && stream != streams.end() && in_parts(stream->second) != step.rules.scatter_boundaries;
    for (const MicroBatches& of : step.micro_batches) {
      const int64_t tokens = of.samples * step.batch.rows * step.batch.length;
      const BlockCollective& gather = whole ? kLeaves : kArrives;
      if (gathers)
        table.add({.what = fmt::format("{} and its gradient, {}", edge.value, route),
                   .axis = "tp",
                   .collective = gather.collective,
                   .shape = {(tokens + cp - 1) / cp, each},
                   .dtype = dtype_of(step),
                   .times = (2 + step.rules.reference_passes) * of.times * cp,
                   .bytes = (2 + step.rules.reference_passes) * of.times * gather_bytes(tokens * each * step.element_bytes(), tp),
                   .purpose = comm::Purpose::activation,
                   .reason = gather.reason});
      const auto add = [&](const std::string& what, int64_t passes, const std::string& reason) {
        const int64_t messages = tp * cp;
        table.add({.what = what,
                   .axis = "pp",
                   .collective = "send",
                   .shape = {(tokens * copies + messages - 1) / messages, each},
                   .dtype = dtype_of(step),
                   .times = passes * of.times * messages,
                   .bytes = passes * of.times * copies * tokens * each * step.element_bytes(),
                   .purpose = comm::Purpose::activation,
                   .reason = reason});
      };
      add(fmt::format("{}, {}", edge.value, route), 1 + step.rules.reference_passes, "a block there reads what a block here wrote");
      add(fmt::format("gradient of {}, back", edge.value), 1, fmt::format("{}: its gradient goes the other way", route));
    }
  }
}

}  // namespace cairn::planner
