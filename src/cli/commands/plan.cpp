// `cairn plan`: how a recipe is laid out over ranks, why, and what a step sends; plans as files, and two of them compared.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/commands/plan_infer.h"
#include "cli/launch/links.h"
#include "cli/recipe_overrides.h"
#include "cli/stderr_terminal.h"
#include "mesh/local_shard.h"
#include "model/model.h"
#include "model/needs.h"
#include "parallel/layout/plan_file.h"
#include "planner/graph/model_graph.h"
#include "planner/rank_bytes.h"
#include "planner/tensor_parallel/auto_tp.h"
#include "planner/tensor_parallel/placement_reason.h"
#include "planner/traffic.h"
#include "train/planned.h"

namespace cairn::cli {
namespace {

constexpr size_t kRanksInspected = 64;

std::string sizes_in_words(const std::vector<int64_t>& sizes) { return sizes.empty() ? "-" : fmt::format("{}", fmt::join(sizes, "x")); }

// "tp: split(0) into 86+86+85": what each rank along the axis has, instead of where it begins and ends.
std::string placement_in_words(const parallel::Plan& plan, const model::Parameter& parameter, const mesh::Placement& placement) {
  std::string text;
  for (const mesh::Placement::OnAxis& on : placement.axes) {
    const auto* split = std::get_if<mesh::Split>(&on.how);
    const auto* ragged = std::get_if<mesh::Ragged>(&on.how);
    if (!split && !ragged) continue;
    const auto dim = static_cast<size_t>(split ? split->dim : ragged->dim);
    std::vector<int64_t> parts;
    for (const int rank : plan.mesh.peers(plan.mesh.members().front(), on.axis))
      parts.push_back(mesh::local_shard(placement, plan.mesh.axis_coordinates(rank), parameter.shape).local_shape().at(dim));
    const bool even = std::all_of(parts.begin(), parts.end(), [&](int64_t part) { return part == parts.front(); });
    text += fmt::format(
        "{}{}: {}({}) into {}", text.empty() ? "" : ", ", on.axis, split ? "split" : "ragged", dim,
        even && parts.size() > 2 ? fmt::format("{} x {}", parts.size(), parts.front()) : fmt::format("{}", fmt::join(parts, "+")));
  }
  return text.empty() ? "replicated" : text;
}

// Parameters that are identical in every layer.
struct ParameterRow {
  std::string name, shape, placement, reason;
  int64_t count = 0;
};

// The rule that splits each parameter along tp.
std::map<std::string, std::string> tp_rules(const train::Planned& p) {
  std::map<std::string, std::string> rules;
  const int ranks = p.plan.mesh.extent("tp");
  if (ranks == 1) return rules;
  const planner::OpGraph graph =
      planner::graph_of(planner::describe(*p.task.model), {.batch = p.plan.micro_batch * p.batch.rows, .length = p.batch.length});
  for (const planner::RuledPlacement& one : planner::auto_tp(graph, ranks, {}, planner::OddHeads::replicate))
    rules[one.parameter] = one.rule + "; ";
  return rules;
}

std::vector<ParameterRow> parameter_rows(const train::Planned& p, bool reasons) {
  const std::map<std::string, std::string> rules = reasons ? tp_rules(p) : std::map<std::string, std::string>();
  std::vector<ParameterRow> rows;
  for (const model::Parameter& parameter : p.task.model->parameters()) {
    const mesh::Placement placement = parallel::placement_of(p.plan, parameter.name);
    ParameterRow row{planner::folded_name(parameter.name), sizes_in_words(parameter.shape),
                     placement_in_words(p.plan, parameter, placement),
                     (rules.contains(parameter.name) ? rules.at(parameter.name) : "") + planner::placement_reason(parameter, placement), 1};
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const ParameterRow& one) {
      return one.name == row.name && one.shape == row.shape && one.placement == row.placement && one.reason == row.reason;
    });
    known == rows.end() ? rows.push_back(row) : static_cast<void>(++known->count);
  }
  return rows;
}

