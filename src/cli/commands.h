#pragma once
#include <functional>
#include <string>
#include <vector>

namespace cairn::cli {

struct ChatArguments;
struct CompletionArguments;
struct DataArguments;
struct DiagnoseArguments;
struct EvalArguments;
struct ExpertsArguments;
struct GenerateArguments;
struct KeyArguments;
struct LogitsArguments;
struct PlanArguments;
struct ReplayArguments;
struct ScheduleArguments;
struct SelectArguments;
struct SnapshotArguments;
struct TokenizeArguments;
struct TrainArguments;
struct VerifyArguments;

// The program `cairn`: parses the arguments, runs the command, and returns the exit code.
int run(int argc, char** argv);

// The frame of every program's main: prepares the process, runs `program`, turns its exceptions into one message on standard error, and
// returns the exit code. 2: wrong recipe, arguments or files; 3: failed run; 4: lost peer.
int run_guarded(const std::function<int()>& program);

// Each runs one command and returns the exit code. `command_line` holds the arguments, for starting ranks with the same ones.
int train_command(const TrainArguments& a, const std::vector<std::string>& command_line);
int generate_command(const GenerateArguments& a, const std::vector<std::string>& command_line);
int chat_command(const ChatArguments& a);
int eval_command(const EvalArguments& a);
int replay_command(const ReplayArguments& a);
int tokenize_command(const TokenizeArguments& a);
int snapshot_command(const SnapshotArguments& a);
int inspect_snapshot(const SnapshotArguments& a);  // of snapshot_command
int diff_snapshots(const SnapshotArguments& arguments);
int reshape_snapshot(const SnapshotArguments& arguments);
int verify_snapshot(const SnapshotArguments& a);
int plan_command(const PlanArguments& a);
int schedule_command(const ScheduleArguments& a);
int verify_command(const VerifyArguments& a);
int logits_command(const LogitsArguments& a);
int data_command(const DataArguments& a);
int select_command(const SelectArguments& a, const std::vector<std::string>& command_line);
int experts_command(const ExpertsArguments& a);
int key_command(const KeyArguments& a);
int diagnose_command(const DiagnoseArguments& a);
int doctor_command();
int version_command();
std::string version_text();  // "cairn 0.9.0 (libtorch 2.4.0)"
int reference_command();
int completion_command(const CompletionArguments& a);

}  // namespace cairn::cli
