// `cairn generate`: continues prompts with a trained model.
#include "model/generate/generate.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/rank_setups.h"
#include "cli/recipe_overrides.h"
#include "cli/text/language_model.h"
#include "cli/text/streaming_text.h"
#include "comm/world.h"
#include "model/decoder/served_adapters.h"
#include "parallel/generate/sharded_generator.h"
#include "snapshot/pretrained.h"

namespace cairn::cli {
namespace {

constexpr int64_t kTokenBytesMax = 1024;  // no token stands for more
constexpr int64_t kPromptBytesMax = 16 << 20;

struct Prompt {
  std::string text;  // of --ids: what they stand for
  std::vector<int32_t> ids;
  int32_t adapter = -1;  // of the model's; -1: none
};

void refuse_long(const LanguageModel& model, const std::string& option, size_t tokens) {
  if (static_cast<int64_t>(tokens) >= model.shape.length)
    base::fail_input("{}: {} tokens, and the model reads at most {}, its answer included", option, tokens, model.shape.length);
}

Prompt prompt_of_ids(const LanguageModel& model, const std::vector<int64_t>& ids) {
  Prompt prompt;
  for (int64_t id : ids) {
    if (id < 0 || id >= model.shape.vocab) base::fail_input("--ids: {} is not in the vocabulary of {}", id, model.shape.vocab);
    prompt.ids.push_back(static_cast<int32_t>(id));
  }
  refuse_long(model, "--ids", prompt.ids.size());
  if (model.tokenizer) prompt.text = model.tokenizer->decode(prompt.ids);
  return prompt;
}

// One prompt to a line; the last line may lack its end.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

// A line of --prompts.
struct RequestLine {
  std::string prompt, adapter;  // no adapter: empty
};

RequestLine request_line(const std::string& line, const std::string& at) {
  constexpr int kDepth = 8;
  const base::GuardedJson parsed = base::parse_json_guarded(line, kDepth);
  if (!parsed.trouble.empty()) base::fail_input("{}: {}", at, parsed.trouble);
  const auto text = [&](const char* key, bool needed) -> std::string {
    const auto found = parsed.value.is_object() ? parsed.value.find(key) : parsed.value.end();
    if (found == parsed.value.end() && !needed) return "";
    if (!parsed.value.is_object() || found == parsed.value.end() || !found->is_string())
      base::fail_input("{}: \"{}\" must be a text: write {{\"prompt\": \"...\", \"adapter\": \"NAME\"}}", at, key);
    return found->get<std::string>();
  };
  return {text("prompt", true), text("adapter", false)};
}

int32_t adapter_of(const LanguageModel& model, const std::string& name, const std::string& at) {
  if (name.empty()) return -1;
  if (!model.adapters || model.adapters_together) base::fail_input("{}: names the adapter {}: give --adapter {}=DIR", at, name, name);
  return model.adapters->find(name);
}

std::vector<Prompt> prompts_of(const LanguageModel& model, const GenerateArguments& a) {
  if (a.prompt_given + !a.ids.empty() + !a.prompt_file.empty() + !a.prompts.empty() > 1)
    base::fail_input("give one of --prompt, --ids, --prompt-file and --prompts");
  if (!a.ids.empty()) return {prompt_of_ids(model, a.ids)};
  std::vector<Prompt> prompts;
  const auto add = [&](const std::string& text, const std::string& option) {
    if (static_cast<int64_t>(text.size()) / kTokenBytesMax > model.shape.length)
      base::fail_input("{}: {} bytes are more than the {} tokens that the model reads at most, its answer included", option, text.size(),
                       model.shape.length);
    prompts.push_back({text, model.prompt_ids(text, option)});
    refuse_long(model, option, prompts.back().ids.size());
  };
  if (!a.prompts.empty()) {
    const std::vector<std::string> lines = lines_of(base::read_file(a.prompts, kPromptBytesMax));
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string at = fmt::format("{}:{}", a.prompts, i + 1);
      const RequestLine line = request_line(lines[i], at);
      add(line.prompt, at);
      prompts.back().adapter = adapter_of(model, line.adapter, at);
    }
    if (prompts.empty()) base::fail_input("--prompts {}: no line in it", a.prompts);
    return prompts;
  }
  if (a.prompt_file.empty()) {
    add(a.prompt, "--prompt");
    return prompts;
  }
  const std::vector<std::string> lines = lines_of(base::read_file(a.prompt_file, kPromptBytesMax));
  for (size_t i = 0; i < lines.size(); ++i) add(lines[i], fmt::format("{}:{}", a.prompt_file, i + 1));
  if (prompts.empty()) base::fail_input("--prompt-file {}: no line in it", a.prompt_file);
  return prompts;
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

base::OrderedJson json_of(const Prompt& prompt, int64_t sample, const model::GeneratedText& answer, const std::string* text) {
  return {{"prompt", prompt.text},
          {"sample", sample},
          {"prompt_ids", prompt.ids},
          {"ids", answer.ids},
          {"text", text ? base::OrderedJson(*text) : base::OrderedJson(nullptr)},
          {"log_probabilities", answer.log_probabilities},
          {"stopped", model::name(answer.finish_reason)}};
}

// The options as generate() takes them, for a model that is open.
model::GenerateOptions generation_options(const GenerateArguments& a, const LanguageModel& model) {
  model::GenerateOptions options = a.options;
  if (a.greedy) options.sampling.temperature = 0;
  options.length_max = model.shape.length;
  if (model.tokenizer) options.vocab = model.tokenizer->vocab_size();
  if (!a.ignore_end) options.stops = model.stops;
  return options;
}

// One request for each sample of each prompt.
std::vector<model::GenerateRequest> requests_of(const GenerateArguments& a, const std::vector<Prompt>& prompts) {
  const base::Random random = base::Random(static_cast<uint64_t>(a.seed)).for_purpose("generate");
  std::vector<model::GenerateRequest> requests;
  for (const Prompt& prompt : prompts)
    for (int64_t sample = 0; sample < a.samples; ++sample)
      requests.push_back({prompt.ids, random.for_index(static_cast<uint64_t>(sample)), prompt.adapter});
  return requests;
}

int64_t longest_of(const std::vector<Prompt>& prompts) {
  int64_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()));
  return longest;
}

