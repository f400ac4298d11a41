// The options of the commands that use a model, its tokenizer or data.
#include <CLI/CLI.hpp>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"

namespace cairn::cli {
namespace {

// Sampling options. Their values are checked where they are used.
void add_sampling(CLI::App* command, model::GenerateOptions& o, int64_t& seed) {
  const char* drawn = "Sampling";
  command->add_option("--temperature", o.sampling.temperature, "0 takes the likeliest token")->capture_default_str()->group(drawn);
  command->add_option("--top-k", o.sampling.top_k, "Sample from this many of the likeliest tokens; 0: from all")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--top-p", o.sampling.top_p, "Sample from the likeliest tokens that together reach this probability; 1: from all")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--min-p", o.sampling.min_p, "Sample from tokens with at least this fraction of the likeliest token's probability")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--repetition-penalty", o.sampling.repetition_penalty, "Above 1: tokens that occurred already become less likely")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--seed", seed, "Seed of the sampling")->check(not_negative())->capture_default_str()->group(drawn);
}

void add_compute_options(CLI::App* command, ComputeOptions& on) {
  command->add_option("--device", on.device, "What computes")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command->add_option("--precision", on.precision, "Precision; bf16 needs half the memory, and a GPU")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
}

}  // namespace

CLI::App* add_generate(CLI::App& app, GenerateArguments& a) {
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a trained model");
  command->add_option("dir", a.folder, "A run, a snapshot, a Hugging Face directory or an ensemble")->required();
  command->add_option("--prompt", a.prompt, "What the text begins with; without it the model begins")->each([&a](const std::string&) {
    a.prompt_given = true;
  });
  command->add_option("--ids", a.ids, "The prompt as token ids: 1,2,3")->delimiter(',');
  command->add_option("--prompt-file", a.prompt_file, "A file with a prompt on each line; they are continued together");
  command
      ->add_option("--adapter", a.adapters,
                   "NAME=DIR: an adapter of the model, kept in memory beside it; may be repeated. A single one is of every prompt")
      ->type_name("NAME=DIR")
      ->allow_extra_args(false);
  command->add_option("--prompts", a.prompts,
                      "A file of JSON lines {\"prompt\": ..., \"adapter\": NAME}; they are continued together, each with its adapter");
  command->add_option("--tokens", a.options.tokens, "Maximum tokens to add")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  command->add_option("--samples", a.samples, "Texts for each prompt")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command->add_option("--stop", a.stops, "A stop string, left out of the text; may be repeated")->allow_extra_args(false);
  command->add_flag("--ignore-end", a.ignore_end, "Continue after the end-of-text token");
  command->add_option("--domain", a.domain, "Of an ensemble: take the prior of this domain");
  command->add_flag("--json", a.json, "A line of JSON for each text: ids, text, log-probabilities, why it ended");
  add_compute_options(command, a.on);
  const char* ranks = "Several ranks: the model and its KV cache are sharded over processes";
  command
      ->add_option(
          "--mesh", a.mesh,
          "How ranks shard the model: tp=2 by heads and widths, pp=2 by layers, ep=4 by experts, or several: tp=2,pp=2. Starts as many "
          "processes")
      ->group(ranks);
  command
      ->add_option("--flow", a.flow,
                   "Along ep: ep brings the results of experts back to the token's rank; exflow lets the token stay where its expert is "
                   "(one exchange a layer in the place of two; every rank keeps the KV cache of all texts)")
      ->check(CLI::IsMember({"ep", "exflow"}))
      ->capture_default_str()
      ->group(ranks);
  command->add_option("--placement", a.placement, "Along ep: which rank holds which expert, a file of `cairn experts place`")->group(ranks);
  command->add_option("--nproc", a.launch.nproc, "Ranks to start on this machine (default: what --mesh says, over all machines)")
      ->check(CLI::Range(1, 1 << 20))
      ->each([&a](const std::string&) { a.launch.nproc_given = true; })
      ->group(ranks);
  command
      ->add_option(
          "--transport", a.launch.transport,
          "How ranks exchange messages: net (processes), nccl (net, and NCCL between GPUs), mpi (processes that mpirun started) or local "
          "(threads on a virtual network)")
      ->check(CLI::IsMember({"local", "net", "nccl", "mpi"}))
      ->capture_default_str()
      ->group(ranks);
  command->add_option("--links", a.launch.links, "Try out slower links between the ranks: latency and bandwidth, as 3ms,1Gbit (see train)")
      ->group(ranks);
  add_machines(command, a.launch);
  add_sampling(command, a.options, a.seed);
  command->footer("Under torchrun, srun or mpirun, with --mesh, each process is one rank.");
  command->add_flag("--greedy", a.greedy, "Always the likeliest token")->group("Sampling");
  return command;
}

CLI::App* add_chat(CLI::App& app, ChatArguments& a) {
  CLI::App* command = app.add_subcommand("chat", "Chat with a model in the terminal");
  command->add_option("dir", a.folder, "A run, a snapshot or a Hugging Face directory")->required();
  command->add_option("--system", a.system, "The system prompt");
  command->add_option("--tokens", a.options.tokens, "Maximum tokens of one answer")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  add_compute_options(command, a.on);
  add_sampling(command, a.options, a.seed);
  return command;
}

