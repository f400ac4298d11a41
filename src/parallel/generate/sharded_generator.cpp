// Generation over the ranks of one replica.
//
//   driver    generate(): samples tokens; broadcasts a command, runs its own blocks, receives the logits
//   followers follow():   receive the command, the values of earlier stages; run their blocks; send values on, or logits to the driver
//
// A step is one command (begin, prefill, copy, decode, close). Along pp its rows go through the stages in groups, so that one stage works
// on a group while the next works on the group before. Along tp the blocks themselves communicate; along ep the rows of a group are on
// several ranks (expert_stage.h). The ranks of the last stage send the driver their parts of the vocabulary, along ep those of their rows.
#include "parallel/generate/sharded_generator.h"

#include <algorithm>
#include <optional>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/experts/moe_block.h"
#include "model/generate/cached_blocks.h"
#include "model/generate/decode_runner.h"
#include "model/model.h"
#include "parallel/generate/tensor_messages.h"
#include "parallel/layout/expert_split.h"
#include "parallel/layout/make_plan.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pipeline/stage_edges.h"

namespace cairn::parallel {
namespace {

constexpr int kDriver = 0;  // in the group of the replica

enum class Act : int64_t { begin, prefill, copy, decode, close };

// What the driver tells the followers to do.
struct Command {
  Act act{};
  std::vector<int64_t> numbers = {};
};

at::Tensor to_tensor(const std::vector<int64_t>& numbers) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

std::vector<int64_t> to_numbers(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

// Puts the experts of each layer where its table says. Throws bad_input for tables that do not fit the model.
void place_experts(Plan& plan, const model::Model& model, const ExpertTables& tables) {
  if (tables.empty()) return;
  size_t layer = 0;
  for (const auto& block : model.blocks()) {
    if (!model::routed_block(*block)) continue;
    if (layer == tables.size()) base::fail_input("a placement of experts for {} layers: the model has more", tables.size());
    for (const model::BlockOp& operation : block->card().operations)
      for (const mesh::ParamId id : operation.parameters) {
        const model::Parameter& parameter = model.parameters()[static_cast<size_t>(id.first)];
        const int64_t dim = expert_dim(parameter);
        if (dim < 0) continue;
        mesh::Ragged table = tables[layer];
        table.dim = dim;
        mesh::check(table, plan.mesh.extent("ep"), parameter.shape[static_cast<size_t>(dim)]);
        for (mesh::Placement::OnAxis& on : plan.placements.at(parameter.name).axes)
          if (on.axis == "ep") on.how = table;
      }
    ++layer;
  }
  if (layer != tables.size()) base::fail_input("a placement of experts for {} layers: the model has {}", tables.size(), layer);
}

}  // namespace

class ShardedGenerator::Runner final : public model::DecodeRunner {
 public:
  explicit Runner(const ShardedModel& of)
      : of_(of),
        replica_(of.world.group(of.plan.mesh.peers_along(of.world.rank(), {"pp", "tp", "ep"}), "generate")),
        commands_(of.world.group(replica_.ranks(), "generate commands")) {
    const mesh::Mesh& mesh = of.plan.mesh;
    const int rank = of.world.rank();
    commands_.set_deadline(of.idle);
    if (mesh.extent("tp") > 1) axes_.put("tp", of.world.group(mesh.peers(rank, "tp")));
    if (mesh.extent("pp") > 1) stages_ = &of.world.group(mesh.peers(rank, "pp"));
    const ModelShard shard = model_shard(of.model, of.plan, rank);
    CAIRN_CHECK(shard.stages.size() == 1, "{} pipeline stages on rank {}: generation runs one", shard.stages.size(), rank);
    stage_ = shard.stages.front();
    for (const StageEdge& edge : stage_edges(of.model, of.plan)) {
      if (edge.to == stage_) reads_.push_back(edge);
      if (edge.from == stage_) writes_.push_back(edge);
    }
    const int last = of.plan.rank_of_stage.empty() ? 0 : of.plan.rank_of_stage.back();
    along_ep_ = places_experts(of.plan);
    with_logits_.resize(along_ep_ ? static_cast<size_t>(mesh.extent("ep")) : 1);
    for (size_t i = 0; i < replica_.ranks().size(); ++i) {
      const int peer = replica_.ranks()[i];
      if (mesh.coordinate(peer, "pp") == last)
        with_logits_[along_ep_ ? static_cast<size_t>(mesh.coordinate(peer, "ep")) : 0].push_back(static_cast<int>(i));
    }
    device_ = of.weights.get({0}).device();
  }