using Generate = std::function<std::vector<model::GeneratedText>(std::span<const model::GenerateRequest>, const model::GenerateOptions&,
                                                                 const model::OnToken&)>;

// Continues the prompts by `generate` and prints the texts: a single one as it grows, else each when all are done. A requested stop ends
// them early.
void write_texts(const GenerateArguments& a, const LanguageModel& model, const std::vector<Prompt>& prompts, const base::Stop* stop,
                 const Generate& generate) {
  base::Terminal terminal;
  const std::vector<model::GenerateRequest> requests = requests_of(a, prompts);
  std::vector<StreamingText> texts(requests.size(), StreamingText(a.stops));
  const bool alone = requests.size() == 1 && !a.json && model.tokenizer;
  if (alone) put(base::printable(prompts[0].text));
  const base::RealClock clock;
  const std::vector<model::GeneratedText> answers = generate(requests, generation_options(a, model), [&](int64_t request, int32_t id) {
    const bool stopped = stop && stop->requested();
    if (!model.tokenizer) return !stopped;
    StreamingText& text = texts[static_cast<size_t>(request)];
    const std::string now = text.add(model.tokenizer->piece(id));
    if (alone) put(base::printable(now));
    return !text.stopped() && !stopped;
  });
  const double took = base::seconds(clock.now());

  int64_t written = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto sample = static_cast<int64_t>(i) % a.samples;
    const Prompt& prompt = prompts[i / static_cast<size_t>(a.samples)];
    written += static_cast<int64_t>(answers[i].ids.size());
    if (a.json) {
      terminal.line(base::compact(json_of(prompt, sample, answers[i], model.tokenizer ? &texts[i].text() : nullptr)));
    } else if (alone) {
      put(base::printable(texts[i].rest()) + "\n");
    } else if (model.tokenizer) {
      if (i > 0) terminal.line("");
      terminal.line(base::printable(prompt.text + texts[i].text()));
    } else {
      terminal.line(base::compact(base::Json(answers[i].ids)));
    }
  }
  std::fprintf(
      stderr, "%s\n",
      fmt::format("{} in {:.2f} s: {:.1f} tokens/s", base::plural(written, "token"), took, static_cast<double>(written) / took).c_str());
}