CLI::App* add_eval(CLI::App& app, EvalArguments& a) {
  CLI::App* command = app.add_subcommand("eval", "Measure a model: perplexity of texts, multiple choice, exact answers, retrieval");
  command->add_option("dir", a.folder, "A run, a snapshot, a Hugging Face directory or an ensemble")->required();
  command->add_option("--domain", a.domain, "Of an ensemble: take the prior of this domain");
  command->add_option("--data", a.data, "Perplexity and bits per byte of these files, folders or patterns (whatever data.path reads)");
  command->add_option("--task", a.tasks, "KIND FILE.jsonl: multiple-choice or exact-match, and the items; may be repeated")
      ->type_name("KIND FILE");
  command->add_option("--retrieval", a.retrieval,
                      "Search: a folder with queries, collection and judgements (qrels.tsv); MRR, NDCG and recall by exact search");
  command->add_option("--batch", a.batch, "Texts that are read together")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command->add_option("--limit", a.limit, "At most this many documents of each file, or items of each task; 0: all")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--items", a.items_file, "A file to write a line of JSON to for each document or item");
  command->add_flag("--json", a.json, "Print the results as one line of JSON");
  add_compute_options(command, a.on);
  const char* text = "Perplexity";
  command->add_option("--window", a.window, "Tokens that are read at once; 0: as many as the model reads")
      ->check(not_negative())
      ->capture_default_str()
      ->group(text);
  command->add_option("--stride", a.stride, "Tokens that each window counts, the rest of it is context; 0: all of them (chunks)")
      ->check(not_negative())
      ->capture_default_str()
      ->group(text);
  command->add_option("--set", a.sets, "A key of data or retrieval: --set data.template=alpaca; may be repeated")
      ->allow_extra_args(false)
      ->take_all()
      ->group(text);
  const char* tasks = "Tasks";
  command->add_option("--prefix", a.prefix_file, "A file with what stands before every prompt: instructions, a few solved examples")
      ->group(tasks);
  command->add_option("--tokens", a.tokens, "Maximum tokens of an answer (exact-match)")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(tasks);
  command->add_option("--stop", a.stops, "A stop string (exact-match; without it the end of the line); may be repeated")
      ->allow_extra_args(false)
      ->group(tasks);
  return command;
}

CLI::App* add_tokenize(CLI::App& app, TokenizeArguments& a) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids or back, count tokens, or learn a tokenizer");
  command->add_option("files", a.files, "Texts; without any, standard input");
  command->add_option("--tokenizer", a.tokenizer,
                      "tokenizer.json, a SentencePiece tokenizer.model, vocab.json (merges.txt beside it), or a folder with one of them");
  command->add_option("--text", a.text, "A text, instead of files")->each([&a](const std::string&) { a.text_given = true; });
  const char* shown = "What is printed (one of them)";
  command->add_flag("--ids", a.ids, "The ids of each text on a line (the default)")->group(shown);
  command->add_flag("--json", a.json, "An object for each text: ids, and what each stands for")->group(shown);
  command->add_flag("--count", a.count, "How many tokens and bytes each text has")->group(shown);
  command->add_flag("--decode", a.decode, "The texts hold ids: the text that they stand for")->group(shown);
  command->add_flag("--tokenizer-json", a.tokenizer_json, "The tokenizer itself, as a Hugging Face tokenizer.json")->group(shown);
  command->add_flag("--lines", a.lines, "Each line is a JSON text (with --decode: a JSON list of ids); a JSON line comes out for each");
  command->add_flag("--add-special", a.add_special, "Add the tokenizer's special tokens around a text (a Llama's <s>)");
  command->add_flag("--plain-specials", a.plain_specials, "Treat text that looks like a special token as plain text");
  CLI::App* train = command->add_subcommand("train", "Learn a byte-level BPE from texts and write a tokenizer.json");
  train->add_option("files", a.train_files, "Texts; without any, the built-in stories");
  train->add_option("--vocab", a.vocab, "Tokens in all")->check(CLI::Range(257, 1 << 20))->capture_default_str();
  train->add_option("--pattern", a.pattern, "How text is cut into words")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}))
      ->capture_default_str();
  train->add_option("--special", a.specials, "A special token; may be repeated")->allow_extra_args(false)->capture_default_str();
  train->add_option("--out", a.out, "Where to write it")->required();
  train->callback([&a] { a.train = true; });
  return command;
}

