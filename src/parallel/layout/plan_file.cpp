#include "parallel/layout/plan_file.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::parallel {
namespace {

using base::Json;

constexpr int64_t kMaxPlanBytes = int64_t{1} << 26;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxNumber = int64_t{1} << 40;  // of samples, blocks and the like: more is a mistake

// One JSON object of the file. Keys that were never asked for are refused by nothing_else().
class PlanReader {
 public:
  PlanReader(const Json& object, std::string file, std::string path) : object_(object), file_(std::move(file)), path_(std::move(path)) {
    if (!object.is_object()) fail("", object, "an object");
  }

  bool has(const char* key) {
    known_.insert(key);
    return object_.contains(key);
  }
  const Json& at(const char* key) {
    if (!has(key)) base::fail_input("{}: {}{} is missing", file_, path_, key);
    return object_[key];
  }

  int64_t number(const char* key, int64_t otherwise, int64_t least, int64_t most) {
    return has(key) ? as_number(key, object_[key], least, most) : otherwise;
  }
  int64_t as_number(const std::string& key, const Json& value, int64_t least, int64_t most) const {
    const bool whole = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{1} << 62);
    if (!whole || value.get<int64_t>() < least || value.get<int64_t>() > most)
      fail(key, value, fmt::format("a whole number from {} to {}", least, most));
    return value.get<int64_t>();
  }
  std::string text(const char* key, std::string otherwise) { return has(key) ? as_text(key, object_[key]) : otherwise; }
  std::string as_text(const std::string& key, const Json& value) const {
    if (!value.is_string()) fail(key, value, "a text");
    return value.get<std::string>();
  }
  std::string one_of(const char* key, const std::string& otherwise, const std::vector<std::string>& words) {
    const std::string word = text(key, otherwise);
    if (std::find(words.begin(), words.end(), word) == words.end()) fail(key, object_[key], fmt::format("{}", fmt::join(words, " or ")));
    return word;
  }
  template <typename E, size_t N>
  E one_of(const char* key, E otherwise, const base::EnumName<E> (&names)[N]) {
    const std::string word = one_of(key, base::enum_name(names, otherwise), base::enum_words(names));
    return base::parse_enum(names, key, word);
  }
  template <typename T>
  std::vector<T> numbers(const char* key, int64_t least, int64_t most) {
    std::vector<T> list;
    if (!has(key)) return list;
    const Json& value = object_[key];
    if (!value.is_array() || static_cast<int64_t>(value.size()) > kMaxRanks)
      fail(key, value, fmt::format("a list of at most {} numbers", kMaxRanks));
    for (const Json& one : value) list.push_back(static_cast<T>(as_number(key, one, least, most)));
    return list;
  }
  void nothing_else() const {
    for (const auto& [key, value] : object_.items())
      if (!known_.contains(key)) base::fail_unknown(fmt::format("{}: key", file_), path_ + key, full_names());
  }
  [[noreturn]] void fail(const std::string& key, const Json& value, const std::string& wanted) const {
    base::fail_input("{}: {}{} = {}: must be {}", file_, path_, key, base::shown(value), wanted);
  }

 private:
  std::vector<std::string> full_names() const {
    std::vector<std::string> names;
    for (const std::string& key : known_) names.push_back(path_ + key);
    return names;
  }

  const Json& object_;
  std::string file_, path_;
  std::set<std::string> known_;
};

// Adds the file and key to a bad_input error.
template <typename Act>
auto within(const std::string& file, const std::string& key, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::bad_input) throw;
    base::fail_input("{}: {}: {}", file, key, error.what());
  }
}

