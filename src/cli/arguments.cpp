#include "cli/arguments.h"

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "sync/needs.h"

namespace cairn::cli {
namespace {

CLI::App* add_train(CLI::App& app, TrainArguments& a) {
  CLI::App* command = app.add_subcommand("train", "Train a model; without arguments a small one, on built-in stories, in about a minute");
  command->add_option("recipe", a.recipe, "A recipe (TOML); without one every key has its default");
  command->add_option("--data", a.data, "A file, a folder or a pattern to train on (data.path)");
  command->add_option("--set", a.sets, "A recipe key: --set train.steps=200; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--mesh", a.mesh,
                      "How ranks are arranged: pp=2,dp=2,tp=2 is short for the keys mesh.*; without --nproc it says how many");
  command->add_option("--plan", a.plan, "A plan that `cairn plan --save` wrote: it says how the run is laid out, not the keys mesh.*");
  command->add_option("--nproc", a.nproc, "Ranks to start on this machine")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->each([&a](const std::string&) { a.nproc_given = true; });
  command->add_option("--islands", a.islands, "Islands of ranks that are joined by slow links (mesh.island); each has what --mesh says")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--sync", a.sync,
                      fmt::format("How islands synchronise (sync.island.kind): {}", fmt::join(sync::island_rule_names(), ", ")));
  command->add_option(
      "--links", a.links,
      "Try out slower links between the ranks, or between islands where there are any: latency and bandwidth of each pair, as "
      "20ms,100Mbit; card: of all links of a rank together; sigma=1: log-normal latency; matrix=FILE: latencies in ms by pair");
  command
      ->add_option("--transport", a.transport,
                   "How ranks talk: net (processes), nccl (net, and GPUs among themselves), mpi (processes that mpirun started) or local "
                   "(threads on a virtual network)")
      ->check(CLI::IsMember({"local", "net", "nccl", "mpi"}))
      ->capture_default_str();
  command->add_option("--device", a.device, "What computes")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command->add_option("--out", a.out, "The run directory (default: runs/NAME, the first that is free)");
  command->add_option("--seed", a.seed, "train.seed")->check(CLI::NonNegativeNumber);
  command->add_option("--resume", a.resume, "Continue a run: its directory, or `auto` for the newest one");
  command->add_flag("--dry-run", a.dry_run, "Show what would run and the memory of each rank, and stop");
  const char* apart = "Islands that are started each by itself, with the same recipe and key, and may come and go";
  command->add_option("--island", a.island, "Which of the --islands this is, from 0; --mesh says how it is laid out")
      ->check(CLI::NonNegativeNumber)
      ->group(apart);
  command
      ->add_option("--meet", a.meet, "HOST:PORT where islands find each other: an address of island 0's machine, or of any that is there")
      ->group(apart);
  command->add_option("--listen", a.listen, "ADDRESS:PORT where this island listens (default: island 0 at --meet, others at a free port)")
      ->group(apart);
  command
      ->add_option("--founders", a.founders,
                   "So many islands wait for each other before the first step; more may join later (default: all)")
      ->check(CLI::PositiveNumber)
      ->group(apart);
  const char* several = "Several machines: run the same command on each, with its own --node-rank";
  command->add_option("--nnodes", a.nnodes, "How many machines")->check(CLI::Range(1, 1 << 16))->group(several);
  command->add_option("--node-rank", a.node_rank, "Which of them this is, from 0")->check(CLI::NonNegativeNumber)->group(several);
  command->add_option("--rendezvous", a.rendezvous, "HOST:PORT where they meet: an address of machine 0")->group(several);
  command->add_option("--key", a.key, "The run's key file, the same everywhere (`cairn key FILE` makes one)")->group(several);
  command->add_option("--address", a.address, "Where the others reach this machine (default: as machine 0 sees it)")->group(several);
  command->add_option("--tls-authority", a.tls_authority, "Instead of a key: the authority whose certificates are believed (PEM)")
      ->group(several);
  command->add_option("--tls-certificate", a.tls_certificate, "This machine's certificate (PEM)")->group(several);
  command->add_option("--tls-key", a.tls_key, "Its private key (PEM)")->group(several);
  command->footer(
      "Under torchrun, srun or mpirun each process is one rank, without --nproc.\n"
      "Every recipe key with its default and range: cairn reference");
  return command;
}

CLI::App* add_key(CLI::App& app, KeyArguments& a) {
  CLI::App* command = app.add_subcommand("key", "Make the key that lets the machines of a run recognise each other");
  command->add_option("file", a.file, "Where to write it; copy it to every machine, and let nobody else read it")->required();
  return command;
}

// How tokens are drawn; the values are checked where they are used.
void add_sampling(CLI::App* command, model::GenerateOptions& o, int64_t& seed) {
  const char* drawn = "How tokens are drawn";
  command->add_option("--temperature", o.sampling.temperature, "0 takes the likeliest token")->capture_default_str()->group(drawn);
  command->add_option("--top-k", o.sampling.top_k, "Draw from so many of the likeliest; 0: from all")->capture_default_str()->group(drawn);
  command->add_option("--top-p", o.sampling.top_p, "Draw from the likeliest that together reach this; 1: from all")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--min-p", o.sampling.min_p, "Draw from what has at least this part of the likeliest one's probability")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--repetition-penalty", o.sampling.repetition_penalty, "Above 1: what was said already is less likely")
      ->capture_default_str()
      ->group(drawn);
  command->add_option("--seed", seed, "Decides what is drawn")->check(CLI::NonNegativeNumber)->capture_default_str()->group(drawn);
}

void add_compute_options(CLI::App* command, ComputeOptions& on) {
  command->add_option("--device", on.device, "What computes")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command->add_option("--precision", on.precision, "What it computes in; bf16, which takes half the memory: on a GPU")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
}

CLI::App* add_generate(CLI::App& app, GenerateArguments& a) {
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a trained model");
  command->add_option("dir", a.folder, "A run, a snapshot, a Hugging Face directory or an ensemble")->required();
  command->add_option("--prompt", a.prompt, "What the text begins with; without it the model begins")->each([&a](const std::string&) {
    a.prompt_given = true;
  });
  command->add_option("--ids", a.ids, "The prompt as token ids: 1,2,3")->delimiter(',');
  command->add_option("--prompt-file", a.prompt_file, "A file with a prompt on each line; they are continued together");
  command->add_option("--tokens", a.options.tokens, "Most tokens to add")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  command->add_option("--samples", a.samples, "So many texts for each prompt")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command->add_option("--stop", a.stops, "A text that ends the answer, itself left out; may be repeated")->allow_extra_args(false);
  command->add_flag("--ignore-end", a.ignore_end, "Go on after the token that ends a text");
  command->add_option("--domain", a.domain, "Of an ensemble: take the prior of this domain");
  command->add_flag("--json", a.json, "A line of JSON for each text: ids, text, log-probabilities, why it ended");
  add_compute_options(command, a.on);
  add_sampling(command, a.options, a.seed);
  command->add_flag("--greedy", a.greedy, "Always the likeliest token")->group("How tokens are drawn");
  return command;
}

CLI::App* add_chat(CLI::App& app, ChatArguments& a) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  command->add_option("dir", a.folder, "A run, a snapshot or a Hugging Face directory")->required();
  command->add_option("--system", a.system, "What the model is told before the conversation");
  command->add_option("--tokens", a.options.tokens, "Most tokens of one answer")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  add_compute_options(command, a.on);
  add_sampling(command, a.options, a.seed);
  return command;
}

