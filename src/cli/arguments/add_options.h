// Each function adds one command with its options to the parser; values go into `a`, which must outlive the parse. The parser (CLI11) is
// known to the sources of this folder alone.
#pragma once
#include "cli/arguments.h"

namespace CLI {
class App;
}

namespace cairn::cli {

// The options of several machines, of every command that runs on ranks.
void add_machines(CLI::App* command, LaunchArguments& a);

CLI::App* add_train(CLI::App& app, TrainArguments& a);
CLI::App* add_replay(CLI::App& app, ReplayArguments& a);
CLI::App* add_diagnose(CLI::App& app, DiagnoseArguments& a);
CLI::App* add_plan(CLI::App& app, PlanArguments& a);
CLI::App* add_schedule(CLI::App& app, ScheduleArguments& a);
CLI::App* add_verify(CLI::App& app, VerifyArguments& a);
CLI::App* add_key(CLI::App& app, KeyArguments& a);
CLI::App* add_generate(CLI::App& app, GenerateArguments& a);
CLI::App* add_chat(CLI::App& app, ChatArguments& a);
CLI::App* add_eval(CLI::App& app, EvalArguments& a);
CLI::App* add_tokenize(CLI::App& app, TokenizeArguments& a);
CLI::App* add_data(CLI::App& app, DataArguments& a);
CLI::App* add_select(CLI::App& app, SelectArguments& a);
CLI::App* add_experts(CLI::App& app, ExpertsArguments& a);
CLI::App* add_snapshot(CLI::App& app, SnapshotArguments& a);
CLI::App* add_logits(CLI::App& app, LogitsArguments& a);
CLI::App* add_prove(CLI::App& app, ProveArguments& a);
CLI::App* add_bench(CLI::App& app, BenchArguments& a);
CLI::App* add_study(CLI::App& app, StudyArguments& a);
CLI::App* add_unlearn(CLI::App& app, UnlearnArguments& a);
CLI::App* add_supernet(CLI::App& app, SupernetArguments& a);
CLI::App* add_prune(CLI::App& app, StudyArguments& a);
CLI::App* add_example(CLI::App& app, ExampleArguments& a);

}  // namespace cairn::cli
