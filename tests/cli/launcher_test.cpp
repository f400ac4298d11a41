#include "cli/launch/launcher.h"

#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/environment.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;
using Table = std::map<std::string, std::string>;
using By = Launch::By;

Variables from(Table table) {
  return [table = std::move(table)](const char* name) -> std::optional<std::string> {
    const auto found = table.find(name);
    if (found == table.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

// `base` with some variables set otherwise; an empty value takes one away.
Table but(Table base, const Table& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

std::string refusal(const Table& table) {
  try {
    detect_launch(from(table));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

// As torchrun 2.11 sets them with --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id seven.
const Table kTorchrun = {{"GROUP_RANK", "1"},
                         {"GROUP_WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "2"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "41865"},
                         {"RANK", "6"},
                         {"ROLE_NAME", "default"},
                         {"ROLE_RANK", "6"},
                         {"ROLE_WORLD_SIZE", "8"},
                         {"TORCHELASTIC_MAX_RESTARTS", "0"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                         {"TORCHELASTIC_RUN_ID", "seven"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"WORLD_SIZE", "8"}};

// As seen in Slurm 22.05.8: srun --nodes=3 --ntasks=5, task 3.
const Table kSlurm = {{"SLURM_CPUS_ON_NODE", "2"},
                      {"SLURM_GTIDS", "2,3"},
                      {"SLURM_JOBID", "1207"},
                      {"SLURM_JOB_CPUS_PER_NODE", "2(x3)"},
                      {"SLURM_JOB_ID", "1207"},
                      {"SLURM_JOB_NODELIST", "n[1-3]"},
                      {"SLURM_JOB_NUM_NODES", "3"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NNODES", "3"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NODELIST", "n[1-3]"},
                      {"SLURM_NPROCS", "5"},
                      {"SLURM_NTASKS", "5"},
                      {"SLURM_PROCID", "3"},
                      {"SLURM_STEPID", "0"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_LAUNCHER_PORT", "33097"},
                      {"SLURM_STEP_NODELIST", "n[1-3]"},
                      {"SLURM_STEP_NUM_NODES", "3"},
                      {"SLURM_STEP_NUM_TASKS", "5"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                      {"SLURM_TASKS_PER_NODE", "2(x2),1"}};

// The same job on one node: srun --nodes=1 --ntasks=2, task 1.
const Table kOneNode = but(kSlurm, {{"SLURM_JOB_NODELIST", "n1"},
                                    {"SLURM_NODEID", "0"},
                                    {"SLURM_NODELIST", "n1"},
                                    {"SLURM_NTASKS", "2"},
                                    {"SLURM_PROCID", "1"},
                                    {"SLURM_STEP_NODELIST", "n1"},
                                    {"SLURM_STEP_NUM_NODES", "1"},
                                    {"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                    {"SLURM_TASKS_PER_NODE", "2"}});

// One agent on each of three nodes: srun --ntasks-per-node=1, the last one.
const Table kAgents = but(kSlurm, {{"SLURM_LOCALID", "0"},
                                   {"SLURM_NODEID", "2"},
                                   {"SLURM_NTASKS", "3"},
                                   {"SLURM_PROCID", "2"},
                                   {"SLURM_STEP_NUM_TASKS", "3"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                                   {"SLURM_TASKS_PER_NODE", "1(x3)"}});

// As seen in Open MPI 4.1.4: mpirun -n 2, the second.
const Table kMpirun = {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                       {"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_UNIVERSE_SIZE", "2"},
                       {"PMIX_NAMESPACE", "1809317889"},
                       {"OMPI_MCA_ess_base_jobid", "1809317889"},
                       {"PMIX_RANK", "1"}};

TEST(Launcher, SaysNothingWhereNobodyLaunched) {
  EXPECT_EQ(detect_launch(from({})), std::nullopt);
  EXPECT_EQ(detect_launch(from({{"RANK", "0"}, {"WORLD_SIZE", "2"}})), std::nullopt);
  EXPECT_EQ(detect_node(from({})), std::nullopt);
}

// --- torchrun ----------------------------------------------------------------------------------------------------------------------------

TEST(Torchrun, IsUnderstoodOverSeveralMachines) {
  const Launch expected{By::torchrun, 6, 8, 2, 4, "node0:41866", "torchrun/node0/41865/seven/0/1"};
  EXPECT_EQ(detect_launch(from(kTorchrun)), expected);
}

TEST(Torchrun, NeedsNoMeetingOnOneMachine) {
  // As torchrun 2.11 sets them with --standalone --nproc-per-node 2.
  const auto launch = detect_launch(from({{"GROUP_RANK", "0"},
                                          {"LOCAL_RANK", "1"},
                                          {"LOCAL_WORLD_SIZE", "2"},
                                          {"MASTER_ADDR", "localhost"},
                                          {"MASTER_PORT", "32773"},
                                          {"RANK", "1"},
                                          {"TORCHELASTIC_RESTART_COUNT", "0"},
                                          {"TORCHELASTIC_RUN_ID", "e4780a50-a379-4f3c-a999-5e3341fc9703"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                          {"WORLD_SIZE", "2"}}));
  const Launch expected{By::torchrun, 1, 2, 1, 2, std::nullopt, "torchrun/localhost/32773/e4780a50-a379-4f3c-a999-5e3341fc9703/0/0"};
  EXPECT_EQ(launch, expected);
}

TEST(Torchrun, MeetsAtAPortThatItsOwnStoreDoesNotUse) {
  const auto met = [](const Table& changes) { return detect_launch(from(but(kTorchrun, changes)))->rendezvous; };
  EXPECT_EQ(met({{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), "node0:41865");
  EXPECT_EQ(met({{"TORCHELASTIC_USE_AGENT_STORE", ""}}), "node0:41865");
  EXPECT_EQ(met({{"MASTER_PORT", "65534"}}), "node0:65535");
  EXPECT_EQ(met({{"MASTER_PORT", "65535"}}), "node0:65534");
  EXPECT_EQ(met({{"MASTER_ADDR", "fd00::2"}}), "[fd00::2]:41866");
}

TEST(Torchrun, TellsRunsRestartsAndAgentsOfOneMachineApart) {
  const auto job = [](const Table& changes) { return detect_launch(from(but(kTorchrun, changes)))->job; };
  const std::string one = job({});
  EXPECT_EQ(job({{"RANK", "5"}, {"LOCAL_RANK", "1"}, {"ROLE_RANK", "5"}}), one);
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK", "MASTER_PORT", "MASTER_ADDR"})
    EXPECT_NE(job({{name, "3"}}), one) << name;
}

TEST(Torchrun, VariablesSetByHandNeedNoPlaceWhereThereIsOnlyOne) {
  const Table alone = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node0"}};
  EXPECT_EQ(detect_launch(from(alone)), (Launch{By::torchrun, 0, 1, 0, 1, std::nullopt, "torchrun/node0/-/-/-/-"}));
  const Table one_each = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(detect_launch(from(one_each)), (Launch{By::torchrun, 3, 4, 0, 1, "node0:29500", "torchrun/node0/29500/-/-/-"}));
}

TEST(Torchrun, ARankWithoutItsPlaceOnTheMachineIsRefused) {
  EXPECT_EQ(refusal(but(kTorchrun, {{"LOCAL_RANK", ""}})),
            "LOCAL_RANK is not set, but RANK, WORLD_SIZE = 8 and MASTER_ADDR are: set it to this rank's number among those on its machine, "
            "from 0");
  EXPECT_EQ(refusal(but(kTorchrun, {{"LOCAL_WORLD_SIZE", ""}})),
            "LOCAL_WORLD_SIZE is not set, but RANK, WORLD_SIZE = 8 and MASTER_ADDR are: set it to the number of ranks on this machine");
  EXPECT_THAT(refusal(but(kTorchrun, {{"MASTER_PORT", ""}})), HasSubstr("MASTER_PORT is not set, but other variables of torchrun are"));
}

TEST(Torchrun, ValuesOutOfRangeAreRefusedByName) {
  EXPECT_EQ(refusal(but(kTorchrun, {{"RANK", "8"}})), "RANK = 8: must be a whole number from 0 to 7");
  EXPECT_EQ(refusal(but(kTorchrun, {{"RANK", "-1"}})), "RANK = -1: must be a whole number from 0 to 7");
  EXPECT_EQ(refusal(but(kTorchrun, {{"WORLD_SIZE", "many"}})), "WORLD_SIZE = many: must be a whole number from 1 to 65536");
  EXPECT_EQ(refusal(but(kTorchrun, {{"WORLD_SIZE", "8 "}})), "WORLD_SIZE = 8 : must be a whole number from 1 to 65536");
  EXPECT_EQ(refusal(but(kTorchrun, {{"WORLD_SIZE", "0"}})), "WORLD_SIZE = 0: must be a whole number from 1 to 65536");
  EXPECT_EQ(refusal(but(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}})),
            "WORLD_SIZE = 99999999999999999999: must be a whole number from 1 to 65536");
  EXPECT_EQ(refusal(but(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), "LOCAL_WORLD_SIZE = 9: must be a whole number from 1 to 8");
  EXPECT_EQ(refusal(but(kTorchrun, {{"LOCAL_RANK", "4"}})), "LOCAL_RANK = 4: must be a whole number from 0 to 3");
  EXPECT_EQ(refusal(but(kTorchrun, {{"MASTER_PORT", "65536"}})), "MASTER_PORT = 65536: must be a whole number from 1 to 65535");
}

// --- Open MPI ----------------------------------------------------------------------------------------------------------------------------

TEST(Mpirun, IsUnderstood) {
  EXPECT_EQ(detect_launch(from(kMpirun)), (Launch{By::mpirun, 1, 2, 1, 2, std::nullopt, "mpirun/1809317889"}));
  // Open MPI 5 names its jobs otherwise.
  const auto launch = detect_launch(from(but(kMpirun, {{"PMIX_NAMESPACE", "prterun-node0-4711@1"}, {"OMPI_MCA_ess_base_jobid", ""}})));
  EXPECT_EQ(launch->job, "mpirun/prterun-node0-4711@1");
}

TEST(Mpirun, ComesBeforeWhatSurroundsIt) {
  Table all = kMpirun;
  all.insert(kTorchrun.begin(), kTorchrun.end());
  all.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(detect_launch(from(all))->by, By::mpirun);
  all["OMPI_COMM_WORLD_RANK"] = "";
  EXPECT_EQ(detect_launch(from(all))->by, By::torchrun);
  all["RANK"] = "";
  EXPECT_EQ(detect_launch(from(all))->by, By::slurm);
}

TEST(Mpirun, ValuesOutOfRangeOrMissingAreRefusedByName) {
  EXPECT_EQ(refusal(but(kMpirun, {{"OMPI_COMM_WORLD_RANK", "2"}})), "OMPI_COMM_WORLD_RANK = 2: must be a whole number from 0 to 1");
  EXPECT_EQ(refusal(but(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_RANK", "x"}})),
            "OMPI_COMM_WORLD_LOCAL_RANK = x: must be a whole number from 0 to 1");
  EXPECT_EQ(refusal(but(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})),
            "OMPI_COMM_WORLD_LOCAL_SIZE = 3: must be a whole number from 1 to 2");
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    EXPECT_EQ(refusal(but(kMpirun, {{name, ""}})),
              std::string(name) + " is not set, but other variables of mpirun are: set it too, or unset those");
  EXPECT_THAT(refusal(but(kMpirun, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", ""}})), HasSubstr("PMIX_NAMESPACE is not set"));
}

// --- Slurm -------------------------------------------------------------------------------------------------------------------------------

TEST(Slurm, IsUnderstoodOverSeveralNodes) {
  // 20000 + (1207 * 101 + 0) mod 20000
  EXPECT_EQ(detect_launch(from(kSlurm)), (Launch{By::slurm, 3, 5, 1, 2, "n1:21907", "slurm/1207.0/1"}));
  const auto last = detect_launch(from(but(kSlurm, {{"SLURM_PROCID", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}})));
  EXPECT_EQ(last, (Launch{By::slurm, 4, 5, 0, 1, "n1:21907", "slurm/1207.0/2"}));
}

TEST(Slurm, NeedsNoMeetingOnOneNode) {
  EXPECT_EQ(detect_launch(from(kOneNode)), (Launch{By::slurm, 1, 2, 1, 2, std::nullopt, "slurm/1207.0/0"}));
}

TEST(Slurm, StepsMeetAtPortsOfTheirOwn) {
  const auto met = [](const char* job, const char* step) {
    return detect_launch(from(but(kSlurm, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})))->rendezvous;
  };
  EXPECT_EQ(met("0", "0"), "n1:20000");
  EXPECT_EQ(met("0", "19999"), "n1:39999");
  EXPECT_EQ(met("1207", "1"), "n1:21908");
  EXPECT_EQ(met("1208", "0"), "n1:22008");
  EXPECT_EQ(met("4294967295", "7"), "n1:36802");
}

TEST(Slurm, AStepCountsMoreThanItsJob) {
  // A step on part of a larger allocation.
  const auto launch =
      detect_launch(from(but(kOneNode, {{"SLURM_TASKS_PER_NODE", "8(x4)"}, {"SLURM_NODELIST", "n[1-4]"}, {"SLURM_NTASKS", "32"}})));
  EXPECT_EQ(launch, (Launch{By::slurm, 1, 2, 1, 2, std::nullopt, "slurm/1207.0/0"}));
  const Table old = but(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_STEP_NODELIST", ""}});
  EXPECT_EQ(detect_launch(from(old)), detect_launch(from(kSlurm)));
}

TEST(Slurm, ABatchScriptsBodyIsNoRank) {
  // As seen in the body of a batch script with --nodes=2 --ntasks=3.
  const Table body = {{"SLURM_GTIDS", "0"},  {"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "0"}, {"SLURM_NNODES", "2"}, {"SLURM_NODELIST", "n[1-2]"},     {"SLURM_NTASKS", "3"},
                      {"SLURM_NPROCS", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_TASKS_PER_NODE", "2,1"}};
  EXPECT_EQ(detect_launch(from(body)), std::nullopt);
  EXPECT_EQ(detect_node(from(body)), std::nullopt);
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}) EXPECT_EQ(detect_launch(from(but(kSlurm, {{name, ""}}))), std::nullopt);
}

TEST(Slurm, AnInteractiveShellIsNoRank) { EXPECT_EQ(detect_launch(from(but(kOneNode, {{"SLURM_STEP_ID", "4294967290"}}))), std::nullopt); }

TEST(Slurm, NodeListsBeginWithTheNodeToMeetAt) {
  const auto first = [](const char* list) {
    const std::string met = *detect_launch(from(but(kSlurm, {{"SLURM_STEP_NODELIST", list}})))->rendezvous;
    return met.substr(0, met.find(':'));
  };
  EXPECT_EQ(first("gpu[01-04,07],login1"), "gpu01");
  EXPECT_EQ(first("gpu[7,01-04]"), "gpu7");
  EXPECT_EQ(first("login1,gpu[01-04]"), "login1");
  EXPECT_EQ(first("a,b,c"), "a");
  EXPECT_EQ(first("node-3-[008-010]"), "node-3-008");
  EXPECT_EQ(first("rack[1-2]node[03-08],x"), "rack1node03");
  EXPECT_EQ(first("n[1-3]-ib.site.org"), "n1-ib.site.org");
}

TEST(Slurm, NodeListsThatCannotBeReadAreRefused) {
  const auto list = [](const char* value) { return refusal(but(kSlurm, {{"SLURM_STEP_NODELIST", value}})); };
  EXPECT_EQ(list("gpu[01"), "SLURM_STEP_NODELIST = gpu[01: [ without ]: must be names such as gpu[01-04,07],login1");
  EXPECT_THAT(list("gpu]"), HasSubstr("] without ["));
  EXPECT_THAT(list("gpu[]"), HasSubstr("no number after ["));
  EXPECT_THAT(list("gpu[-4]"), HasSubstr("no number after ["));
  EXPECT_THAT(list("gpu[[1]"), HasSubstr("no number after ["));
  EXPECT_THAT(list(",gpu1"), HasSubstr("no name at its beginning"));
  const Table none = {{"SLURM_STEP_NODELIST", ""}, {"SLURM_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}};
  EXPECT_THAT(refusal(but(kSlurm, none)), HasSubstr("SLURM_STEP_NODELIST is not set, but other variables of srun are"));
}

TEST(Slurm, TaskCountsThatCannotBeReadAreRefused) {
  const auto counts = [](const char* value) { return refusal(but(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", value}})); };
  EXPECT_EQ(counts("2(x2),1x"), "SLURM_STEP_TASKS_PER_NODE = 2(x2),1x: cannot read \"1x\": must be numbers of tasks such as 2(x3),1");
  for (const char* bad : {"2(x2", "2(x)", "(x2)", "2(x0)", "2(x2),", ",2", "0,5", "2(x99999999)", "2(x-1)", "-2", "2(x2)1"})
    EXPECT_THAT(counts(bad), HasSubstr("cannot read")) << bad;
  EXPECT_THAT(counts("1(x65536),1"), HasSubstr("cannot read \"1\""));
  EXPECT_EQ(counts("2(x3)"), "SLURM_STEP_TASKS_PER_NODE = 2(x3): these are 6 tasks, but SLURM_STEP_NUM_TASKS = 5");
}

TEST(Slurm, ValuesOutOfRangeAreRefusedByName) {
  EXPECT_EQ(refusal(but(kSlurm, {{"SLURM_PROCID", "5"}})), "SLURM_PROCID = 5: must be a whole number from 0 to 4");
  EXPECT_EQ(refusal(but(kSlurm, {{"SLURM_NODEID", "3"}})), "SLURM_NODEID = 3: must be a whole number from 0 to 2");
  EXPECT_EQ(refusal(but(kSlurm, {{"SLURM_LOCALID", "2"}})), "SLURM_LOCALID = 2: must be a whole number from 0 to 1");
  EXPECT_EQ(refusal(but(kSlurm, {{"SLURM_JOB_ID", "x"}})), "SLURM_JOB_ID = x: must be a whole number from 0 to 4294967295");
  EXPECT_EQ(refusal(but(kSlurm, {{"SLURM_STEP_ID", "batch"}})), "SLURM_STEP_ID = batch: must be a whole number from 0 to 4294967295");
  EXPECT_EQ(refusal(but(kSlurm, {{"SLURM_STEP_NUM_TASKS", "0"}})), "SLURM_STEP_NUM_TASKS = 0: must be a whole number from 1 to 65536");
  for (const char* name : {"SLURM_NODEID", "SLURM_LOCALID"})
    EXPECT_THAT(refusal(but(kSlurm, {{name, ""}})), HasSubstr(std::string(name) + " is not set")) << name;
}

TEST(Slurm, OneTaskOnEachNodeMayStartTheRanksOfItsMachine) {
  EXPECT_EQ(detect_node(from(kAgents)), (NodePlace{2, 3, "n1:21907"}));
  const Table alone =
      but(kOneNode, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  EXPECT_EQ(detect_node(from(alone)), (NodePlace{0, 1, std::nullopt}));
}

TEST(Slurm, SeveralTasksOnANodeMayNotEachStartAllRanks) {
  try {
    detect_node(from(kSlurm));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("srun started 2 tasks on one node"));
    EXPECT_THAT(error.what(), HasSubstr("--ntasks-per-node=1"));
  }
}

TEST(Slurm, IsNoPlaceForAnotherLaunchersRanks) {
  // mpirun and torchrun inside a job are one task of srun on each node.
  Table inside = kAgents;
  inside.insert(kMpirun.begin(), kMpirun.end());
  EXPECT_EQ(detect_node(from(inside)), std::nullopt);
  inside = kAgents;
  inside.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(detect_node(from(inside)), std::nullopt);
}

// As torchrun and users say it: islands that share a machine and do not know of each other would take all its cores each.
TEST(Launcher, GivesARankTheThreadsThatTheEnvironmentNames) {
  const auto before = variable("OMP_NUM_THREADS");
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads_among(1), processors());
  EXPECT_EQ(threads_among(2 * processors()), 1);
  set_variable("OMP_NUM_THREADS", "3");
  EXPECT_EQ(threads_among(1), 3);
  EXPECT_EQ(threads_among(64), 3);
  set_variable("OMP_NUM_THREADS", "5,2");
  EXPECT_EQ(threads_among(64), 5);
  for (const char* wrong : {"0", "-1", "many", "2x"}) {
    set_variable("OMP_NUM_THREADS", wrong);
    EXPECT_THROW(threads_among(1), Error) << wrong;
  }
  if (before)
    set_variable("OMP_NUM_THREADS", *before);
  else
    ::unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace cairn::cli
