// The options of `cairn select`.
#include <CLI/CLI.hpp>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"

namespace cairn::cli {
namespace {

void add_input_options(CLI::App* command, SelectArguments& a) {
  command->add_option("--data", a.data, "The pool: files, folders or patterns, whatever data.path reads; each is a source")
      ->allow_extra_args(false);
  command->add_option("--from", a.from, "An earlier selection from the same pool: choose among its documents");
  command->add_option("--keep", a.keep, "How many documents to keep: 500, or a fraction: 0.25");
  command->add_option("--out", a.out, "The file to write: data.subset reads it")->required();
  command->add_option("--export", a.export_file, "Write the documents too, one JSON record a line, for other programs");
  command->add_option("--report", a.report, "A folder for a report: histograms, shares by source, documents kept and dropped");
  command->add_option("--weights", a.weights, "The column that gives documents weights in training (data.packing = none, sequences)");
  command->add_option("--seed", a.seed, "Seed of everything that is drawn")->check(not_negative())->capture_default_str();
  command->add_option("--set", a.sets, "A key of data: --set data.template=alpaca; may be repeated")->allow_extra_args(false)->take_all();
}

void add_score_options(CLI::App* command, SelectArguments& a) {
  const char* scores = "Scores: top, kmq, score";
  command->add_option("--by", a.by, "Which score: perplexity or ifd, which --model computes, or the NAME of a --column")->group(scores);
  command->add_option("--column", a.columns, "NAME=FILE: a column of scores that `cairn select score` wrote; may be repeated")
      ->allow_extra_args(false)
      ->group(scores);
  command->add_option("--numbers", a.numbers, "score: a text file with a number on each line, one for each document")->group(scores);
  command->add_option("--order", a.order, "top: which scores are kept")
      ->check(CLI::IsMember({"highest", "lowest", "middle"}))
      ->capture_default_str()
      ->group(scores);
  command->add_option("--label", a.label, "balanced: the field of a record that names its group; without it, groups are sources")
      ->group(scores);
}

void add_model_options(CLI::App* command, SelectArguments& a) {
  const char* vectors = "Vectors of documents: dedup, concept, kmq, rds";
  command->add_option("--model", a.model, "A run, a snapshot or a Hugging Face directory")->group(vectors);
  command->add_option("--index", a.index, "A folder that keeps the vectors (default: the cache folder)")->group(vectors);
  command->add_option("--pooling", a.pooling, "How the hidden states of a document become one vector")
      ->check(CLI::IsMember({"weighted_mean", "mean", "last"}))
      ->capture_default_str()
      ->group(vectors);
  command->add_option("--text", a.text, "What of a conversation is read")
      ->check(CLI::IsMember({"conversation", "prompt", "answer", "first_turn"}))
      ->capture_default_str()
      ->group(vectors);
  command->add_option("--max-tokens", a.max_tokens, "Tokens of a document that are read")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(vectors);
  command->add_option("--batch-tokens", a.batch_tokens, "Tokens of one pass, padding included")
      ->check(CLI::Range(1, 1 << 26))
      ->capture_default_str()
      ->group(vectors);
  command->add_flag("--packed", a.packed, "Several documents to a row, with attention within each")->group(vectors);
  command->add_option("--device", a.on.device, "What computes")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(vectors);
  command->add_option("--precision", a.on.precision, "Precision; bf16 needs half the memory, and a GPU")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str()
      ->group(vectors);
}

void add_cluster_options(CLI::App* command, SelectArguments& a) {
  const char* clusters = "Clusters: dedup, concept, kmq";
  command->add_option("--clusters", a.clusters, "Clusters of k-means; 0: the method's own number")
      ->check(not_negative())
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--iterations", a.iterations, "Iterations of k-means, at most")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--restarts", a.restarts, "Starts of k-means; the best result counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--eps", a.eps, "dedup: duplicates have a similarity above 1 - eps (default: what --keep asks for)")
      ->check(CLI::Range(0.0, 1.0))
      ->group(clusters);
  command->add_option("--neighbours", a.neighbours, "concept: clusters around each, for its distance to others")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--temperature", a.temperature, "concept: of the softmax over complexities; lower: more of complex clusters")
      ->check(positive())
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--balance", a.balance, "concept: the part of an equal quota that every cluster keeps at least")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--shares", a.shares, "concept: what decides how much a cluster keeps")
      ->check(CLI::IsMember({"density", "uniform", "ssp", "ssp_global"}))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--within-cluster", a.within_cluster, "concept: which documents stay: far from the centre, any, near it")
      ->check(CLI::IsMember({"hard", "random", "easy"}))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--quota", a.quota, "kmq: what each cluster gives")
      ->check(CLI::IsMember({"proportional", "equal"}))
      ->capture_default_str()
      ->group(clusters);
  command->add_option("--pick", a.pick, "kmq: how --by decides within a cluster")
      ->check(CLI::IsMember({"weighted", "softmax", "top", "median"}))
      ->capture_default_str()
      ->group(clusters);
}

void add_target_options(CLI::App* command, SelectArguments& a) {
  const char* targets = "Target examples: rds";
  command->add_option("--queries", a.queries, "NAME=FILE: examples of a task; may be repeated")->allow_extra_args(false)->group(targets);
  command->add_option("--within-task", a.within_task, "Examples take turns, or documents are taken by the highest score with any of them")
      ->check(CLI::IsMember({"round_robin", "max"}))
      ->capture_default_str()
      ->group(targets);
  command->add_flag("--keep-queries", a.keep_queries, "Documents that are target examples themselves may be chosen")->group(targets);
}

void add_rank_options(CLI::App* command, SelectArguments& a) {
  const char* ranks = "Several ranks";
  command->add_option("--nproc", a.launch.nproc, "Ranks to start on this machine (default: what --mesh says)")
      ->check(CLI::Range(1, 1 << 20))
      ->each([&a](const std::string&) { a.launch.nproc_given = true; })
      ->group(ranks);
  command->add_option("--mesh", a.mesh, "How ranks divide model and documents: tp=2, pp=2, cp=2, dp=2 or several of them")->group(ranks);
  command
      ->add_option(
          "--transport", a.launch.transport,
          "How ranks exchange messages: net (processes), nccl (net, and NCCL between GPUs), mpi (processes that mpirun started) or "
          "local (threads on a virtual network)")
      ->check(CLI::IsMember({"local", "net", "nccl", "mpi"}))
      ->capture_default_str()
      ->group(ranks);
}

}  // namespace

CLI::App* add_select(CLI::App& app, SelectArguments& a) {
  CLI::App* command = app.add_subcommand("select", "Choose which documents of a pool to train on");
  command->add_option("method", a.method, "How documents are chosen; score: write a column of scores instead")
      ->required()
      ->check(CLI::IsMember({"random", "balanced", "dedup", "concept", "kmq", "rds", "top", "score"}));
  add_input_options(command, a);
  add_score_options(command, a);
  add_model_options(command, a);
  add_cluster_options(command, a);
  add_target_options(command, a);
  add_rank_options(command, a);
  command->footer("The guide, with a command and a picture for each method: docs/guides/data-selection.md");
  return command;
}

}  // namespace cairn::cli