// The mesh of --mesh, without axes of one rank.
mesh::Mesh generation_mesh(const GenerateArguments& a) {
  mesh::Mesh mesh;
  for (const mesh::Axis& axis : parse_mesh_axes(a.mesh))
    if (axis.size > 1) mesh.axes.push_back(axis);
  return mesh;
}

// Calls `read` on rank 0, which alone reads prompts, and returns there and on all other ranks the length of the position tables that it
// returns. Where it refuses, the others end as quietly as for wrong input of their own. Collective.
int64_t length_from_rank_0(comm::World& world, const std::function<int64_t()>& read) {
  int64_t tokens = -1;
  std::exception_ptr refused;
  if (world.rank() == 0) {
    try {
      tokens = read();
    } catch (const Error&) {
      refused = std::current_exception();
    }
  }
  world.everyone().broadcast({&tokens, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "generate length"}).wait_host();
  if (refused) std::rethrow_exception(refused);
  if (tokens < 0) base::fail_input("rank 0 refuses the prompts, and says why");
  return tokens;
}

// Refuses ranks that have opened different models: the directory may differ from machine to machine.
void check_same_model(comm::World& world, const LanguageModel& model) {
  auto mine = static_cast<int64_t>(base::checksum(model.model->config_json()));
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.everyone()
      .all_gather({all.data(), world.size(), comm::Dtype::i64}, {&mine, 1, comm::Dtype::i64}, {comm::Purpose::control, "model"})
      .wait_host();
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      base::fail_input("{}: rank {} finds another model there than rank 0: every machine needs the same directory", model.path, rank);
}

// Refuses texts whose KV cache does not fit into this machine's memory on every rank.
void check_cache_fits(const LanguageModel& model, const mesh::Mesh& mesh, int64_t texts, int64_t length) {
  const model::DecoderShape& shape = model.shape;
  const int64_t positions = std::min(length, shape.length), heads = std::max<int64_t>(1, shape.kv_heads / mesh.extent("tp"));
  const int64_t need = texts * positions * 2 * heads * shape.head_dim * static_cast<int64_t>(sizeof(float)) *
                       ((shape.layers + mesh.extent("pp") - 1) / mesh.extent("pp"));
  const int64_t have = base::machine_bytes();
  if (have > 0 && need > have)
    base::fail_input(
        "--flow exflow: the KV cache of {} texts of {} tokens takes {} on every rank, and this machine has {}. Use --flow ep, "
        "or fewer texts.",
        texts, positions, base::human_bytes(need), base::human_bytes(have));
}

// Refuses what the flow along ep cannot do. Reads no tensors.
void check_flow(const GenerateArguments& a, const mesh::Mesh& mesh) {
  const int ranks = mesh.extent("ep");
  if (ranks == 1 && a.flow != "ep") base::fail_input("--flow {}: is for experts on several ranks; add --mesh ep=N", a.flow);
  if (ranks == 1 && !a.placement.empty()) base::fail_input("--placement {}: is for experts on several ranks; add --mesh ep=N", a.placement);
  if (ranks == 1) return;
  const int64_t experts = snapshot::read_outline(a.folder).shape.experts.count;
  if ((a.flow == "exflow" || !a.placement.empty()) && experts % ranks != 0)
    base::fail_input(
        "--mesh {}: {} experts do not divide over {} ranks, which exflow and placements need; use a divisor, or --flow ep alone", a.mesh,
        experts, ranks);
}

