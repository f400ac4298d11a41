// The options of the commands that train, or that look at how a run is laid out.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/arguments/add_options.h"
#include "cli/arguments/checks.h"
#include "comm/net/transport.h"
#include "sync/needs.h"

namespace cairn::cli {

void add_machines(CLI::App* command, LaunchArguments& a) {
  const char* several = "Several machines: run the same command on each, with its own --node-rank";
  command->add_option("--nnodes", a.nnodes, "How many machines")->check(CLI::Range(1, 1 << 16))->group(several);
  command->add_option("--node-rank", a.node_rank, "Which of them this is, from 0")->check(not_negative())->group(several);
  command->add_option("--rendezvous", a.rendezvous, "HOST:PORT where they meet: an address of machine 0")->group(several);
  command->add_option("--key", a.key, "The run's key file, the same everywhere (`cairn key FILE` makes one)")->group(several);
  command->add_option("--address", a.address, "Where the others reach this machine (default: as machine 0 sees it)")->group(several);
  command
      ->add_option("--interfaces", a.interfaces,
                   "Network interfaces of this machine that messages to other machines use: addresses, as 10.0.0.1,10.1.0.1, or auto "
                   "(default: the one that leads to them)")
      ->group(several);
  command
      ->add_option("--channels", a.channels,
                   "Connections to each rank of another machine; they are spread over the interfaces, and messages are split over them by "
                   "their rates. The same on all machines")
      ->check(CLI::Range(1, comm::kChannelsMost))
      ->capture_default_str()
      ->group(several);
  command->add_option("--tls-authority", a.tls_authority, "Instead of a key: the trusted certificate authority (PEM)")->group(several);
  command->add_option("--tls-certificate", a.tls_certificate, "This machine's certificate (PEM)")->group(several);
  command->add_option("--tls-key", a.tls_key, "Its private key (PEM)")->group(several);
}

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
      "20ms,100Mbit; card: of all links of a rank together; sigma=1: log-normal latency; matrix=FILE: latencies in ms by pair; "
      "plane=50Mbit, repeated: parallel networks for --channels");
  command
      ->add_option(
          "--transport", a.transport,
          "How ranks exchange messages: net (processes), nccl (net, and NCCL between GPUs), mpi (processes that mpirun started) or local "
          "(threads on a virtual network)")
      ->check(CLI::IsMember({"local", "net", "nccl", "mpi"}))
      ->capture_default_str();
  command->add_option("--device", a.device, "What computes")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command->add_option("--out", a.out, "The run directory (default: runs/NAME, the first that is free)");
  command->add_option("--seed", a.seed, "train.seed")->check(not_negative());
  command->add_option("--resume", a.resume,
                      "Continue a run: its directory, or `auto` for the newest one (of this recipe or data, if given)");
  command->add_flag("--dry-run", a.dry_run, "Show what would run and the memory of each rank, and stop; exits with 1 if it does not fit");
  command->add_flag("--allow-oversize", a.allow_oversize,
                    "Train although the estimate of --dry-run does not fit into memory or onto the disk");
  const char* apart = "Remote islands: each is its own run, with the same recipe and key, and may come and go";
  command->add_option("--island", a.island, "Which of the --islands this is, from 0; --mesh says how it is laid out")
      ->check(not_negative())
      ->group(apart);
  command
      ->add_option("--meet", a.meet,
                   "HOST:PORT where islands find each other: an address of island 0's machine, or of any island that runs")
      ->group(apart);
  command->add_option("--listen", a.listen, "ADDRESS:PORT where this island listens (default: island 0 at --meet, others at a free port)")
      ->group(apart);
  command
      ->add_option("--founders", a.founders,
                   "Number of islands that wait for each other before the first step; more may join later (default: all)")
      ->check(positive())
      ->group(apart);
  add_machines(command, a);
  command->footer(
      "Under torchrun, srun or mpirun each process is one rank, without --nproc.\n"
      "Every recipe key with its default and range: cairn reference");
  return command;
}