CLI::App* add_tokenize(CLI::App& app, TokenizeArguments& a) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids or back, count tokens, or learn a tokenizer");
  command->add_option("files", a.files, "Texts; without any, standard input");
  command->add_option("--tokenizer", a.tokenizer,
                      "tokenizer.json, a SentencePiece tokenizer.model, vocab.json (merges.txt beside it), or a folder with one of them");
  command->add_option("--text", a.text, "A text, instead of files")->each([&a](const std::string&) { a.text_given = true; });
  const char* shown = "What is printed (one of them)";
  command->add_flag("--ids", a.ids, "The ids of each text on a line (this is what happens without any of these)")->group(shown);
  command->add_flag("--json", a.json, "An object for each text: ids, and what each stands for")->group(shown);
  command->add_flag("--count", a.count, "How many tokens and bytes each text has")->group(shown);
  command->add_flag("--decode", a.decode, "The texts hold ids: the text that they stand for")->group(shown);
  command->add_flag("--tokenizer-json", a.tokenizer_json, "The tokenizer itself, as a Hugging Face tokenizer.json")->group(shown);
  command->add_flag("--lines", a.lines, "Each line is a JSON text (with --decode: a JSON list of ids); a JSON line comes out for each");
  command->add_flag("--add-special", a.add_special, "Put the tokens around a text that the tokenizer has for it (a Llama's <s>)");
  command->add_flag("--plain-specials", a.plain_specials, "Text that reads like a special token is text all the same");
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

