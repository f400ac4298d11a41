// `cairn experts place`: experts to ranks by which follow which in a text (planner/experts/place_experts.h), for `cairn generate`.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/recipe_overrides.h"
#include "cli/text/expert_placement.h"
#include "cli/text/language_model.h"
#include "data/corpus.h"
#include "planner/experts/place_experts.h"
#include "planner/experts/record_routing.h"
#include "snapshot/pretrained.h"

namespace cairn::cli {
namespace {

constexpr int64_t kTraceLengthMax = 1024;  // tokens read at once

int ranks_along_ep(const std::string& mesh) {
  int ranks = 0;
  for (const mesh::Axis& axis : parse_mesh_axes(mesh)) {
    if (axis.name == "ep")
      ranks = axis.size;
    else if (axis.name != "tp" && axis.name != "pp")
      base::fail_input("--mesh {}: generation has no axis {}; write ep=N", mesh, axis.name);
  }
  if (ranks < 2) base::fail_input("--mesh {}: experts are placed along ep; write ep=2 or more", mesh);
  return ranks;
}

// The first tokens of a text: at most `most`.
std::vector<int64_t> tokens_of(const std::string& path, const LanguageModel& model, int64_t most, base::Log& log) {
  base::Recipe recipe;
  recipe.set("data.path", path, "--data");
  recipe.set("data.tokenizer_file", model.path, "the model");
  const data::DataOptions options = recipe.read(data::data_schema());
  const data::Corpus corpus = data::open_token_streams(options, {.threads = processors()}, log);
  std::vector<int64_t> tokens;
  for (const auto& stream : corpus.token_streams) {
    const int64_t n = std::min(most - static_cast<int64_t>(tokens.size()), stream->size());
    const size_t before = tokens.size();
    tokens.resize(before + static_cast<size_t>(n));
    if (n > 0) stream->copy(0, n, tokens.data() + before);
  }
  return tokens;
}

std::string describe_hops(const planner::ExpertPlacement& placement, const planner::Affinity& affinity, int64_t tokens, int node_ranks) {
  const planner::Hops hops = planner::count_hops(placement, affinity, node_ranks);
  const auto by_token = [&](int64_t count) { return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(1, tokens)); };
  std::string text = fmt::format("{:7.3f} hops per token, {:5.1f} % of transitions stay", by_token(hops.inside + hops.between),
                                 100 * hops.kept_fraction());
  if (node_ranks > 0) text += fmt::format(", {:.3f} inside a node, {:.3f} between nodes", by_token(hops.inside), by_token(hops.between));
  return text;
}

}  // namespace

int experts_command(const ExpertsArguments& a) {
  const int ranks = ranks_along_ep(a.mesh);
  base::Terminal terminal;
  base::Log log({.level = base::Level::warn, .terminal = std::make_shared<base::Terminal>(), .file = {}});
  at::set_num_threads(threads_among(1));
  LanguageModel model = open_language_model(a.folder, log);
  model.require_tokenizer("--data");
  if (!model.experts.empty() || model.adapters_together) base::fail_input("{}: experts of one model are placed; name that model", a.folder);
  const int experts = planner::expert_layers(*model.model).experts;
  if (experts % ranks != 0)
    base::fail_input("--mesh {}: {} experts do not divide over {} ranks; use a divisor of {}", a.mesh, experts, ranks, experts);
  const int64_t length = std::min(model.shape.length, kTraceLengthMax);
  const std::vector<int64_t> tokens = tokens_of(a.data, model, 2 * a.tokens, log);
  if (tokens.size() < 2) base::fail_input("--data {}: no tokens in it", a.data);
  // What follows the tokens that are traced judges the placement.
  const auto traced = static_cast<int64_t>(tokens.size()) > a.tokens ? static_cast<size_t>(a.tokens) : tokens.size();
  model.prepare_for_length(length);
  const planner::RoutedModel routed{*model.model, *model.weights, model.buffers};
  const planner::RoutingTrace trace = planner::record_routing(routed, std::span(tokens).first(traced), length);
  if (!a.trace.empty()) planner::save_trace(a.trace, trace);
  const planner::Affinity affinity = planner::count_affinity(trace, experts);
  const planner::ExpertPlacement before = planner::contiguous_placement(trace.layers, experts, ranks);
  const planner::ExpertPlacement found = planner::place_experts(
      affinity, {.ranks = ranks, .node_ranks = a.node_ranks, .restarts = a.restarts, .seed = static_cast<uint64_t>(a.seed)});
  const snapshot::Pretrained opened = snapshot::open_pretrained(a.folder, log);
  planner::save_placement(a.out, found, placement_target(opened, *model.model, ranks));

  terminal.line(fmt::format("{} in {} layers on {} ranks, from {}", base::plural(experts, "expert"), trace.layers, ranks,
                            base::plural(trace.tokens(), "token")));
  terminal.line("before  " + describe_hops(before, affinity, trace.tokens(), a.node_ranks));
  terminal.line("after   " + describe_hops(found, affinity, trace.tokens(), a.node_ranks));
  if (tokens.size() > traced) {
    const planner::RoutingTrace other = planner::record_routing(routed, std::span(tokens).subspan(traced), length);
    const planner::Affinity next = planner::count_affinity(other, experts);
    terminal.line(fmt::format("on the {} after these", base::plural(other.tokens(), "token")));
    terminal.line("before  " + describe_hops(before, next, other.tokens(), a.node_ranks));
    terminal.line("after   " + describe_hops(found, next, other.tokens(), a.node_ranks));
  }
  terminal.line(fmt::format("{}: for `cairn generate {} --mesh ep={} --flow exflow --placement {}`", a.out, a.folder, ranks, a.out));
  return 0;
}

}  // namespace cairn::cli