CLI::App* add_replay(CLI::App& app, ReplayArguments& a) {
  CLI::App* command = app.add_subcommand("replay", "Repeat one step of a run from its record, and compare loss and gradient norm");
  command->add_option("run", a.run, "A run directory")->required();
  command->add_option("--step", a.step, "Which step, from 1")->required()->check(CLI::Range(1, 1 << 30));
  command->add_flag("--text", a.text, "Show the samples of the step as text");
  command->add_option("--nproc", a.nproc, "Ranks (default: as many as there were then)")->check(CLI::Range(1, 1 << 16));
  command->add_flag("--json", a.json, "Print it as one line of JSON");
  command->footer("Exits with 0 if both numbers are bitwise identical, with 1 if not.");
  return command;
}

CLI::App* add_diagnose(CLI::App& app, DiagnoseArguments& a) {
  CLI::App* command = app.add_subcommand("diagnose", "Show which rank or link held up a run, and the delays between its ranks");
  command->add_option("run", a.run, "A run directory, of a run in progress or ended")->required();
  command->add_flag("--json", a.json, "Print it as JSON");
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
                      "Links along an axis, as cp=20ms,100Mbit: what context.form = auto and --infer go by; once for each axis");
  command->add_option("--place", a.places,
                      "With --infer: a parameter along tp, as \"lm_head.weight=B\" or \"*.mlp.*=S0\", before the rules");
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
  command->add_option("--stages-per-rank", a.stages_per_rank, "0: the schedule's own, 1 or 2; interleaved takes more")
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
  command
      ->add_option("--recompute", a.recompute,
                   "Forward again before every backward: ahead, while a rank waits for the gradient; late, when it has arrived; none")
      ->check(CLI::IsMember({"none", "ahead", "late"}))
      ->capture_default_str();
  const char* files = "Files";
  command->add_option("--csv", a.csv, "Read the schedule, as PyTorch writes one: a line for each rank, cells like 0F0,1F0,,0B0")
      ->group(files);
  command->add_option("--out-csv", a.out_csv, "Write the schedule in that form")->group(files);
  command->add_option("--svg", a.svg, "Draw it: a row for each rank, a box for each action")->group(files);
  return command;
}

CLI::App* add_verify(CLI::App& app, VerifyArguments& a) {
  CLI::App* command = app.add_subcommand(
      "verify", "Run two layouts of one recipe for a few steps and name the first tensor that differs; or a table of many layouts");
  command->add_option("recipe", a.recipe, "A recipe (TOML); without one a small model on built-in stories");
  command->add_option("--data", a.data, "A file, a folder or a pattern to train on (data.path), of both");
  command->add_option("--mesh", a.mesh, "The layout in question: pp=2,tp=2");
  command->add_option("--plan", a.plan, "Instead: a plan that `cairn plan --save` wrote");
  command->add_option("--against", a.against, "The layout to compare with")->capture_default_str();
  command->add_option("--set", a.sets, "A recipe key, of both; may be repeated")->allow_extra_args(false)->take_all();
  command->add_option("--set-first", a.only_first, "A recipe key of the layout in question alone: --set-first memory.zero=3")
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--steps", a.steps, "Steps to compare")->check(CLI::Range(1, 10000))->capture_default_str();
  command->add_option("--tolerance", a.tolerance, "Largest difference that is accepted, relative to a tensor's largest element")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--plant", a.plant,
                      "Skip the gradient all-reduce of this parameter in the first layout, to see that the error is found; "
                      "context.merge: drop a partial result of attention along cp");
  command->add_flag(
      "--table", a.table,
      "Instead: many layouts of 1 to 8 ranks against one rank, as a table (loss difference, bytes by purpose, state of a rank)");
  return command;
}

CLI::App* add_key(CLI::App& app, KeyArguments& a) {
  CLI::App* command = app.add_subcommand("key", "Make the key that lets the machines of a run recognise each other");
  command->add_option("file", a.file, "Where to write it; copy it to every machine, and let nobody else read it")->required();
  return command;
}

}  // namespace cairn::cli
