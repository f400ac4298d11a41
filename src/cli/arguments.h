// What the command line can say, as structs: one for each command. The parser is known to the folder arguments/ alone.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_specs.h"
#include "cli/compute_options.h"
#include "model/generate/generate.h"

namespace cairn::cli {

// Where the ranks of a command run and how they reach each other.
struct LaunchArguments {
  std::string links, transport = "net";
  int nproc = 1;  // on this machine
  bool nproc_given = false;
  // Several machines.
  int nnodes = 0, node_rank = -1;  // 0 and -1: not given
  std::string interfaces;          // addresses of this machine, or auto; empty: the one that leads to the others
  int channels = 1;                // connections to each rank of another machine
  std::string rendezvous, address, key, tls_authority, tls_certificate, tls_key;
};

struct TrainArguments : LaunchArguments {
  std::string recipe, data, out, resume, mesh, plan, sync, device = "cpu";
  std::vector<std::string> sets;
  int64_t seed = -1;
  int islands = 0;                // 0: not given
  int island = -1, founders = 0;  // -1 and 0: not given
  std::string meet, listen;
  bool dry_run = false, allow_oversize = false;
};

struct VerifyArguments {
  std::string recipe, data, mesh, plan, against = "dp=1", plant;
  std::vector<std::string> sets, only_first;
  int64_t steps = 3;
  double tolerance = 1e-5;
  bool table = false;
};

struct PlanArguments {
  std::string recipe, data, mesh, plan, save, infer;
  std::vector<std::string> sets, diff, links, places;  // diff: two files; links, places: for --infer
  int nproc = 1;
  bool nproc_given = false, explain = false, json = false;
};

struct KeyArguments {
  std::string file;
};

struct GenerateArguments {
  std::string folder, prompt, prompt_file, domain, mesh;
  std::string flow = "ep", placement;  // along ep: how tokens reach experts; a file of `cairn experts place`
  LaunchArguments launch;  // with a mesh; its nproc follows from it
  ComputeOptions on;
  std::vector<int64_t> ids;
  std::vector<std::string> stops, adapters;
  std::string prompts;  // a file of JSON lines
  model::GenerateOptions options;
  int64_t seed = 1, samples = 1;
  bool prompt_given = false, greedy = false, json = false, ignore_end = false;
};

struct ChatArguments {
  std::string folder, system;
  ComputeOptions on;
  model::GenerateOptions options = {.tokens = 1000};
  int64_t seed = 1;
};

struct TokenizeArguments {
  std::string tokenizer, text;
  std::vector<std::string> files;
  bool text_given = false, ids = false, json = false, count = false, decode = false, tokenizer_json = false, lines = false;
  bool add_special = false, plain_specials = false;
  // `tokenize train`.
  bool train = false;
  std::vector<std::string> train_files, specials{"<|endoftext|>"};
  int64_t vocab = 4096;
  std::string out, pattern = "gpt2";
};

// `cairn snapshot ACTION`.
struct SnapshotArguments {
  std::string action, source, out, tokenizer, adapter, dtype = "fp32";
  std::string log;                  // of replay
  std::vector<std::string> models;  // of merge, and the two of diff
  std::string mesh;                 // of reshape; likewise sets
  std::vector<std::string> sets;
  std::vector<double> weights;  // of merge: one for each model; empty: equal
  bool undo = false, only_adapter = false, json = false;
  int64_t shard_bytes = 5'000'000'000;
};

struct DiagnoseArguments {
  std::string run;
  bool json = false;
};

struct LogitsArguments {
  std::string folder;
  std::vector<int64_t> ids;
};

struct EvalArguments {
  std::string folder, domain, prefix_file, items_file, retrieval;
  ComputeOptions on;
  std::vector<std::string> data, sets, stops{"\n"};
  std::vector<std::pair<std::string, std::string>> tasks;  // what is measured, and the file
  int64_t window = 0, stride = 0;                          // 0: what the model reads; the window
  int64_t batch = 8, tokens = 64, limit = 0;               // 0: no limit
  bool json = false;
};

struct ReplayArguments {
  std::string run;
  int64_t step = 0;
  int nproc = 0;  // 0: as many as there were
  bool text = false, json = false;
};

struct ScheduleArguments {
  std::string name, csv, svg, out_csv;
  int ranks = 4, stages_per_rank = 0, micro_batches = 8;
  std::vector<double> costs_s{1, 1, 1};  // of a rank's share of the model: forward, input gradient, weight gradient
  double latency_s = 0;
  std::string recompute = "none";  // ahead, late
  bool size_given = false, all = false;
};

struct CompletionArguments {
  std::string shell;
};

// The next five are commands of `cairn-lab`, which `cairn` starts for them (lab_program.h).
struct ProveArguments {
  std::string slug, data, pictures, device = "cpu";  // data: a text file; pictures: a folder
  int64_t seed = 1, seeds = 1;                       // seeds: so many, from `seed` on
  bool json = false, markdown = false, all = false, full = false;
};

struct BenchArguments {
  std::string name, only, data, precision = "bf16", out;
  std::vector<std::string> sets;
  int64_t steps = 0;   // 0: as many as the case has
  double limit_s = 0;  // for each case; 0: the case's own
  bool kernels = false, json = false;
};

// `cairn study KIND RECIPE`, and `cairn prune RECIPE`, which has no kind.
struct StudyArguments {
  std::string kind, recipe, out;
  std::vector<std::string> sets;
  std::string device = "cpu";
  int nproc = 1;
  bool dry_run = false, json = false;
};

// `cairn unlearn ACTION`.
struct UnlearnArguments {
  std::string action, recipe, store, where, device = "cpu";  // where: FIELD=VALUE
  std::vector<std::string> sets;
  std::vector<int64_t> records, without;
  LaunchArguments launch;
  int64_t seed = 1;  // of simulated deletions
  bool json = false;
};

// `cairn supernet ACTION`.
struct SupernetArguments {
  std::string action, run, subnet, out, dtype = "fp32", flops, device = "cpu";
  std::vector<std::string> sets;
  int64_t population = 24, generations = 8, calibration = 1000, seed = 1;
  bool json = false;
};

struct ExampleArguments {
  std::string name;
  int64_t seed = 1;
  int ranks = 1, tp = 1;
};

// `cairn experts place`.
struct ExpertsArguments {
  std::string folder, data, mesh, out, trace;
  int64_t tokens = 3000, seed = 1;
  int node_ranks = 0, restarts = 16;
};

// `cairn select METHOD`. Words of options are checked when they are parsed.
struct SelectArguments {
  std::string method, model, mesh, from, out, export_file, report, index, by, weights, numbers, label, keep;
  std::vector<std::string> data, sets, columns, queries;  // columns, queries: NAME=FILE
  LaunchArguments launch;
  ComputeOptions on;
  int64_t seed = 1;
  // Vectors of documents.
  std::string pooling = "weighted_mean", text = "conversation";
  int64_t max_tokens = 2048, batch_tokens = 4096;
  bool packed = false;
  // Clusters.
  int64_t clusters = 0, iterations = 25, restarts = 1, neighbours = 20;
  double eps = -1, temperature = 0.1, balance = 0.5;  // eps: -1: not given
  std::string shares = "density", within_cluster = "hard", quota = "proportional", pick = "weighted";
  // Targets and scores.
  std::string within_task = "round_robin", order = "highest";
  bool keep_queries = false;