CLI::App* add_snapshot(CLI::App& app, SnapshotArguments& a) {
  CLI::App* command =
      app.add_subcommand("snapshot", "Look into saved models, check them, and turn them into directories that other programs open");
  command->require_subcommand(1);
  const auto action = [&](const char* name, const char* help, const char* source) {
    CLI::App* one = command->add_subcommand(name, help);
    one->add_option("source", a.source, source)->required();
    one->add_option("--out", a.out, "The Hugging Face directory to write; it must not be there yet")->required();
    one->add_option("--dtype", a.dtype, "Of its tensors")->check(CLI::IsMember({"fp32", "bf16", "fp16"}))->capture_default_str();
    one->add_option("--shard-bytes", a.shard_bytes, "A larger model is cut into several files")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    one->callback([&a, name] { a.action = name; });
    return one;
  };
  action("export", "Write a run, a snapshot or a Hugging Face directory as a Hugging Face directory", "A run, snapshot or directory")
      ->add_flag("--adapter", a.only_adapter, "Only the adapter that was trained, in PEFT's format; without it, it is merged in");
  action("convert", "Write a model of llama2.c as a Hugging Face directory", "Its .bin file")
      ->add_option("--tokenizer", a.tokenizer, "What to put beside it: a tokenizer.json, or a tokenizer file of llama2.c (.bin)");
  const auto look = [&](const char* name, const char* help) {
    CLI::App* one = command->add_subcommand(name, help);
    one->add_option("dir", a.source, "A run, a snapshot or a Hugging Face directory")->required();
    one->add_flag("--json", a.json, "Print it as JSON");
    one->callback([&a, name] { a.action = name; });
    return one;
  };
  look("inspect", "Show what is inside: step, shape, tokenizer, training state, recipe, files, tensors (of a run: the newest)");
  look("verify", "Check every file, tensor and value, and name what is wrong (of a run: all its snapshots)")
      ->footer("Exits with 0 if all is whole, with 2 if something is damaged.");
  CLI::App* merge = action("merge", "Add an adapter (PEFT) to a model's weights", "The model: a run, snapshot or directory");
  merge->add_option("--adapter", a.adapter, "The adapter's directory")->required();
  merge->add_flag("--undo", a.undo, "Take it away from weights that it was added to");
  return command;
}

