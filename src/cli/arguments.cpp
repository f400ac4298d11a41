#include "cli/arguments.h"

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/nearest.h"

namespace cairn::cli {
namespace {

CLI::App* add_train(CLI::App& app, TrainArguments& a) {
  CLI::App* command = app.add_subcommand("train", "Train a model; without arguments a small one, on built-in stories, in about a minute");
  command->add_option("recipe", a.recipe, "A recipe (TOML); without one every key has its default");
  command->add_option("--data", a.data, "A file, a folder or a pattern to train on (data.path)");
  command->add_option("--set", a.sets, "A recipe key: --set train.steps=200; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--nproc", a.nproc, "Ranks to start on this machine")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->each([&a](const std::string&) { a.nproc_given = true; });
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

CLI::App* add_generate(CLI::App& app, GenerateArguments& a) {
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a trained model");
  command->add_option("dir", a.folder, "A run, a snapshot or a Hugging Face directory")->required();
  command->add_option("--prompt", a.prompt, "What the text begins with; without it the model begins")->each([&a](const std::string&) {
    a.prompt_given = true;
  });
  command->add_option("--ids", a.ids, "The prompt as token ids: 1,2,3")->delimiter(',');
  command->add_option("--prompt-file", a.prompt_file, "A file with a prompt on each line; they are continued together");
  command->add_option("--tokens", a.options.tokens, "Most tokens to add")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  command->add_option("--samples", a.samples, "So many texts for each prompt")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command->add_option("--stop", a.stops, "A text that ends the answer, itself left out; may be repeated")->allow_extra_args(false);
  command->add_flag("--ignore-end", a.ignore_end, "Go on after the token that ends a text");
  command->add_flag("--json", a.json, "A line of JSON for each text: ids, text, log-probabilities, why it ended");
  add_sampling(command, a.options, a.seed);
  command->add_flag("--greedy", a.greedy, "Always the likeliest token")->group("How tokens are drawn");
  return command;
}

CLI::App* add_chat(CLI::App& app, ChatArguments& a) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  command->add_option("dir", a.folder, "A run, a snapshot or a Hugging Face directory")->required();
  command->add_option("--system", a.system, "What the model is told before the conversation");
  command->add_option("--tokens", a.options.tokens, "Most tokens of one answer")->check(CLI::Range(1, 1 << 24))->capture_default_str();
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
  CLI::App* command = app.add_subcommand("snapshot", "Turn models into directories that other programs open");
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
  CLI::App* merge = action("merge", "Add an adapter (PEFT) to a model's weights", "The model: a run, snapshot or directory");
  merge->add_option("--adapter", a.adapter, "The adapter's directory")->required();
  merge->add_flag("--undo", a.undo, "Take it away from weights that it was added to");
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
  command->add_flag("--all", a.all, "Every proof, one after the other");
  command->footer("Exits with 0 only if every claim that could be measured holds, and at least one could.");
  return command;
}

CLI::App* add_bench(CLI::App& app, BenchArguments& a) {
  CLI::App* command = app.add_subcommand("bench", "Measure ours against a peer in one run; without a name, list the benches");
  command->add_option("name", a.name, "Which bench");
  command->add_option("--case", a.options.only, "One case of it");
  command->add_option("--data", a.options.data, "A text file to measure on, where a bench reads text");
  command->add_flag("--json", a.json, "Print the rows as JSON, and nothing else");
  command->footer("A ratio above 1 means ours is better. Exits with 0 only if every goal is reached.");
  return command;
}

using Commands = std::vector<std::pair<const CLI::App*, Command>>;

// Every command, in the order of the help.
Commands add_commands(CLI::App& app, Arguments& into) {
  Commands commands;
  commands.emplace_back(add_train(app, into.train), Command::train);
  commands.emplace_back(add_generate(app, into.generate), Command::generate);
  commands.emplace_back(add_chat(app, into.chat), Command::chat);
  commands.emplace_back(add_tokenize(app, into.tokenize), Command::tokenize);
  commands.emplace_back(add_snapshot(app, into.snapshot), Command::snapshot);
  commands.emplace_back(add_logits(app, into.logits), Command::logits);
  commands.emplace_back(add_data(app, into.data), Command::data);
  commands.emplace_back(add_key(app, into.key), Command::key);
  commands.emplace_back(app.add_subcommand("doctor", "Show what this machine has and what will be used"), Command::doctor);
  commands.emplace_back(app.add_subcommand("version", "Print the versions of Cairn and libtorch"), Command::version);
  commands.emplace_back(app.add_subcommand("reference", "Print every recipe key: type, default, range, meaning (the page docs/recipe.md)"),
                        Command::reference);
  commands.emplace_back(add_prove(app, into.prove), Command::prove);
  commands.emplace_back(add_bench(app, into.bench), Command::bench);
  return commands;
}

// The parser would only say that a command is missing.
void check_command(const Commands& commands, const std::string& word) {
  if (word.starts_with("-")) return;
  std::vector<std::string> names;
  for (const auto& [command, _] : commands) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), word) == names.end()) base::fail_unknown("command", word, names);
}

}  // namespace

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  CLI::App app{"Cairn trains language models on whatever machines there are.", "cairn"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help on every command");
  app.footer(
      "Run `cairn COMMAND --help` for what a command takes, and `cairn reference` for every recipe key.\n"
      "Exit codes: 0 done, 2 wrong recipe, arguments or files, 3 failed run, 4 lost peer.");
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
