#include "train/given_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/schema.h"
#include "parallel/options.h"
#include "sync/needs.h"
#include "sync/options.h"
#include "train/options.h"

namespace cairn::train {
namespace {

constexpr const char* kOrigin = "--plan";

// Sets these keys of a section to the plan's values. Refuses a key that the recipe sets to another value.
template <typename T>
void set_section(base::Recipe& recipe, const base::Schema<T>& schema, const T& planned, const std::vector<std::string>& keys) {
  const base::Section section = schema.section();
  base::Recipe reading = recipe;
  const std::vector<base::Setting> given = schema.values_of(reading.read(schema)), wanted = schema.values_of(planned);
  for (size_t i = 0; i < section.entries.size(); ++i) {
    const std::string& key = section.entries[i].key;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
    const std::string full = fmt::format("{}.{}", section.name, key);
    if (recipe.has(full) && given[i] != wanted[i])
      base::fail_input("{} = {}: the plan says {}: leave the key out, or edit the plan", full, base::to_toml(given[i]),
                       base::to_toml(wanted[i]));
    recipe.set(full, wanted[i], kOrigin);
  }
}

template <typename T>
void must_be(const char* key, const T& given, const T& made, const char* why) {
  if (given != made) base::fail_input("the plan's {} = {}: it must be {} here: {}", key, given, made, why);
}

}  // namespace

void use_layout_of(const parallel::Plan& given, base::Recipe& recipe, int ranks) {
  if (!given.mesh.parts.empty())
    base::fail_input("the plan's mesh {}: training does not support parts of different shapes yet", mesh::to_string(given.mesh));
  if (ranks != given.mesh.size())
    base::fail_input("the plan is for {} ranks ({}) and there are {}: pass --nproc {}", given.mesh.size(), mesh::to_string(given.mesh),
                     ranks, given.mesh.size());
  std::vector<int> members = given.mesh.members();
  std::sort(members.begin(), members.end());
  if (members.front() != 0 || members.back() != ranks - 1)  // they are all different
    base::fail_input("the plan's mesh {}: its ranks must be 0 to {}", mesh::to_string(given.mesh), ranks - 1);
  const auto extent = [&](const char* axis) { return static_cast<int64_t>(given.mesh.extent(axis)); };
  if (given.zero == 0 && extent("shard") > 1)
    base::fail_input("the plan's mesh.shard = {}: with zero = 0 nothing is sharded along it: make it 1 and mesh.dp larger, or set zero",
                     extent("shard"));
  if (given.zero > 0 && extent("shard") * extent("cp") == 1)
    base::fail_input("the plan's zero = {}: there is one rank along shard and cp, so nothing is sharded: make mesh.shard larger, or zero 0",
                     given.zero);
  const parallel::MeshOptions mesh{.dp = extent("dp") * extent("shard"),
                                   .shard = extent("shard"),
                                   .pp = extent("pp"),
                                   .cp = extent("cp"),
                                   .tp = extent("tp"),
                                   .ep = extent("ep"),
                                   .island = extent("island")};
  set_section(recipe, parallel::mesh_schema(), mesh, {"dp", "shard", "pp", "cp", "tp", "ep", "island"});
  set_section(recipe, parallel::memory_schema(), {.zero = given.zero, .disk_path = {}, .partition = given.partition},
              {"zero", "partition"});
  set_section(recipe, parallel::context_schema(),
              {.form = parallel::context_form(given),
               .balanced = given.context.balanced,
               .linear = given.context.linear,
               .scan_blocks = given.context.scan_blocks,
               .state_dtype = given.context.state_dtype},
              mesh.cp > 1 ? std::vector<std::string>{"form", "balanced", "linear", "scan_blocks", "state_dtype"}
                          : std::vector<std::string>{});
  TrainOptions train;
  train.precision = base::parse_enum(kPrecisionNames, "precision of the plan", given.precision);
  train.micro_batch = given.micro_batch;
  // A pipeline has a number of micro-batches; without one, micro-batches have a size.
  set_section(recipe, train_schema(), train,
              mesh.pp > 1 ? std::vector<std::string>{"precision"} : std::vector<std::string>{"precision", "micro_batch"});
  if (const auto rule = given.sync.find("dp"); rule != given.sync.end())
    set_section(recipe, sync::sync_schema(), {.kind = rule->second}, {"kind"});
  if (const auto rule = given.sync.find("island"); rule != given.sync.end() && sync::needs_of(rule->second).local_steps)
    set_section(recipe, sync::sync_schema().in("sync.island"), {.kind = rule->second}, {"kind"});
  if (mesh.pp == 1) return;
  const auto stages = static_cast<int64_t>(given.rank_of_stage.size());
  if (stages == 0 || stages % mesh.pp != 0)
    base::fail_input("the plan's pipeline has {} stages, and mesh.pp = {}: each rank along pp must have as many", stages, mesh.pp);
  const parallel::PipelineOptions pipeline{
      .schedule = given.schedule,
      .csv = {},
      .micro_batches = given.micro_batches,
      .stages_per_rank = stages / mesh.pp,
      .split = {},
      .registers = given.registers,
      .routing = given.routing == parallel::Routing::random ? parallel::RoutingOption::random : parallel::RoutingOption::fixed};
  std::vector<std::string> keys{"registers", "routing"};
  if (!recipe.has("pipeline.csv")) keys.insert(keys.end(), {"schedule", "stages_per_rank"});  // else the file says it
  if (!recipe.has("train.micro_batch")) keys.push_back("micro_batches");
  set_section(recipe, parallel::pipeline_schema(), pipeline, keys);
  if (recipe.has("pipeline.split"))
    base::fail_input("pipeline.split: the plan says which blocks each stage runs (stage_blocks): leave the key out");
}

void take_from(const parallel::Plan& given, parallel::Plan& made) {
  must_be("micro_batch", given.micro_batch, made.micro_batch, "that is how the samples of a step are split");
  must_be("micro_batches", given.micro_batches, made.micro_batches, "that is how the samples of a step are split");
  for (const auto& [axis, rule] : given.sync)
    must_be(("sync." + axis).c_str(), rule, made.sync.contains(axis) ? made.sync.at(axis) : "none",
            "that is how replicas are synchronised");
  made.mesh = given.mesh;
  made.stage_blocks = given.stage_blocks;
  made.rank_of_stage = given.rank_of_stage;
  made.placements = given.placements;
}

}  // namespace cairn::train