CLI::App* add_eval(CLI::App& app, EvalArguments& a) {
  CLI::App* command = app.add_subcommand("eval", "Measure a model: perplexity of texts, multiple choice, exact answers");
  command->add_option("dir", a.folder, "A run, a snapshot, a Hugging Face directory or an ensemble")->required();
  command->add_option("--domain", a.domain, "Of an ensemble: take the prior of this domain");
  command->add_option("--data", a.data, "Perplexity and bits per byte of these files, folders or patterns (whatever data.path reads)");
  command->add_option("--task", a.tasks, "KIND FILE.jsonl: multiple-choice or exact-match, and the items; may be repeated")
      ->type_name("KIND FILE");
  command->add_option("--batch", a.batch, "Texts that are read together")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command->add_option("--limit", a.limit, "Only so many documents or items of each; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--items", a.items_file, "A file to write a line of JSON to for each document or item");
  command->add_flag("--json", a.json, "Print the results as one line of JSON");
  add_compute_options(command, a.on);
  const char* text = "Perplexity";
  command->add_option("--window", a.window, "Tokens that are read at once; 0: as many as the model reads")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(text);
  command->add_option("--stride", a.stride, "Tokens that each window counts, the rest of it is context; 0: all of them (chunks)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(text);
  command->add_option("--set", a.sets, "A key of data: --set data.template=alpaca; may be repeated")
      ->allow_extra_args(false)
      ->take_all()
      ->group(text);
  const char* tasks = "Tasks";
  command->add_option("--prefix", a.prefix_file, "A file with what stands before every prompt: instructions, a few solved examples")
      ->group(tasks);
  command->add_option("--tokens", a.tokens, "Most tokens of an answer (exact-match)")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(tasks);
  command->add_option("--stop", a.stops, "A text that ends an answer (exact-match; without it the end of the line); may be repeated")
      ->allow_extra_args(false)
      ->group(tasks);
  return command;
}

CLI::App* add_replay(CLI::App& app, ReplayArguments& a) {
  CLI::App* command = app.add_subcommand("replay", "Run one step of a run again from its record, and compare loss and gradient norm");
  command->add_option("run", a.run, "A run directory")->required();
  command->add_option("--step", a.step, "Which step, from 1")->required()->check(CLI::Range(1, 1 << 30));
  command->add_flag("--text", a.text, "Show the samples of the step as text");
  command->add_option("--nproc", a.nproc, "Ranks (default: as many as there were then)")->check(CLI::Range(1, 1 << 16));
  command->add_flag("--json", a.json, "Print it as one line of JSON");
  command->footer("Exits with 0 if both numbers are the same bits, with 1 if not.");
  return command;
}

CLI::App* add_verify(CLI::App& app, VerifyArguments& a) {
  CLI::App* command = app.add_subcommand(
      "verify", "Run two layouts of one recipe for a few steps and name the first tensor that differs; or a table of many layouts");
  command->add_option("recipe", a.recipe, "A recipe (TOML); without one a small model on built-in stories");
  command->add_option("--mesh", a.mesh, "The layout in question: pp=2,tp=2");
  command->add_option("--against", a.against, "The layout that it is held against")->capture_default_str();
  command->add_option("--set", a.sets, "A recipe key, of both; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--set-first", a.only_first, "A recipe key of the layout in question alone: --set-first memory.zero=3")
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--steps", a.steps, "Steps to compare")->check(CLI::Range(1, 10000))->capture_default_str();
  command->add_option("--tolerance", a.tolerance, "Largest difference that counts as none, relative to a tensor's largest element")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--plant", a.plant,
                      "Leave out the sum over copies of this parameter's gradient (of the first layout), to see that it is found");
  command->add_flag(
      "--table", a.table,
      "Instead: many layouts of 1 to 8 ranks against one rank, as a table (loss difference, bytes by purpose, state of a rank)");
  return command;
}