CLI::App* add_data(CLI::App& app, DataArguments& a) {
  CLI::App* command = app.add_subcommand("data", "Inspect data, or tokenize it into a shard");
  command->require_subcommand(1);
  CLI::App* inspect = command->add_subcommand("inspect", "What files hold: format, documents, bad lines, the first document");
  CLI::App* tokenize = command->add_subcommand("tokenize", "Write a token shard, which training reads directly");
  inspect->callback([&a] { a.act = DataArguments::Act::inspect; });
  tokenize->callback([&a] { a.act = DataArguments::Act::tokenize; });
  for (CLI::App* one : {inspect, tokenize}) {
    one->add_option("path", a.path, "A file, a folder or a pattern (data.path)")->required();
    one->add_option("--set", a.sets, "A key of data: --set data.template=alpaca; may be repeated")->allow_extra_args(false)->take_all();
  }
  tokenize->add_option("--out", a.out, "The shard to write; a learned tokenizer goes beside it, as OUT.tokenizer.json")->required();
  tokenize->add_option("--tokenizer", a.tokenizer,
                       "A tokenizer's file or folder (data.tokenizer_file); without it, as data.tokenizer says");
  return command;
}

CLI::App* add_snapshot(CLI::App& app, SnapshotArguments& a) {
  CLI::App* command = app.add_subcommand("snapshot", "Inspect, check, convert and export saved models");
  command->require_subcommand(1);
  const auto action = [&](const char* name, const char* help, const char* source) {
    CLI::App* one = command->add_subcommand(name, help);
    if (source) one->add_option("source", a.source, source)->required();
    one->add_option("--out", a.out, "The Hugging Face directory to write; it must not be there yet")->required();
    one->add_option("--dtype", a.dtype, "Of its tensors")->check(CLI::IsMember({"fp32", "bf16", "fp16"}))->capture_default_str();
    one->add_option("--shard-bytes", a.shard_bytes, "A larger model is cut into several files")->check(positive())->capture_default_str();
    one->callback([&a, name] { a.action = name; });
    return one;
  };
  action("export", "Write a run, a snapshot or a Hugging Face directory as a Hugging Face directory", "A run, snapshot or directory")
      ->add_flag("--adapter", a.only_adapter, "Only the adapter that was trained, in PEFT's format; without it, it is merged in");
  action("convert", "Write a model of llama2.c as a Hugging Face directory", "Its .bin file")
      ->add_option("--tokenizer", a.tokenizer, "What to put beside it: a tokenizer.json, or a tokenizer file of llama2.c (.bin)");
  action("replay", "Apply the rounds of one-byte training to its base checkpoint, or to a snapshot of it: the weights of the run again",
         "The base checkpoint: a directory, or a snapshot of the run")
      ->add_option("log", a.log, "The rounds.bin of the run")
      ->required();
  const auto look = [&](const char* name, const char* help) {
    CLI::App* one = command->add_subcommand(name, help);
    one->add_option("dir", a.source, "A run, a snapshot or a Hugging Face directory")->required();
    one->add_flag("--json", a.json, "Print it as JSON");
    one->callback([&a, name] { a.action = name; });
    return one;
  };
  look("inspect", "Show what is inside: step, shape, tokenizer, training state, recipe, files, tensors (of a run: the newest)");
  look("verify", "Check every file, tensor and value, and name what is wrong (of a run: all its snapshots)")
      ->footer("Exits with 0 if everything is intact, with 2 if something is damaged.");
  CLI::App* diff = command->add_subcommand("diff", "Compare two snapshots: tensors by name, bit by bit, and the progress of training");
  diff->add_option("snapshots", a.models, "Two runs (their newest snapshots) or snapshots")->required()->expected(2);
  diff->add_flag("--json", a.json, "Print it as JSON");
  diff->footer("Exits with 0 if they are the same, with 1 if they differ. How they were laid out over ranks does not count.");
  diff->callback([&a] { a.action = "diff"; });
  CLI::App* reshape = command->add_subcommand("reshape", "Save a run again as the ranks of another layout do, without training");
  reshape->add_option("source", a.source, "A run (its newest snapshot), or one of its snapshots")->required();
  reshape->add_option("--out", a.out, "The run directory to write; it must not be there yet")->required();
  reshape->add_option("--mesh", a.mesh, "The new layout: tp=2,dp=3; axes that it leaves out have one rank (default: as it was)");
  reshape->add_option("--set", a.sets, "A recipe key: --set memory.zero=3; may be repeated")->allow_extra_args(false)->take_all();
  reshape->callback([&a] { a.action = "reshape"; });
  CLI::App* merge = action("merge", "Average finished models, or add an adapter (PEFT) to a model's weights", nullptr);
  merge->add_option("models", a.models, "Runs, snapshots or directories of one shape; with --adapter, the one model")->required();
  merge->add_option("--weights", a.weights, "How much each model counts: 2,1,1 (default: all the same)")->delimiter(',');
  merge->add_option("--adapter", a.adapter, "The adapter's directory");
  merge->add_flag("--undo", a.undo, "With --adapter: subtract it from weights that it was merged into");
  return command;
}

CLI::App* add_logits(CLI::App& app, LogitsArguments& a) {
  CLI::App* command = app.add_subcommand("logits", "Print a model's logits after each token, as JSON (for checks against other programs)");
  command->add_option("dir", a.folder, "A run, snapshot or Hugging Face directory")->required();
  command->add_option("--ids", a.ids, "Token ids: 1,2,3")->required()->delimiter(',');
  return command;
}

}  // namespace cairn::cli