mesh::Mesh read_mesh(PlanReader& plan, const base::OrderedJson& ordered, const std::string& file) {
  mesh::Mesh mesh;
  const Json& axes = plan.at("mesh");
  if (axes.is_string()) {
    mesh = within(file, "mesh", [&] { return mesh::parse_mesh(axes.get<std::string>()); });
  } else {
    PlanReader reader(axes, file, "mesh.");
    int64_t ranks = 1;
    for (const auto& [axis, size] : ordered["mesh"].items()) {  // in the order of the file: the outermost first
      const int64_t extent = reader.as_number(axis, axes[axis], 1, kMaxRanks);
      ranks *= extent;
      if (ranks > kMaxRanks) base::fail_input("{}: mesh: {} ranks and more: at most {}", file, ranks, kMaxRanks);
      mesh.axes.push_back({axis, static_cast<int>(extent)});
    }
  }
  for (const int rank : plan.numbers<int>("ranks", 0, kMaxRanks - 1)) mesh.ranks.push_back(rank);
  within(file, "mesh", [&] { mesh::check(mesh); });
  return mesh;
}

void read_pipeline(Plan& into, PlanReader& plan, const std::string& file) {
  if (!plan.has("pipeline")) return;
  PlanReader pipeline(plan.at("pipeline"), file, "pipeline.");
  into.schedule = pipeline.text("schedule", "");
  into.stage_blocks = pipeline.numbers<int64_t>("stage_blocks", 1, kMaxNumber);
  into.rank_of_stage = pipeline.numbers<int>("rank_of_stage", 0, kMaxRanks - 1);
  into.registers = static_cast<int>(pipeline.number("registers", 0, 0, kMaxRanks));
  into.routing = pipeline.one_of("routing", Routing::fixed, kRoutingNames);
  pipeline.nothing_else();
  if (into.stage_blocks.size() != into.rank_of_stage.size())
    base::fail_input("{}: pipeline: stage_blocks has {} stages and rank_of_stage {}", file, into.stage_blocks.size(),
                     into.rank_of_stage.size());
}

// Every field, under its name in the file.
std::vector<std::pair<std::string, std::string>> spelled_out(const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> fields;
  for (const std::string& axis : mesh::axis_names())
    fields.emplace_back("mesh." + axis, plan.mesh.parts.empty() ? std::to_string(plan.mesh.extent(axis)) : "");
  fields.emplace_back("mesh", mesh::to_string(plan.mesh));
  fields.emplace_back("zero", std::to_string(plan.zero));
  fields.emplace_back("partition", base::enum_name(kPartitionNames, plan.partition));
  fields.emplace_back("precision", plan.precision);
  fields.emplace_back("micro_batch", std::to_string(plan.micro_batch));
  fields.emplace_back("micro_batches", std::to_string(plan.micro_batches));
  fields.emplace_back("context.form", context_form(plan));
  fields.emplace_back("context.balanced", plan.context.balanced ? "true" : "false");
  fields.emplace_back("context.linear", base::enum_name(kLinearFormNames, plan.context.linear));
  fields.emplace_back("context.scan_blocks", std::to_string(plan.context.scan_blocks));
  fields.emplace_back("context.state_dtype", base::enum_name(kStateDtypeNames, plan.context.state_dtype));
  fields.emplace_back("pipeline.schedule", plan.schedule.empty() ? "none" : plan.schedule);
  fields.emplace_back("pipeline.stage_blocks", fmt::format("[{}]", fmt::join(plan.stage_blocks, ", ")));
  fields.emplace_back("pipeline.rank_of_stage", fmt::format("[{}]", fmt::join(plan.rank_of_stage, ", ")));
  fields.emplace_back("pipeline.registers", std::to_string(plan.registers));
  fields.emplace_back("pipeline.routing", base::enum_name(kRoutingNames, plan.routing));
  return fields;
}

// The entries that differ between two maps.
template <typename Map, typename Text>
void compare_maps(std::vector<std::string>& lines, const std::string& name, const Map& before, const Map& after, Text text) {
  std::set<std::string> keys;
  for (const Map* map : {&before, &after})
    for (const auto& [key, value] : *map) keys.insert(key);
  for (const std::string& key : keys) {
    const std::string from = text(before, key), to = text(after, key);
    if (from != to) lines.push_back(fmt::format("{}.{}: {} -> {}", name, key, from, to));
  }
}

}  // namespace