  // The options that decide what is chosen, beside the content of files.
  std::string identity() const;
};

struct DataArguments {
  enum class Act { inspect, tokenize };
  Act act{};
  std::string path, out, tokenizer;
  std::vector<std::string> sets;
};

enum class Command {
  train,
  generate,
  chat,
  eval,
  replay,
  tokenize,
  data,
  select,
  experts,
  snapshot,
  plan,
  schedule,
  verify,
  logits,
  key,
  diagnose,
  doctor,
  version,
  reference,
  completion,
  prove,
  bench,
  study,
  prune,
  unlearn,
  supernet,
  example
};

// The command that was asked for. Its own struct is filled, the others hold their defaults.
struct Arguments {
  Command command{};
  TrainArguments train;
  GenerateArguments generate;
  ChatArguments chat;
  EvalArguments eval;
  ReplayArguments replay;
  TokenizeArguments tokenize;
  SnapshotArguments snapshot;
  PlanArguments plan;
  ScheduleArguments schedule;
  VerifyArguments verify;
  LogitsArguments logits;
  DataArguments data;
  SelectArguments select;
  ExpertsArguments experts;
  KeyArguments key;
  DiagnoseArguments diagnose;
  CompletionArguments completion;
  ProveArguments prove;
  BenchArguments bench;
  StudyArguments study, prune;
  UnlearnArguments unlearn;
  SupernetArguments supernet;
  ExampleArguments example;
};

// Reads a command line and refuses a wrong one as bad input. Nothing where help was asked for, which is then printed.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv);

// Every command with its options, as parse_arguments takes them and --help shows them; the program itself first.
std::vector<CommandSpec> command_specs();

}  // namespace cairn::cli