  bool drives() const { return replica_.rank() == kDriver; }

  void begin(int64_t rows, const model::GenerateOptions& options) {
    const bool together = options.batched || device_.is_cuda() || axes_.find("tp") != nullptr;
    drive({Act::begin, {rows, options.length_max, together && of_.model.supports_batched_decoding()}});
  }
  void close() { drive({Act::close}); }

  at::Tensor prefill(const std::vector<int32_t>& prompt, int64_t row) override {
    std::vector<int64_t> numbers{row};
    numbers.insert(numbers.end(), prompt.begin(), prompt.end());
    return drive({Act::prefill, std::move(numbers)}).view({-1});
  }
  void copy(int64_t from, int64_t to, int64_t positions) override { drive({Act::copy, {from, to, positions}}); }
  at::Tensor decode(std::span<const model::DecodeRow> rows) override {
    std::vector<int64_t> numbers;
    for (const model::DecodeRow& row : rows) numbers.insert(numbers.end(), {row.token, row.position, row.cache_row});
    return drive({Act::decode, std::move(numbers)});
  }

  void follow() {
    const at::NoGradGuard no_grad;
    CAIRN_CHECK(!drives(), "rank {} drives generation and does not follow", of_.world.rank());
    for (bool open = true; open;) {
      const Command command = receive();
      messages_.flush();
      execute(command);
      open = command.act != Act::close;
    }
    messages_.flush();
  }

  ExpertTraffic expert_traffic() const { return experts_ ? experts_->traffic() : traffic_; }

 private:
  at::Tensor drive(const Command& command) {
    const at::NoGradGuard no_grad;
    CAIRN_CHECK(drives(), "rank {} follows and cannot generate", of_.world.rank());
    messages_.flush();
    const comm::Label label{comm::Purpose::control, "generate command"};
    const auto count = static_cast<int64_t>(command.numbers.size());
    messages_.keep(commands_.broadcast(to_tensor({static_cast<int64_t>(command.act), count}), kDriver, label));
    if (count > 0) messages_.keep(commands_.broadcast(to_tensor(command.numbers), kDriver, label));
    commands_.progress();
    const at::Tensor logits = execute(command);
    if (command.act == Act::close) messages_.flush();
    return logits;
  }

  Command receive() {
    const comm::Label label{comm::Purpose::control, "generate command"};
    const at::Tensor header = at::empty({2}, at::kLong);
    commands_.broadcast(header, kDriver, label).wait_host();
    Command command{.act = static_cast<Act>(header.const_data_ptr<int64_t>()[0])};
    const int64_t count = header.const_data_ptr<int64_t>()[1];
    if (count == 0) return command;
    const at::Tensor numbers = at::empty({count}, at::kLong);
    commands_.broadcast(numbers, kDriver, label).wait_host();
    command.numbers.assign(numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + count);
    return command;
  }