Plan parse_plan(std::string_view json, const std::string& file) {
  const base::JsonLimits limits{.depth = 8};
  const base::GuardedJson guarded = base::parse_json_guarded(json, limits);
  if (!guarded.trouble.empty()) base::fail_input("{}: {}", file, guarded.trouble);
  const base::OrderedJson ordered = base::parse_ordered_json(json);
  PlanReader reader(guarded.value, file, "");
  Plan plan;
  plan.mesh = read_mesh(reader, ordered, file);
  if (reader.has("placements")) {
    const Json& all = reader.at("placements");
    PlanReader placements(all, file, "placements.");
    for (const auto& [name, value] : all.items()) {
      const std::string text = placements.as_text(name, value);
      plan.placements[name] = within(file, "placements." + name, [&] { return mesh::parse_placement(text); });
    }
  }
  if (reader.has("sync")) {
    const Json& all = reader.at("sync");
    PlanReader sync(all, file, "sync.");
    for (const auto& [axis, rule] : all.items()) {
      if (!mesh::is_axis(axis)) base::fail_unknown(fmt::format("{}: mesh axis in sync", file), axis, mesh::axis_names());
      plan.sync[axis] = sync.as_text(axis, rule);
    }
  }
  plan.micro_batch = reader.number("micro_batch", 1, 1, kMaxNumber);
  plan.micro_batches = reader.number("micro_batches", 0, 0, kMaxNumber);
  plan.precision = reader.one_of("precision", "fp32", {"fp32", "bf16"});
  plan.zero = static_cast<int>(reader.number("zero", 0, 0, 3));
  plan.partition = reader.one_of("partition", Partition::slices, kPartitionNames);
  if (reader.has("context")) {
    PlanReader context(reader.at("context"), file, "context.");
    const std::string form = context.text("form", "ring");
    plan.context.automatic = form == kAutomaticContext;
    if (!plan.context.automatic)
      plan.context.method = within(file, "context.form", [&] { return model::parse_context_method(form, plan.mesh.extent("cp")); });
    if (context.has("balanced")) {
      const Json& balanced = context.at("balanced");
      if (!balanced.is_boolean()) context.fail("balanced", balanced, "true or false");
      plan.context.balanced = balanced.get<bool>();
    }
    plan.context.linear = context.one_of("linear", model::LinearForm::zeco, kLinearFormNames);
    plan.context.scan_blocks = context.number("scan_blocks", 0, 0, kMaxNumber);
    plan.context.state_dtype = context.one_of("state_dtype", model::StateDtype::fp32, kStateDtypeNames);
    context.nothing_else();
  }
  read_pipeline(plan, reader, file);
  reader.nothing_else();
  return plan;
}

Plan read_plan(const std::filesystem::path& file) { return parse_plan(base::read_file(file, kMaxPlanBytes), file.string()); }

std::vector<std::string> differences(const Plan& before, const Plan& after) {
  std::vector<std::string> lines;
  const auto from = spelled_out(before), to = spelled_out(after);
  for (size_t i = 0; i < from.size(); ++i)
    if (from[i].second != to[i].second) lines.push_back(fmt::format("{}: {} -> {}", from[i].first, from[i].second, to[i].second));
  using Rules = std::map<std::string, std::string>;
  compare_maps(lines, "sync", before.sync, after.sync, [](const Rules& rules, const std::string& axis) {
    const auto found = rules.find(axis);
    return found == rules.end() ? "none" : found->second;
  });
  using Placements = std::map<std::string, mesh::Placement>;
  if (before.mesh == after.mesh && before.placements.empty() != after.placements.empty()) {
    // A plan without placements has those that the model's blocks run.
    lines.push_back(before.placements.empty() ? "placements: left out -> given" : "placements: given -> left out");
    return lines;
  }
  compare_maps(lines, "placements", before.placements, after.placements, [](const Placements& all, const std::string& name) {
    const auto found = all.find(name);
    return found == all.end() ? "replicated" : mesh::to_string(found->second);
  });
  return lines;
}

}  // namespace cairn::parallel