// Lines of cells under a head, each column as wide as its widest. The last is not padded.
std::string table(const std::vector<std::vector<std::string>>& lines, const std::vector<bool>& right_aligned) {
  std::vector<size_t> widths;
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], line[i].size());
    }
  std::string text;
  for (const auto& line : lines) {
    text += " ";
    for (size_t i = 0; i < line.size(); ++i) {
      if (i + 1 == line.size() && !right_aligned[i])
        text += " " + line[i];
      else
        text += right_aligned[i] ? fmt::format(" {:>{}} ", line[i], widths[i]) : fmt::format(" {:<{}} ", line[i], widths[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

std::string layout_in_words(const train::Planned& p) {
  const parallel::Plan& plan = p.plan;
  std::string out = fmt::format("plan: {} on {} rank{}\n", mesh::to_string(plan.mesh), plan.mesh.size(), plan.mesh.size() == 1 ? "" : "s");
  const auto line = [&](const char* name, const std::string& value) { out += fmt::format("  {:<14} {}\n", name, value); };
  line("model", fmt::format("{}, {} parameters in {} tensors", p.settings.model.kind,
                            base::human_count(static_cast<double>(p.task.model->elements())), p.task.model->parameters().size()));
  line("step",
       fmt::format("{} samples of {} positions, micro-batches of {}", p.batch.samples * p.batch.rows, p.batch.length, plan.micro_batch));
  line("precision", plan.precision);
  if (plan.zero > 0) {
    static const char* const kSharded[] = {"", "optimizer state", "optimizer state and gradients",
                                           "optimizer state, gradients and parameters"};
    line("sharded",
         fmt::format("{} (zero {}), over {} ranks", kSharded[plan.zero], plan.zero, plan.mesh.extent("shard") * plan.mesh.extent("cp")));
  }
  if (!plan.stage_blocks.empty())
    line("pipeline", fmt::format("{}, {} micro-batches, blocks of each stage {}, on ranks {} along pp", plan.schedule, plan.micro_batches,
                                 fmt::join(plan.stage_blocks, " "), fmt::join(plan.rank_of_stage, " ")));
  if (plan.mesh.extent("cp") > 1)
    line("context",
         fmt::format("{}, {}", parallel::context_form(plan), plan.context.balanced ? "balanced" : "one stretch after the other"));
  if (!p.context_reason.empty()) line("", fmt::format("context.form = auto chose {}", p.context_reason));
  if (plan.mesh.extent("cp") > 1 && model::needs_of(p.settings.model.kind).linear_attention)
    line("states", fmt::format("{}, {}", base::enum_name(parallel::kLinearFormNames, plan.context.linear),
                               base::enum_name(parallel::kStateDtypeNames, plan.context.state_dtype)));
  if (parallel::places_experts(plan))
    line("experts", fmt::format("on ranks along ep; {} way of tokens to them{}{}",
                                base::enum_name(parallel::kExpertDispatchNames, p.settings.layout.expert.dispatch),
                                p.settings.layout.expert.placement == parallel::ExpertPlacement::fssdp
                                    ? fmt::format("; busy ones are copied for a step, up to {} of a layer to each rank (their bytes depend "
                                                  "on the load and are not counted below)",
                                                  p.settings.layout.expert.memory_slots)
                                    : "",
                                plan.zero > 0 ? "; other parameters are replicated along ep, and sharded within it" : ""));
  for (const auto& [axis, rule] : plan.sync) line(("sync " + axis).c_str(), rule);
  return out;
}

std::string memory_in_words(const train::Planned& p) {
  const int64_t master_bytes = p.settings.train.parameters == train::Precision::bf16 ? 2 : 4;
  planner::RankBytes most;
  std::vector<int> ranks = p.plan.mesh.peers_along(p.plan.mesh.members().front(), parallel::model_axes(p.plan));
  if (p.plan.mesh.members().size() <= kRanksInspected) ranks = p.plan.mesh.members();  // else the others are like these, or have less
  for (const int rank : ranks) {
    const planner::RankBytes one = planner::rank_bytes(*p.task.model, p.plan, p.rules, rank, master_bytes);
    most = {std::max(most.parameters, one.parameters), std::max(most.gradients, one.gradients),
            std::max(most.trained_elements, one.trained_elements)};
  }
  int64_t trained = 0;
  for (size_t i = 0; i < p.rules.trained.size(); ++i)
    if (p.rules.trained[i]) trained += p.task.model->parameters()[i].elements();
  const double share = trained == 0 ? 0 : static_cast<double>(most.trained_elements) / static_cast<double>(trained);
  const auto optimizer = static_cast<int64_t>(share * static_cast<double>(train::optimizer_bytes(p.settings, *p.task.model)));
  return fmt::format(
      "memory between steps, of the rank that has most: parameters {}, gradients {}, optimizer {}\n", base::human_bytes(most.parameters),
      base::human_bytes(most.gradients / (p.settings.train.gradients == train::Precision::bf16 ? 2 : 1)), base::human_bytes(optimizer));
}

std::string placements_in_words(const train::Planned& p, bool reasons) {
  std::vector<std::vector<std::string>> lines{{"parameter", "times", "shape", "placement"}};
  if (reasons) lines.front().push_back("because");
  for (const ParameterRow& row : parameter_rows(p, reasons)) {
    lines.push_back({row.name, std::to_string(row.count), row.shape, row.placement});
    if (reasons) lines.back().push_back(row.reason);
  }
  return "parameters (identical ones of several layers share a line)\n" + table(lines, {false, true, false, false, false});
}

std::string traffic_by_axis(const std::vector<planner::TrafficRow>& rows) {
  if (rows.empty()) return "a step sends nothing: there is one rank\n";
  std::map<std::pair<std::string, std::string>, int64_t> bytes;
  int64_t all = 0;
  bool known = true;
  for (const planner::TrafficRow& row : rows) {
    bytes[{row.axis, std::string(comm::name(row.purpose))}] += row.bytes;
    all += row.bytes;
    known = known && row.predicted;
  }
  std::vector<std::vector<std::string>> lines{{"along", "for", "bytes", ""}};
  for (const auto& [key, sum] : bytes) lines.push_back({key.first, key.second, std::to_string(sum), base::human_bytes(sum)});
  lines.push_back({"sum", "", std::to_string(all), base::human_bytes(all)});
  return fmt::format("what all ranks send in one step{}\n", known ? "" : ", as far as it can be told (--explain says what cannot)") +
         table(lines, {false, false, true, false});
}

std::string messages_in_words(const std::vector<planner::TrafficRow>& rows) {
  if (rows.empty()) return "";
  std::vector<std::vector<std::string>> lines{{"what", "along", "collective", "tensor", "times", "bytes", "for", "because"}};
  for (const planner::TrafficRow& row : rows)
    lines.push_back({row.what, row.axis, row.collective, fmt::format("{} {}", sizes_in_words(row.shape), row.dtype),
                     row.predicted ? std::to_string(row.times) : "?",
                     row.predicted ? std::to_string(row.bytes) : fmt::format("{} {}", row.expected ? "~" : "<=", row.bytes),
                     std::string(comm::name(row.purpose)), row.reason});
  return "messages of one step (bytes: of all ranks together, as the ledger will show them; tensor: what a group of ranks works on)\n" +
         table(lines, {false, false, false, false, true, true, false, false}) +
         "not in a step: evaluations, snapshots, and in the first step the shapes of what crosses between stages\n";
}

// What context.form = auto goes by.
model::ContextLinks context_links(const PlanArguments& a) {
  model::ContextLinks found{.origin = "assumed; --links cp=20us,10Gbit says otherwise"};
  for (const std::string& text : a.links) {
    const size_t equals = text.find('=');
    const std::string axis = text.substr(0, equals);
    const auto link = equals == std::string::npos ? std::nullopt : parse_links(text.substr(equals + 1));
    if (!link) base::fail_input("--links {}: write AXIS=LATENCY,BANDWIDTH, as in cp=20ms,100Mbit", text);
    if (axis == "cp")
      found = {.latency_s = std::chrono::duration<double>(link->latency).count(),
               .bytes_per_s = link->bytes_per_s,
               .shared_card = link->contention == comm::LinkModel::Contention::per_nic,
               .origin = "as given"};
    else if (a.infer.empty())
      base::fail_input("--links {}: without --infer only links along cp are used, by context.form = auto: write cp=20ms,100Mbit", text);
  }
  return found;
}

int compare(const PlanArguments& a) {
  if (!a.recipe.empty() || !a.mesh.empty() || !a.sets.empty() || !a.plan.empty() || !a.save.empty() || a.json || a.explain ||
      a.nproc_given || !a.infer.empty())
    base::fail_input("--diff compares two saved plans: leave out everything else");
  const std::vector<std::string> lines = parallel::differences(parallel::read_plan(a.diff[0]), parallel::read_plan(a.diff[1]));
  base::Terminal terminal;
  for (const std::string& line : lines) terminal.line(base::printable(line));
  if (lines.empty()) terminal.line("the plans are the same");
  return 0;
}

}  // namespace

int plan_command(const PlanArguments& a) {
  if (!a.diff.empty()) return compare(a);
  if (!a.plan.empty() && !a.mesh.empty())
    base::fail_input("--mesh {} --plan {}: the plan says how ranks are arranged: leave out --mesh", a.mesh, a.plan);
  const base::Recipe recipe = apply_overrides(a.recipe.empty() ? base::Recipe() : base::Recipe::parse(read_recipe_file(a.recipe)),
                                              {.data = a.data, .mesh = a.mesh, .sets = a.sets});
  print_hints(recipe, *stderr_terminal());
  const std::optional<parallel::Plan> given = a.plan.empty() ? std::nullopt : std::optional(parallel::read_plan(a.plan));
  const int ranks = a.nproc_given ? a.nproc : given ? given->mesh.size() : rank_count(recipe);
  const train::Planned p = train::planned(recipe, ranks, given ? &*given : nullptr, false, context_links(a));
  if (!a.infer.empty()) {
    if (a.explain) base::fail_input("--infer --explain: inference shows every move and whom it is for by itself: leave out --explain");
    const Inferred inferred = inferred_placements(p, {a.infer, a.links, a.places});
    std::string text = a.json ? inferred.json : inferred.tables;
    if (!a.save.empty()) {
      parallel::Plan plan = p.plan;
      plan.placements = inferred.parameters;
      base::write_atomically(a.save, parallel::to_json(plan));
      if (!a.json) text += fmt::format("{}: saved; cairn train --plan {} trains with it\n", a.save, a.save);
    }
    base::Terminal().line(base::printable(text.substr(0, text.size() - 1)));
    return 0;
  }
  if (!a.places.empty()) base::fail_input("--place is for --infer");
  const std::string json = parallel::to_json(p.plan);
  if (!a.save.empty()) base::write_atomically(a.save, json);
  base::Terminal terminal;
  if (a.json) {
    terminal.line(json.substr(0, json.size() - 1));
    return 0;
  }
  const std::vector<planner::TrafficRow> rows = planner::step_traffic(*p.task.model, p.plan, p.batch, p.rules);
  std::string text = layout_in_words(p) + memory_in_words(p) + placements_in_words(p, a.explain) + traffic_by_axis(rows);
  if (a.explain) text += messages_in_words(rows);
  if (p.settings.data.needs().is_text() && p.settings.model.from.empty() && p.settings.data.learns_tokenizer())
    text += fmt::format("(a tokenizer is learned first: its vocabulary is taken to have {} entries, data.vocab)\n", p.settings.data.vocab);
  if (!a.save.empty()) text += fmt::format("{}: saved; cairn train --plan {} trains with it\n", a.save, a.save);
  terminal.line(base::printable(text.substr(0, text.size() - 1)));
  return 0;
}

}  // namespace cairn::cli