  // This rank's part of a command. On the driver, the logits [rows, vocab] of a prefill or decode.
  at::Tensor execute(const Command& command) {
    const std::vector<int64_t>& n = command.numbers;
    switch (command.act) {
      case Act::begin: {
        const BlockRange range = blocks_of_stage(of_.plan, stage_, of_.model.blocks().size());
        together_ = n.at(2) != 0;
        if (along_ep_) {
          begin_experts(range, n.at(0), n.at(1));
          return {};
        }
        blocks_.emplace(model::CachedBlocks::Parts{.model = of_.model,
                                                   .weights = of_.weights,
                                                   .buffers = of_.buffers,
                                                   .axes = axes_,
                                                   .first = range.first,
                                                   .last = range.last,
                                                   .rows = n.at(0),
                                                   .length_max = n.at(1)});
        return {};
      }
      case Act::prefill: {
        if (along_ep_) return prefill_experts(n);
        const at::Tensor tokens = to_tensor({n.begin() + 1, n.end()}).view({1, -1});
        blocks_->grow(tokens.size(1));
        return gather_logits({run(tokens, 0, n.at(0))});
      }
      case Act::copy:
        along_ep_ ? experts_->copy(n.at(0), n.at(1), n.at(2)) : blocks_->copy(n.at(0), n.at(1), n.at(2));
        return {};
      case Act::decode:
        return decode_rows(n);
      case Act::close:
        if (experts_) {
          experts_->finish();
          traffic_ = experts_->traffic();
        }
        experts_.reset();
        blocks_.reset();
        return {};
    }
    CAIRN_CHECK(false, "generate command {}", static_cast<int64_t>(command.act));
  }

  void begin_experts(const BlockRange& range, int64_t rows, int64_t length_max) {
    const std::vector<int> ranks = of_.plan.mesh.peers(of_.world.rank(), "ep");
    if (experts_) experts_->finish();
    experts_.emplace(ExpertStage::Parts{.model = of_.model,
                                        .weights = of_.weights,
                                        .buffers = of_.buffers,
                                        .axes = axes_,
                                        .first = range.first,
                                        .last = range.last,
                                        .rows = rows,
                                        .length_max = length_max,
                                        .together = together_,
                                        .flow = of_.flow,
                                        .tokens = of_.world.group(ranks, "generate tokens"),
                                        .cache = of_.world.group(ranks, "generate cache")});
  }

  at::Tensor prefill_experts(const std::vector<int64_t>& numbers) {
    std::vector<model::DecodeRow> rows;
    for (size_t i = 1; i < numbers.size(); ++i) rows.push_back({static_cast<int32_t>(numbers[i]), static_cast<int64_t>(i) - 1, numbers[0]});
    return gather_rows({run_experts(rows, true)}, 1);
  }

  // This stage's blocks on the rows that are on this rank; sends them on. Returns the logits of those that end here.
  ExpertStage::Rows run_experts(const std::vector<model::DecodeRow>& rows, bool prompt) {
    ExpertStage::Rows here;
    for (const StageEdge& edge : reads_) {
      here.numbers = to_numbers(TensorMessages::receive(*stages_, rank_of(edge.from), edge.value, at::kCPU));
      here.values = TensorMessages::receive(*stages_, rank_of(edge.from), edge.value, device_);
    }
    here = experts_->run(rows, prompt, std::move(here));
    for (const StageEdge& edge : writes_) {
      messages_.send(*stages_, to_tensor(here.numbers), rank_of(edge.to), edge.value);
      messages_.send(*stages_, here.values, rank_of(edge.to), edge.value);
    }
    if (!writes_.empty()) return {};
    here.values = here.values.to(at::kCPU);
    if (!drives()) {
      messages_.send(replica_, to_tensor(here.numbers), kDriver, "rows of logits");
      messages_.send(replica_, here.values, kDriver, "logits");
    }
    return here;
  }