CLI::App* add_plan(CLI::App& app, PlanArguments& a) {
  CLI::App* command =
      app.add_subcommand("plan", "Show how a recipe is laid out over ranks, why, and what a step sends; save, read, compare plans");
  command->add_option("recipe", a.recipe, "A recipe (TOML); without one every key has its default");
  command->add_option("--data", a.data, "As for train");
  command->add_option("--set", a.sets, "A recipe key: --set mesh.tp=2; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--mesh", a.mesh, "How ranks are arranged: pp=2,dp=2,tp=2; without --nproc it says how many");
  command->add_option("--nproc", a.nproc, "Ranks in all")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->each([&a](const std::string&) { a.nproc_given = true; });
  command
      ->add_option(
          "--infer", a.infer,
          "A placement for every tensor of a pass, and every change between them: rules (weights along tp by the structural rules) or "
          "free (nothing given but where samples are)")
      ->check(CLI::IsMember({"rules", "free"}));
  command->add_option("--links", a.links,
                      "With --infer: links along an axis, as dp=20ms,100Mbit, so that it chooses by time; once for each axis");
  command->add_option("--place", a.places,
                      "With --infer rules: a parameter along tp, as \"lm_head.weight=B\" or \"*.mlp.*=S0\", before the rules");
  command->add_option("--plan", a.plan, "A saved plan, to be shown instead of the one that the keys make");
  command->add_flag("--explain", a.explain,
                    "Every parameter with the reason for its placement, and every message of a step with its bytes");
  const char* files = "Files";
  command->add_flag("--json", a.json, "Print the plan as it is saved")->group(files);
  command->add_option("--save", a.save, "Write it; `cairn train --plan FILE` trains with it, edited or not")->group(files);
  command->add_option("--diff", a.diff, "Two saved plans: print what differs")->expected(2)->group(files);
  return command;
}

CLI::App* add_schedule(CLI::App& app, ScheduleArguments& a) {
  CLI::App* command =
      app.add_subcommand("schedule", "Show what a pipeline schedule costs: bubble, step time, memory; draw it; compare all");
  const auto given = [&a](const std::string&) { a.size_given = true; };
  command->add_option("name", a.name, "gpipe, 1f1b (this without a name), interleaved, zb_h1, zbv or dualpipev")->each(given);
  command->add_option("--ranks", a.ranks, "Ranks along pp")->check(CLI::Range(1, 4096))->capture_default_str()->each(given);
  command->add_option("--stages-per-rank", a.stages_per_rank, "0: what the schedule likes, 1 or 2; interleaved takes more")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->each(given);
  command->add_option("--micro-batches", a.micro_batches, "Micro-batches of a step")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->each(given);
  command->add_flag("--all", a.all, "Every schedule at this number of ranks and micro-batches, one line each");
  command->add_option("--costs", a.costs_s, "F,I,W: seconds of a rank's share of the model for forward, input and weight gradient")
      ->delimiter(',')
      ->expected(3)
      ->capture_default_str();
  command->add_option("--latency", a.latency_s, "Seconds that a message between two ranks takes")->capture_default_str();
  const char* files = "Files";
  command->add_option("--csv", a.csv, "Read the schedule, as PyTorch writes one: a line for each rank, cells like 0F0,1F0,,0B0")
      ->group(files);
  command->add_option("--out-csv", a.out_csv, "Write the schedule in that form")->group(files);
  command->add_option("--svg", a.svg, "Draw it: a row for each rank, a box for each action")->group(files);
  return command;
}

CLI::App* add_completion(CLI::App& app, CompletionArguments& a) {
  CLI::App* command = app.add_subcommand("completion", "Print a script that lets a shell complete commands, options and recipe keys");
  command->add_option("shell", a.shell, "For which shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash: . <(cairn completion bash), in ~/.bashrc; zsh: cairn completion zsh > a folder of $fpath/_cairn;\n"
      "fish: cairn completion fish > ~/.config/fish/completions/cairn.fish");
  return command;
}

CLI::App* add_logits(CLI::App& app, LogitsArguments& a) {
  CLI::App* command = app.add_subcommand("logits", "Print a model's logits after each of some tokens, as JSON (for checks against others)");
  command->group("");  // for developers: not in the list of commands
  command->add_option("dir", a.folder, "A run, snapshot or Hugging Face directory")->required();
  command->add_option("--ids", a.ids, "Token ids: 1,2,3")->required()->delimiter(',');
  return command;
}

