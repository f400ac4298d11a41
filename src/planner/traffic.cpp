// Counting the traffic of a step without running it. Every kind of message is a row: how often, of which shape, how many bytes all ranks
// send together. For n ranks and a tensor of b bytes in total:
//   all_gather, reduce_scatter   (n-1) b          each rank needs, or gives away, everything but its own part
//   all_reduce                   2 (n-1) b        a reduce-scatter and an all-gather
//   send                         b
// traffic/blocks.cpp counts what blocks send (tp, cp, pp), traffic/state.cpp gradients and parameters (dp, shard, ZeRO), this file the
// rest. tests/train/traffic_test.cpp compares the rows with the ledger of real steps.
#include "planner/traffic.h"

#include <algorithm>
#include <map>

#include "data/batch_split.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "planner/traffic/table.h"

namespace cairn::planner {
namespace {

// Splits the batch over ranks and micro-batches as the trainer does.
void cut_batch(TrafficCase& step) {
  const auto ranks = static_cast<int>(step.extent(parallel::kSampleAxes));
  const int64_t most = (step.batch.samples + ranks - 1) / ranks;
  std::map<std::pair<int64_t, bool>, int64_t> times;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t samples = data::replica_range(step.batch.samples, rank, ranks).count;
    const std::vector<data::BatchRange> parts = step.plan.micro_batches > 0 ? data::even_micro_batches(samples, step.plan.micro_batches)
                                                                            : data::micro_batches(samples, step.plan.micro_batch, most);
    step.max_passes = std::max(step.max_passes, static_cast<int64_t>(parts.size()));
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].count > 0) ++times[{parts[i].count, step.rules.recompute_last || i + 1 < parts.size()}];
  }
  for (const auto& [kind, count] : times) step.micro_batches.push_back({kind.first, kind.second, count});
}

// What all ranks reduce once a step.
void add_step_reductions(const TrafficCase& step, TrafficTable& table) {
  const int64_t ranks = step.plan.mesh.size();
  const auto reduce = [&](const char* what, int64_t numbers, comm::Purpose purpose, const char* reason) {
    table.add({.what = what,
               .axis = "all",
               .collective = "all_reduce",
               .shape = {numbers},
               .dtype = "fp64",
               .times = ranks > 1 ? 1 : 0,
               .bytes = all_reduce_bytes(numbers * 8, ranks),
               .purpose = purpose,
               .reason = reason});
  };
  reduce("loss, the wish to stop, step times", 2 + step.rules.measures + (ranks > 1 ? ranks : 0), comm::Purpose::loss,
         "each rank has the loss of its own samples and its own time; all go on or stop together");
  if (step.rules.asks_before_update)
    reduce("loss before the update", 2, comm::Purpose::loss, "train.on_bad_step: all ranks decide together whether the update happens");
  // Running statistics of batch norms are sums over all ranks.
  const bool decoder = !step.model.config_json().empty();
  if (decoder) return;
  for (const auto& [name, buffer] : step.model.make_buffers(at::TensorOptions().dtype(at::kFloat).device(at::kMeta)))
    if (name.ends_with(".pending"))
      reduce(folded_name(name.substr(0, name.rfind('.')) + ", running statistics").c_str(), buffer.numel(), comm::Purpose::state,
             "batch norms keep the mean and variance of the whole batch");
}

}  // namespace

int64_t TrafficCase::extent(const std::vector<std::string>& axes) const {
  int64_t ranks = 1;
  for (const std::string& axis : axes) ranks *= plan.mesh.extent(axis);
  return ranks;
}

std::string TrafficCase::axis_name(const std::vector<std::string>& axes) const {
  std::string name;
  for (const std::string& axis : axes)
    if (plan.mesh.extent(axis) > 1) name += (name.empty() ? "" : "+") + axis;
  return name;
}

void TrafficTable::add(TrafficRow row) {
  if (row.times == 0 && row.predicted) return;
  for (TrafficRow& known : rows) {
    if (known.what != row.what || known.axis != row.axis || known.collective != row.collective || known.purpose != row.purpose) continue;
    known.times += row.times;
    known.bytes += row.bytes;
    known.shape = std::max(known.shape, row.shape);
    return;
  }
  rows.push_back(std::move(row));
}

void TrafficTable::add_unpredicted(std::string what, std::string axis, comm::Purpose purpose, std::string reason) {
  add({.what = std::move(what),
       .axis = std::move(axis),
       .collective = "?",
       .purpose = purpose,
       .reason = std::move(reason),
       .predicted = false});
}

std::string folded_name(const std::string& name) {
  std::string folded;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    const bool number = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
    folded += (begin > 0 ? "." : "") + (number ? "*" : word);
    begin = end + 1;
  }
  return folded;
}

int64_t bytes_for(const std::vector<TrafficRow>& rows, comm::Purpose purpose) {
  int64_t bytes = 0;
  for (const TrafficRow& row : rows)
    if (row.purpose == purpose) bytes += row.bytes;
  return bytes;
}

int64_t bytes_along(const std::vector<TrafficRow>& rows, const std::string& axis) {
  int64_t bytes = 0;
  for (const TrafficRow& row : rows)
    if (row.axis == axis) bytes += row.bytes;
  return bytes;
}

std::vector<TrafficRow> step_traffic(const model::Model& model, const parallel::Plan& plan, const StepBatch& batch,
                                     const StepRules& rules) {
  TrafficCase step{.model = model, .plan = plan, .batch = batch, .rules = rules};
  TrafficTable table;
  if (!plan.mesh.parts.empty()) {
    table.add_unpredicted("everything", "all", comm::Purpose::control, "the parts of this mesh have different shapes");
    return table.rows;
  }
  if (rules.step_plans) {
    table.add_unpredicted("passes", "all", comm::Purpose::activation,
                          "not predicted: each batch has a plan of its own (step_plans.jsonl); ledger.json has what was sent");
    return table.rows;
  }
  cut_batch(step);
  add_tensor_parallel(step, table);
  add_context_parallel(step, table);
  add_expert_parallel(step, table);
  add_pipeline(step, table);
  add_gradients(step, table);
  add_parameters(step, table);
  add_update(step, table);
  if (batch.length_varies)
    for (TrafficRow& row : table.rows) {
      if (row.purpose != comm::Purpose::activation && row.purpose != comm::Purpose::loss) continue;
      row.predicted = false;
      row.reason += " (at most so much: sequences are as long as the longest of a batch)";
    }
  add_step_reductions(step, table);
  if (parallel::islands_step_separately(plan))
    table.add_unpredicted("updates between islands", "island", comm::Purpose::gradient,
                          fmt::format("not predicted: sync rule {}, which says little and not at every step", plan.sync.at("island")));
  return table.rows;
}

}  // namespace cairn::planner