  // On the driver: the logits [rows, vocab] of all groups, from the ranks of the last stage.
  at::Tensor gather_rows(const std::vector<ExpertStage::Rows>& own, int64_t count) {
    if (!drives()) return {};
    at::Tensor logits;
    for (const ExpertStage::Rows& here : own)
      for (const std::vector<int>& ranks : with_logits_) {
        std::vector<at::Tensor> parts;
        std::vector<int64_t> numbers;
        for (const int rank : ranks) {
          numbers = rank == kDriver ? here.numbers : to_numbers(TensorMessages::receive(replica_, rank, "rows of logits", at::kCPU));
          const at::Tensor part = rank == kDriver ? here.values : TensorMessages::receive(replica_, rank, "logits", at::kCPU);
          if (!numbers.empty()) parts.push_back(part.to(at::kFloat));
        }
        if (parts.empty()) continue;
        const bool whole = parts.front().size(1) == of_.model.parameters().front().shape.front();  // the same on all ranks along tp
        const at::Tensor rows = whole || parts.size() == 1 ? parts.front() : at::cat(parts, 1);
        if (!logits.defined()) logits = at::empty({count, rows.size(1)}, rows.options());
        if (count == 1) numbers.assign(1, 0);  // of a prompt, its last token
        logits.index_copy_(0, to_tensor(numbers), rows);
      }
    return logits;
  }

  at::Tensor decode_rows(const std::vector<int64_t>& numbers) {
    std::vector<model::DecodeRow> rows;
    int64_t end = 0;
    for (size_t i = 0; i + 2 < numbers.size(); i += 3) {
      rows.push_back({static_cast<int32_t>(numbers[i]), numbers[i + 1], numbers[i + 2]});
      end = std::max(end, numbers[i + 1] + 1);
    }
    if (along_ep_) return gather_rows({run_experts(rows, false)}, static_cast<int64_t>(rows.size()));
    blocks_->grow(end);
    const size_t stages = stages_ ? static_cast<size_t>(stages_->size()) : 1;
    std::vector<at::Tensor> logits;
    for (const auto& [first, count] : model::group_rows(rows, together_, (rows.size() + stages - 1) / stages)) {
      std::vector<int64_t> tokens;
      for (size_t i = first; i < first + count; ++i) tokens.push_back(rows[i].token);
      logits.push_back(run(to_tensor(tokens).view({-1, 1}), rows[first].position, rows[first].cache_row));
    }
    return gather_logits(logits);
  }

  // Runs this rank's stage on adjacent rows of the cache. Returns its part of the logits [rows, part of the vocabulary] on the CPU, where
  // it has the last block.
  at::Tensor run(const at::Tensor& tokens, int64_t begin, int64_t first_row) {
    model::Values values;
    values.put("tokens", tokens.to(device_));
    for (const StageEdge& edge : reads_) values.put(edge.value, TensorMessages::receive(*stages_, rank_of(edge.from), edge.value, device_));
    blocks_->run(values, begin, first_row, tokens.size(0));
    for (const StageEdge& edge : writes_) {
      if (edge.value == of_.model.blocks().back()->card().reads.front()) model::keep_last_position(values, edge.value);
      messages_.send(*stages_, values.get(edge.value), rank_of(edge.to), edge.value);
    }
    if (!values.has("logits")) return {};
    const model::Value& logits = values.value("logits");
    const at::Tensor here = logits.tensor.flatten(0, 1).to(at::kCPU);
    // Logits that are not sharded come from the first rank along tp.
    const bool sharded = !std::holds_alternative<mesh::Replicate>(logits.placement.on("tp"));
    const at::Tensor part = sharded || replica_.rank() == with_logits_.front().front() ? here : here.narrow(1, 0, 0);
    if (!drives()) messages_.send(replica_, part, kDriver, "logits");
    return part;
  }

  // On the driver: the logits of all groups of rows, from the ranks of the last stage; `own` holds those that were made here.
  at::Tensor gather_logits(const std::vector<at::Tensor>& own) {
    if (!drives()) return {};
    std::vector<at::Tensor> rows;
    for (const at::Tensor& here : own) {
      std::vector<at::Tensor> parts;
      for (const int rank : with_logits_.front())
        parts.push_back((rank == kDriver ? here : TensorMessages::receive(replica_, rank, "logits", at::kCPU)).to(at::kFloat));
      rows.push_back(parts.size() == 1 ? parts[0] : at::cat(parts, 1));
    }
    return rows.size() == 1 ? rows[0] : at::cat(rows);
  }