CLI::App* add_data(CLI::App& app, DataArguments& a) {
  CLI::App* command = app.add_subcommand("data", "Look at data, or turn them into token shards");
  command->require_subcommand(1);
  CLI::App* inspect = command->add_subcommand("inspect", "What files hold: format, documents, bad lines, the first document");
  CLI::App* tokenize = command->add_subcommand("tokenize", "Write one token shard that runs read as it is");
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

CLI::App* add_prove(CLI::App& app, ProveArguments& a) {
  CLI::App* command = app.add_subcommand("prove", "Measure the claims of a published system; without a name, list the proofs");
  command->add_option("slug", a.slug, "Which system");
  command->add_option("--seed", a.seed, "Of everything random in it")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--data", a.options.data, "A text file to measure on, instead of the built-in stories");
  command->add_flag("--json", a.json, "Print the result as JSON, and nothing else");
  command->add_flag("--full", a.options.full, "The long form, which may take more than five minutes");
  command->add_option("--pictures", a.options.pictures, "A folder for what a proof draws");
  command->add_option("--device", a.device, "cuda: the claims that are about a GPU, and only those")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_flag("--all", a.all, "Every proof, one after the other");
  command->footer("Exits with 0 only if every claim that could be measured holds, and at least one could.");
  return command;
}

CLI::App* add_bench(CLI::App& app, BenchArguments& a) {
  CLI::App* command = app.add_subcommand("bench", "Measure ours against a peer in one run; without a name, list the benches");
  command->add_option("name", a.name, "Which bench");
  command->add_option("--case", a.options.only, "One case of it");
  command->add_option("--data", a.options.data, "A text file to measure on, where a bench reads text");
  command->add_option("--steps", a.options.steps, "Steps of each run (gpu)")->check(CLI::PositiveNumber);
  command->add_option("--precision", a.options.precision, "Number format of passes (gpu)");
  command->add_option("--limit", a.options.limit_s, "Seconds that a case may take (gpu)")->check(CLI::PositiveNumber);
  command->add_option("--set", a.options.sets, "A recipe key of our own runs: --set train.cuda_graph=true (gpu); may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  command->add_flag("--kernels", a.options.kernels,
                    "Write down which kernels the time of a step goes to, ours and compiled (gpu, with --out)");
  command->add_option("--out", a.options.out, "Where pictures and measurements are kept (gpu)");
  command->add_flag("--json", a.json, "Print the rows as JSON, and nothing else");
  command->footer("A ratio above 1 means ours is better. Exits with 0 only if every goal is reached.");
  return command;
}

CLI::App* add_study(CLI::App& app, StudyArguments& a) {
  CLI::App* command = app.add_subcommand("study", "Train many models as one study, and compare them");
  command->add_option("kind", a.kind, "Which study: hdee (domain experts at one total of compute, combined in what they say)")
      ->required()
      ->check(CLI::IsMember({"hdee"}));
  command->add_option("recipe", a.recipe, "A recipe (TOML) with a [study]")->required();
  command->add_option("--out", a.out, "Where everything goes; a study that is there already goes on (default: studies/RECIPE)");
  command->add_option("--set", a.sets, "A recipe key: --set study.mode=steps; may be repeated")->allow_extra_args(false)->take_all();
  command->add_flag("--dry-run", a.dry_run, "Show who would be trained how long at what cost, and train nobody");
  command->add_flag("--json", a.json, "Print results.json, and nothing else");
  return command;
}

using Commands = std::vector<std::pair<const CLI::App*, Command>>;

// Every command, in the order of the help.
Commands add_commands(CLI::App& app, Arguments& into) {
  Commands commands;
  commands.emplace_back(add_train(app, into.train), Command::train);
  commands.emplace_back(add_generate(app, into.generate), Command::generate);
  commands.emplace_back(add_chat(app, into.chat), Command::chat);
  commands.emplace_back(add_eval(app, into.eval), Command::eval);
  commands.emplace_back(add_replay(app, into.replay), Command::replay);
  commands.emplace_back(add_tokenize(app, into.tokenize), Command::tokenize);
  commands.emplace_back(add_snapshot(app, into.snapshot), Command::snapshot);
  commands.emplace_back(add_plan(app, into.plan), Command::plan);
  commands.emplace_back(add_schedule(app, into.schedule), Command::schedule);
  commands.emplace_back(add_verify(app, into.verify), Command::verify);
  commands.emplace_back(add_logits(app, into.logits), Command::logits);
  commands.emplace_back(add_data(app, into.data), Command::data);
  commands.emplace_back(add_key(app, into.key), Command::key);
  commands.emplace_back(app.add_subcommand("doctor", "Show what this machine has and what will be used"), Command::doctor);
  commands.emplace_back(app.add_subcommand("version", "Print the versions of Cairn and libtorch"), Command::version);
  commands.emplace_back(
      app.add_subcommand("reference", "Print every recipe key: type, default, range, meaning (the page docs/reference/recipe.md)"),
      Command::reference);
  commands.emplace_back(add_completion(app, into.completion), Command::completion);
  commands.emplace_back(add_prove(app, into.prove), Command::prove);
  commands.emplace_back(add_bench(app, into.bench), Command::bench);
  commands.emplace_back(add_study(app, into.study), Command::study);
  return commands;
}

// What a check shows of the words it allows: "TEXT:{cpu,cuda}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string shown = option.get_type_name();
  const size_t begin = shown.find('{'), end = shown.find('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  for (const std::string& word : CLI::detail::split(shown.substr(begin + 1, end - begin - 1), ',')) choices.push_back(word);
  return choices;
}

void append_specs(const CLI::App& app, const std::string& path, std::vector<CommandSpec>& into) {
  CommandSpec words{.path = path, .help = app.get_description(), .options = {}, .arguments = {}, .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      words.arguments.push_back({{option->get_name(true)}, option->get_description(), true, choices_of(*option)});
      continue;
    }
    OptionSpec one{{}, option->get_description(), option->get_items_expected_max() > 0, choices_of(*option)};
    for (const std::string& name : option->get_snames()) one.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) one.names.push_back("--" + name);
    words.options.push_back(std::move(one));
  }
  std::vector<const CLI::App*> shown;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    words.commands.push_back({command->get_name(), command->get_description()});
    shown.push_back(command);
  }
  into.push_back(std::move(words));
  for (const CLI::App* command : shown) append_specs(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), into);
}

