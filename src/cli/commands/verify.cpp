// `cairn verify`: compares two layouts of one recipe step by step and names the first tensor that differs; or prints a table of many
// layouts.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/recipe.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/recipe_overrides.h"
#include "cli/stderr_terminal.h"
#include "comm/local/local.h"
#include "mesh/mesh.h"
#include "parallel/layout/plan_file.h"
#include "train/layout_trace.h"

namespace cairn::cli {
namespace {

constexpr const char* kSmallRecipe = R"(
  [model]
  layers = 4
  embed = 64
  heads = 8
  kv_heads = 4
  mlp = 176
  [data]
  vocab = 509
  length = 48
  stories_bytes = 200000
  [train]
  global_batch = 8
)";

struct Layout {
  std::string mesh;
  std::vector<std::string> sets = {};
  std::shared_ptr<const parallel::Plan> plan = nullptr;  // in place of the mesh
  std::vector<std::string> data = {};                    // how one rank reads the same samples, to compare with; empty: as this layout does
};

int rank_count(const std::string& mesh) {
  int ranks = 1;
  for (const mesh::Axis& axis : mesh::parse_mesh(mesh).axes)
    if (axis.name != "shard") ranks *= axis.size;  // a part of dp
  return ranks;
}

base::Recipe recipe_of(const VerifyArguments& a, const Layout& layout) {
  base::Recipe recipe =
      a.recipe.empty() ? base::Recipe::parse(kSmallRecipe, "verify") : base::Recipe::parse(base::Recipe::File::read(a.recipe));
  if (!a.data.empty()) recipe.set("data.path", a.data, "--data");
  for (const std::string& set : a.sets) recipe.set(set);
  if (layout.plan) recipe.set("train.micro_batch", layout.plan->micro_batch, "--plan");
  for (const mesh::Axis& axis : layout.plan ? std::vector<mesh::Axis>{} : mesh::parse_mesh(layout.mesh).axes)
    recipe.set("mesh." + axis.name, static_cast<int64_t>(axis.size), "--mesh");
  for (const std::string& set : layout.sets) recipe.set(set);
  return recipe;
}

// Runs the ranks as threads on the virtual network. They send and reduce the same messages as processes would.
train::LayoutTrace record_on(const VerifyArguments& a, const Layout& layout, train::LayoutTraceOptions options) {
  train::LayoutTrace recording;
  options.plan = layout.plan;
  const auto ended = comm::LocalNetwork(layout.plan ? layout.plan->mesh.size() : rank_count(layout.mesh)).run([&](comm::World& world) {
    train::LayoutTrace own = train::trace_layout(world, recipe_of(a, layout), options);
    if (world.rank() == 0) recording = std::move(own);
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  return recording;
}

int compare(const VerifyArguments& a) {
  if (a.mesh.empty() && a.only_first.empty() && a.plan.empty())
    base::fail_input("verify needs a layout: --mesh pp=2,tp=2, --plan FILE, or --table for many");
  if (!a.mesh.empty() && !a.plan.empty())
    base::fail_input("--mesh {} --plan {}: the plan says how ranks are arranged: leave out --mesh", a.mesh, a.plan);
  Layout first{a.mesh.empty() ? a.against : a.mesh, a.only_first};
  const Layout second{a.against};
  if (!a.plan.empty()) first = {a.plan, a.only_first, std::make_shared<parallel::Plan>(parallel::read_plan(a.plan))};
  train::LayoutTraceOptions options{.steps = a.steps, .tensors = true, .plant = {}, .cache = (cache_folder() / "data").string()};
  const train::LayoutTrace other = record_on(a, second, options);
  options.plant = a.plant;
  const train::LayoutTrace one = record_on(a, first, options);
  base::Terminal terminal;
  for (size_t i = 0; i < one.steps.size(); ++i)
    terminal.line(fmt::format("step {}  loss {:.7f} and {:.7f}  gradient norm {:.7f} and {:.7f}", i + 1, one.steps[i].loss,
                              other.steps[i].loss, one.steps[i].gradient_norm, other.steps[i].gradient_norm));
  for (size_t i = 0; i < one.steps.size(); ++i)
    if (const std::string apart = train::routing_difference(one.steps[i].routing, other.steps[i].routing); !apart.empty())
      terminal.line(fmt::format("step {}  {}", i + 1, apart));
  const train::Difference found = train::first_difference(one, other, a.tolerance);
  if (found.step == 0) {
    terminal.line(
        fmt::format("{} and {}: the same {}, {} gradients and parameters each: the first gradients to {:g} of their largest element, "
                    "what comes after an update to a hundred times that",
                    first.mesh, second.mesh, base::plural(a.steps, "step"), other.steps.front().gradients.size(), a.tolerance));
    return 0;
  }
  terminal.line(
      fmt::format("{} and {} differ first in step {}: {}{}", first.mesh, second.mesh, found.step, found.what,
                  found.scale > 0 ? fmt::format(", by {:.3g} where its largest element is {:.3g}", found.largest, found.scale) : ""));
  return 3;
}

// Whole documents under plans of each step, against one rank that pads them.
void add_step_plans(std::vector<Layout>& all) {
  const std::vector<std::string> padded{"data.packing=none", "data.length=512"};
  const auto add = [&](const std::string& mesh, const std::string& plan, std::vector<std::string> sets) {
    sets.insert(sets.begin(), {"context.plan=" + plan, "data.packing=sequences", "data.length=512"});
    if (std::none_of(sets.begin(), sets.end(), [](const std::string& set) { return set.starts_with("context.tokens_per_rank"); }))
      sets.emplace_back("context.tokens_per_rank=128");
    all.push_back({mesh, std::move(sets), nullptr, padded});
  };
  for (const char* plan : {"bytescale", "flexsp"}) {
    add("dp=1", plan, {"context.tokens_per_rank=512"});
    for (const int n : {2, 3, 5, 8})
      add(fmt::format("dp={}", n), plan, n == 2 ? std::vector<std::string>{"context.tokens_per_rank=256"} : std::vector<std::string>{});
    for (const int zero : {1, 2}) add("dp=5", plan, {fmt::format("memory.zero={}", zero)});
    add("dp=4", plan, {"recompute.mode=full"});
    add("dp=4,tp=2", plan, {"memory.zero=1"});
    add("island=2,dp=3", plan, {});
  }
  add("dp=5", "flexsp", {"memory.zero=3"});
  add("dp=3,tp=2", "flexsp", {"memory.zero=3", "context.tokens_per_rank=256"});
  add("dp=4", "flexsp", {"context.form=gather"});
}

// Layouts of 1 to 8 ranks, every axis alone and together, uneven ones included.
std::vector<Layout> many_layouts() {
  std::vector<Layout> all{{"dp=1", {"train.micro_batch=3"}}, {"dp=1", {"recompute.mode=full"}}};
  for (const int n : {2, 3, 4, 7}) all.push_back({fmt::format("dp={}", n)});
  for (const int n : {2, 3, 4, 8})
    for (const int zero : {1, 2, 3}) all.push_back({fmt::format("dp={}", n), {fmt::format("memory.zero={}", zero)}});
  all.push_back({"dp=3", {"memory.zero=2", "train.micro_batch=1", "memory.accumulate_unsharded=false"}});
  all.push_back({"dp=3", {"memory.zero=3", "train.micro_batch=1", "memory.accumulate_unsharded=false"}});
  all.push_back({"dp=4,shard=2"});
  all.push_back({"dp=6,shard=3", {"memory.zero=2"}});
  for (const int n : {2, 3, 4, 8}) all.push_back({fmt::format("tp={}", n)});
  for (const int n : {2, 3, 4, 5}) all.push_back({fmt::format("cp={}", n)});
  all.push_back({"cp=3", {"context.form=gather", "context.balanced=false"}});
  for (const char* form : {"ring_both_ways", "gather", "token_ring"})
    for (const int n : {2, 3, 5}) all.push_back({fmt::format("cp={}", n), {fmt::format("context.form={}", form)}});
  all.push_back({"cp=8", {"context.form=token_ring"}});
  for (const int n : {2, 4, 8}) all.push_back({fmt::format("cp={}", n), {"context.form=ulysses"}});
  all.push_back({"cp=4", {"context.form=ulysses:2,ring:2"}});
  all.push_back({"cp=6", {"context.form=ulysses:2,token_ring:3"}});
  all.push_back({"cp=4", {"context.form=auto"}});
  all.push_back({"cp=3", {"context.form=token_ring", "context.balanced=false"}});
  all.push_back({"cp=2,tp=2", {"context.form=token_ring", "memory.zero=3"}});
  all.push_back({"cp=2,tp=2", {"context.form=ulysses", "memory.zero=1"}});
  for (const int n : {2, 3, 4, 5}) all.push_back({fmt::format("pp={}", n)});
  for (const char* schedule : {"gpipe", "interleaved", "zb_h1", "zbv", "dualpipev"})
    all.push_back({"pp=2", {fmt::format("pipeline.schedule={}", schedule)}});
  all.push_back({"pp=4", {"pipeline.schedule=zbv"}});
  all.push_back({"pp=3", {"pipeline.micro_batches=5"}});
  all.push_back({"pp=2", {"recompute.mode=stage"}});
  all.push_back({"dp=1", {"recompute.mode=stream", "recompute.slice=5", "recompute.head_slice=7"}});
  all.push_back({"dp=3", {"recompute.mode=stream", "recompute.slice=4", "memory.zero=2"}});
  all.push_back({"dp=2", {"recompute.mode=stream", "recompute.slice=3", "memory.zero=3", "train.micro_batch=1"}});
  all.push_back({"tp=2", {"recompute.mode=stream", "recompute.slice=5"}});
  all.push_back({"pp=2", {"recompute.mode=stream", "recompute.slice=6"}});
  all.push_back({"pp=2,tp=2", {"recompute.mode=stream", "recompute.slice=4", "memory.partition_activations=on"}});
  all.push_back({"cp=2", {"recompute.mode=stream", "recompute.slice=4"}});
  all.push_back({"cp=3", {"recompute.mode=stream", "recompute.slice=3", "context.form=gather"}});
  all.push_back({"cp=2,tp=2", {"recompute.mode=stream", "recompute.slice=4", "memory.zero=3"}});
  all.push_back({"pp=2,dp=2,tp=2", {"recompute.mode=stream", "memory.zero=1"}});
  all.push_back({"tp=2", {"train.loss_chunks=3"}});
  all.push_back({"pp=2", {"train.loss_chunks=3"}});
  all.push_back({"dp=2,tp=2"});
  all.push_back({"dp=2,tp=2", {"memory.zero=3"}});
  all.push_back({"dp=2,tp=3", {"memory.zero=2"}});
  all.push_back({"dp=4,tp=2", {"memory.zero=3"}});
  all.push_back({"cp=2,tp=2", {"memory.zero=3"}});
  all.push_back({"pp=2,tp=2", {"recompute.mode=full"}});
  all.push_back({"pp=2,cp=2"});
  all.push_back({"pp=2,dp=2,tp=2"});
  all.push_back({"pp=2,dp=2,tp=2", {"memory.zero=1", "pipeline.schedule=zb_h1"}});
  all.push_back({"pp=2,cp=2,tp=2", {"memory.zero=3"}});
  all.push_back({"pp=2,dp=2,cp=2", {"memory.zero=1"}});
  all.push_back({"dp=2,cp=2,tp=2", {"memory.zero=2"}});
  all.push_back({"dp=4,shard=2,tp=2", {"memory.zero=3"}});
  all.push_back({"pp=4,dp=2", {"pipeline.schedule=interleaved"}});
  all.push_back({"pp=3", {"pipeline.schedule=flow", "pipeline.registers=1"}});
  all.push_back({"island=2,dp=2"});
  all.push_back({"island=3,tp=2"});
  all.push_back({"island=2,pp=2,dp=2", {"memory.zero=2"}});
  add_step_plans(all);
  all.push_back({"ep=2"});
  all.push_back({"dp=2,tp=2,ep=2", {"memory.zero=3"}});
  all.push_back({"island=2,cp=2,ep=2"});
  return all;
}

// Layouts of a model with 6 experts in each layer, on packed documents. Batches that do not divide leave ranks without samples.
std::vector<Layout> expert_layouts() {
  std::vector<Layout> all{{"dp=1", {"train.micro_batch=3"}}, {"dp=3", {"memory.zero=2"}}};
  for (const int n : {2, 3, 4}) all.push_back({fmt::format("ep={}", n)});
  all.push_back({"ep=4", {"train.micro_batch=1", "recompute.mode=full"}});
  all.push_back({"dp=2,ep=2"});
  all.push_back({"dp=3,ep=2", {"train.micro_batch=1"}});
  for (const int zero : {1, 2, 3}) all.push_back({"dp=2,ep=4", {fmt::format("memory.zero={}", zero)}});
  all.push_back({"dp=3,ep=2", {"memory.zero=3", "train.micro_batch=1", "memory.accumulate_unsharded=false"}});
  all.push_back({"dp=4,shard=2,ep=2", {"memory.zero=2"}});
  all.push_back({"tp=2,ep=2"});
  all.push_back({"dp=2,tp=2,ep=2", {"memory.zero=1"}});
  all.push_back({"cp=2,ep=2"});
  all.push_back({"cp=2,ep=3", {"memory.zero=3", "context.form=gather"}});
  all.push_back({"pp=2,ep=2"});
  all.push_back({"pp=2,ep=3", {"pipeline.schedule=zb_h1", "pipeline.micro_batches=3"}});
  all.push_back({"pp=2,dp=2,ep=2", {"memory.zero=1", "recompute.mode=full"}});
  all.push_back({"pp=2,tp=2,ep=2"});
  all.push_back({"cp=2,tp=2,ep=2", {"memory.zero=2"}});
  all.push_back({"island=2,dp=2,ep=2"});
  all.push_back({"ep=6", {"expert.dispatch=hierarchical", "expert.node_ranks=3"}});
  all.push_back({"dp=2,ep=4", {"expert.placement=fssdp", "expert.memory_slots=1"}});
  return all;
}

std::string words(const Layout& layout) {
  std::string text = layout.mesh;
  for (const std::string& set : layout.sets) text += fmt::format(" {}", set);
  return text;
}

// Bytes of state per rank if everything that can be sharded were sharded evenly.
double ideal_state(const Layout& layout, double elements, double of_experts) {
  const mesh::Mesh mesh = mesh::parse_mesh(layout.mesh);
  double zero = mesh.extent("shard") > 1 ? 3 : 0;
  for (const std::string& set : layout.sets)
    if (set.starts_with("memory.zero=")) zero = set.back() - '0';
  const bool experts = of_experts > 0 && mesh.extent("ep") > 1;  // whole along tp
  const double dense = experts ? elements - of_experts : elements;
  const double own = (dense / mesh.extent("tp") + (experts ? of_experts / mesh.extent("ep") : 0)) / mesh.extent("pp");
  const double keepers = (mesh.extent("shard") > 1 ? mesh.extent("shard") : mesh.extent("dp")) * mesh.extent("cp");
  return 4 * own / (zero >= 3 ? keepers : 1) + 4 * own / (zero >= 2 && mesh.extent("pp") == 1 ? keepers : 1) +
         8 * own / (zero >= 1 ? keepers : 1);
}

int print_table(const VerifyArguments& given) {
  base::Terminal terminal;
  terminal.line(
      "| layout | ranks | family | loss difference | norm difference | gradients | parameters | activations | loss | state of a rank | "
      "even share | ratio |");
  terminal.line("|---|---|---|---|---|---|---|---|---|---|---|---|");
  bool all_good = true;
  for (const std::string family : {"llama", "gpt2", "gla", "mixtral"}) {
    VerifyArguments a = given;
    a.sets.push_back("model.kind=" + family);
    if (family == "gpt2") a.sets.push_back("model.kv_heads=8");
    if (family == "gla") a.sets.push_back("context.balanced=false");
    if (family == "mixtral")
      a.sets.insert(a.sets.end(), {"model.moe.experts=6", "model.moe.width=40", "model.moe.z_loss=0.001", "data.packing=separate"});
    const train::LayoutTraceOptions options{.steps = 10, .tensors = false, .plant = {}, .cache = (cache_folder() / "data").string()};
    std::map<std::vector<std::string>, train::LayoutTrace> alone;
    for (const Layout& layout : family == "mixtral" ? expert_layouts() : many_layouts()) {
      const train::LayoutTrace many = record_on(a, layout, options);
      if (!alone.contains(layout.data)) alone[layout.data] = record_on(a, {"dp=1", layout.data}, options);
      const train::LayoutTrace& one = alone[layout.data];
      double loss = 0, norm = 0;
      for (size_t i = 0; i < one.steps.size(); ++i) {
        loss = std::max(loss, std::abs(one.steps[i].loss - many.steps[i].loss));
        norm = std::max(norm, std::abs(one.steps[i].gradient_norm / many.steps[i].gradient_norm - 1));
      }
      for (size_t i = 0; i < one.steps.size(); ++i)
        if (const std::string apart = train::routing_difference(many.steps[i].routing, one.steps[i].routing); !apart.empty())
          terminal.line(fmt::format("{}, step {}: {}", words(layout), i + 1, apart));
      int64_t state = 0;
      for (const train::RankMemory& rank : many.memory) state = std::max(state, rank.state());
      const double ideal = ideal_state(layout, static_cast<double>(many.elements), static_cast<double>(many.expert_elements));
      const auto sent = [&](comm::Purpose purpose) {
        return base::human_bytes(many.sent[static_cast<size_t>(purpose)] / static_cast<int64_t>(many.memory.size()) / options.steps);
      };
      all_good = all_good && loss <= 1e-5;
      terminal.line(fmt::format("| {} | {} | {} | {:.1e} | {:.1e} | {} | {} | {} | {} | {} | {} | {:.2f} |", words(layout),
                                many.memory.size(), family, loss, norm, sent(comm::Purpose::gradient), sent(comm::Purpose::parameter),
                                sent(comm::Purpose::activation), sent(comm::Purpose::loss), base::human_bytes(state),
                                base::human_bytes(static_cast<int64_t>(ideal)), static_cast<double>(state) / ideal));
    }
  }
  return all_good ? 0 : 3;
}

}  // namespace

int verify_command(const VerifyArguments& a) {
  print_hints(recipe_of(a, {"dp=1"}), *stderr_terminal());
  return a.table ? print_table(a) : compare(a);
}

}  // namespace cairn::cli