  // The rank along pp that runs a stage.
  int rank_of(int stage) const { return of_.plan.rank_of_stage[static_cast<size_t>(stage)]; }

  ShardedModel of_;
  comm::Group &replica_, &commands_;  // the same ranks; commands have their own deadline
  comm::Group* stages_ = nullptr;     // along pp; null: one stage
  mesh::Axes axes_;
  int stage_ = 0;
  std::vector<StageEdge> reads_, writes_;  // of this rank's stage
  // Ranks of the replica that have the last block, in the order of the vocabulary; along ep, those of each coordinate.
  std::vector<std::vector<int>> with_logits_;
  bool along_ep_ = false;
  at::Device device_ = at::kCPU;
  TensorMessages messages_;
  std::optional<model::CachedBlocks> blocks_;  // one of the two, while a generate() runs
  std::optional<ExpertStage> experts_;
  ExpertTraffic traffic_;  // of the last one
  bool together_ = false;
};

ShardedGenerator::ShardedGenerator(const ShardedModel& of) : runner_(std::make_unique<Runner>(of)) {}
ShardedGenerator::~ShardedGenerator() = default;
bool ShardedGenerator::drives() const { return runner_->drives(); }
void ShardedGenerator::close() { runner_->close(); }
void ShardedGenerator::follow() { runner_->follow(); }
ExpertTraffic ShardedGenerator::expert_traffic() const { return runner_->expert_traffic(); }

std::vector<model::GeneratedText> ShardedGenerator::generate(std::span<const model::GenerateRequest> requests,
                                                             const model::GenerateOptions& options, const model::OnToken& on_token) {
  runner_->begin(static_cast<int64_t>(requests.size()), options);
  return model::generate(*runner_, requests, options, on_token);
}

std::unique_ptr<model::FlatWeights> allocate_shards(const model::Model& model, const Plan& plan, const ModelShard& shard,
                                                    const at::TensorOptions& options) {
  std::vector<mesh::Placement> placements;
  for (const model::Parameter& parameter : model.parameters()) placements.push_back(placement_of(plan, parameter.name));
  return std::make_unique<model::FlatWeights>(shard.layout, at::empty({shard.layout.elements}, options), std::move(placements));
}

Plan generation_plan(const mesh::Mesh& mesh, const model::Model& model, const ExpertTables& experts) {
  LayoutOptions options;
  for (const mesh::Axis& axis : mesh.axes) {
    if (axis.name == "tp")
      options.mesh.tp = axis.size;
    else if (axis.name == "pp")
      options.mesh.pp = axis.size;
    else if (axis.name == "ep")
      options.mesh.ep = axis.size;
    else if (axis.size > 1)
      base::fail_input("--mesh {}: generation shards a model along tp, pp and ep, not along {}; leave {} out", mesh::to_string(mesh),
                       axis.name, axis.name);
  }
  const auto blocks = static_cast<int64_t>(model.blocks().size());
  if (options.mesh.pp > blocks)
    base::fail_input("--mesh {}: {} stages, and the model has {} blocks; use at most pp={}", mesh::to_string(mesh), options.mesh.pp, blocks,
                     blocks);
  Plan plan = make_plan(options, static_cast<int>(options.mesh.tp * options.mesh.pp * options.mesh.ep));
  plan.micro_batches = options.mesh.pp;  // for the schedule, of which generation uses the stages alone
  try {
    fit_to_model(plan, model, {}, /*length=*/1);
    if (options.mesh.ep > 1 && !places_experts(plan)) base::fail_input("experts lie along ep, and the model has none; use tp or pp");
    place_experts(plan, model, experts);
  } catch (Error& error) {
    throw error.with(fmt::format("--mesh {}", mesh::to_string(mesh)));
  }
  return plan;
}

}  // namespace cairn::parallel