// The parser would only say that a command is missing.
void check_command(const Commands& commands, const std::string& word) {
  if (word.starts_with("-")) return;
  std::vector<std::string> names;
  for (const auto& [command, _] : commands) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), word) == names.end()) base::fail_unknown("command", word, names);
}

void describe(CLI::App& app) {
  app.description("Cairn trains language models on whatever machines there are.");
  app.name("cairn");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help on every command");
  app.footer(
      "Run `cairn COMMAND --help` for what a command takes, and `cairn reference` for every recipe key.\n"
      "Exit codes: 0 done, 2 wrong recipe, arguments or files, 3 failed run, 4 lost peer.");
}

}  // namespace

std::vector<CommandSpec> command_specs() {
  CLI::App app;
  describe(app);
  Arguments ignored;
  add_commands(app, ignored);
  std::vector<CommandSpec> all;
  append_specs(app, "", all);
  return all;
}

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  CLI::App app;
  describe(app);
  Arguments arguments;
  const Commands commands = add_commands(app, arguments);
  if (argc > 1) check_command(commands, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) base::fail_input("{} (cairn --help lists what there is)", error.what());
    app.exit(error);
    return std::nullopt;
  }
  for (const auto& [command, name] : commands)
    if (command->parsed()) arguments.command = name;
  return arguments;
}

}  // namespace cairn::cli