// One rank of a sharded model. Rank 0 reads the prompts, samples and prints; the others follow.
void generate_on_rank(const GenerateArguments& a, const mesh::Mesh& mesh, comm::World& world, const RankContext& context) {
  if (world.size() != mesh.size()) base::fail_input("--mesh {}: is {} ranks, and {} were started", a.mesh, mesh.size(), world.size());
  at::set_num_threads(context.threads);
  LanguageModel model = open_sharded_model(
      a.folder, world.log(), {.mesh = mesh, .rank = world.rank(), .ranks_here = context.ranks_here, .placement = a.placement}, a.on);
  check_same_model(world, model);
  std::vector<Prompt> prompts;
  model.prepare_for_length(length_from_rank_0(world, [&] {
    if (!a.stops.empty()) model.require_tokenizer("--stop");
    prompts = prompts_of(model, a);
    const int64_t longest = longest_of(prompts) + a.options.tokens;
    if (a.flow == "exflow") check_cache_fits(model, mesh, static_cast<int64_t>(prompts.size()) * a.samples, longest);
    return longest;
  }));
  parallel::ShardedGenerator sharded({.world = world,
                                      .model = *model.model,
                                      .plan = *model.plan,
                                      .weights = *model.weights,
                                      .buffers = model.buffers,
                                      .flow = base::parse_enum(parallel::kExpertFlowNames, "--flow", a.flow)});
  if (!sharded.drives()) return sharded.follow();
  write_texts(a, model, prompts, &context.stop,
              [&](std::span<const model::GenerateRequest> requests, const model::GenerateOptions& options, const model::OnToken& on_token) {
                return sharded.generate(requests, options, on_token);
              });
  sharded.close();
}

int generate_sharded(const GenerateArguments& a, const mesh::Mesh& mesh, const std::vector<std::string>& command_line) {
  RankCommand command{.launch = a.launch,
                      .device = a.on.device,
                      .fingerprint = fmt::format("generate --mesh {} --flow {} --device {} --precision {} --transport {}", a.mesh, a.flow,
                                                 a.on.device, a.on.precision, a.launch.transport),
                      .command_line = command_line,
                      .check =
                          [&] {
                            check_mesh(a.folder, mesh);
                            check_flow(a, mesh);
                            if (!a.adapters.empty() || !a.prompts.empty())
                              base::fail_input("--adapter and --prompts are for one rank: leave --mesh out, or merge the adapter first");
                            if (!a.domain.empty())
                              base::fail_input("--domain {}: {} is one model; only an ensemble has domains", a.domain, a.folder);
                          },
                      .body = [&](comm::World& world, const RankContext& context) { generate_on_rank(a, mesh, world, context); }};
  const int nodes = a.launch.nproc_given ? node_place(a.launch).nnodes : std::max(1, a.launch.nnodes);
  if (!a.launch.nproc_given) command.launch.nproc = std::max(1, mesh.size() / nodes);
  if (nodes == 1 && command.launch.nproc != mesh.size())
    base::fail_input("--nproc {} --mesh {}: the mesh is {} ranks; leave --nproc out", a.launch.nproc, a.mesh, mesh.size());
  return run_on_ranks(command);
}

}  // namespace

int generate_command(const GenerateArguments& a, const std::vector<std::string>& command_line) {
  model::SamplingOptions sampling = a.options.sampling;
  if (a.greedy) sampling.temperature = 0;
  check(sampling);
  for (const std::string& stop : a.stops)
    if (stop.empty()) base::fail_input("--stop: an empty text is everywhere; give one that is not");
  const mesh::Mesh mesh = generation_mesh(a);
  if (mesh.size() > 1) return generate_sharded(a, mesh, command_line);
  check_flow(a, mesh);
  base::Log log({.level = base::Level::warn, .terminal = std::make_shared<base::Terminal>(), .file = {}});
  at::set_num_threads(threads_among(1));
  LanguageModel model = open_language_model(a.folder, log, a.on, a.domain);
  if (!a.stops.empty()) model.require_tokenizer("--stop");
  if (!a.adapters.empty()) model.serve_adapters(a.adapters);
  std::vector<Prompt> prompts = prompts_of(model, a);
  if (a.adapters.size() == 1 && a.prompts.empty())
    for (Prompt& prompt : prompts) prompt.adapter = 0;
  if (a.adapters.size() > 1 && a.prompts.empty())
    base::fail_input("--adapter: {} of them: say in a file which prompt has which (--prompts FILE.jsonl)", a.adapters.size());
  model.prepare_for_length(longest_of(prompts) + a.options.tokens);
  write_texts(a, model, prompts, nullptr,
              [&](std::span<const model::GenerateRequest> requests, const model::GenerateOptions& options, const model::OnToken& on_token) {
                return model::generate(*model.model, *model.weights, model.buffers, requests, options, on_token);
              });
  return 0;
}

}  // namespace cairn::cli
