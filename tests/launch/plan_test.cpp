#include "capstan/launch/plan.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/launch/cores.h"
#include "capstan/launch/ranks.h"

namespace capstan::launch {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// A machine with no GPU whose PATH has the programs that every test machine has.
Machine plain_machine(const Environment& more = {}) {
  Machine machine;
  machine.host_name = "me";
  machine.cores = 8;
  machine.folder = "/here";
  machine.self = "/opt/capstan";
  machine.env = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"NCCL_DEBUG", "WARN"}};
  for (const auto& [name, value] : more) machine.env[name] = value;
  return machine;
}

Machine gpu_machine(int count) {
  Machine machine = plain_machine();
  machine.devices = numbered_slots(count);
  return machine;
}

Options native(std::vector<std::string> words = {"/bin/true"}) {
  Options options;
  options.program.words = std::move(words);
  options.program.python = false;
  options.launcher = Launcher::local;
  return options;
}

std::string message_of(const Options& options, const Machine& machine) {
  try {
    make_plan(options, machine);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Plan, TellsEachRankWhoItIs) {
  Options options = native({"/bin/true", "x y"});
  options.ranks_per_host = 3;
  const Plan plan = make_plan(options, plain_machine({{"RANK", "0"}, {"PMIX_RANK", "0"}}));
  ASSERT_EQ(plan.processes.size(), 3u);
  const Environment& env = plan.processes[2].env;
  for (const auto& [name, value] : Environment{{"RANK", "2"},
                                               {"WORLD_SIZE", "3"},
                                               {"LOCAL_RANK", "2"},
                                               {"LOCAL_WORLD_SIZE", "3"},
                                               {"GROUP_RANK", "0"},
                                               {"CROSS_SIZE", "1"},
                                               {"CAPSTAN_LAUNCHER", "local"},
                                               {"OMP_NUM_THREADS", "2"},
                                               {"NCCL_DEBUG", "WARN"}}) {
    EXPECT_THAT(env, Contains(std::pair(name, value)));
  }
  EXPECT_FALSE(env.contains("PMIX_RANK"));
  EXPECT_FALSE(env.contains("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(plan.processes[2].argv, ElementsAre("/bin/true", "x y"));
  EXPECT_EQ(plan.master_addr, "127.0.0.1");
}

TEST(Plan, UsesAllGpusWhenNoNumberIsGiven) {
  const Plan plan = make_plan(native(), gpu_machine(4));
  EXPECT_EQ(plan.world_size(), 4);
  EXPECT_EQ(plan.processes[1].env.at("CUDA_VISIBLE_DEVICES"), "0,1,2,3");
  EXPECT_EQ(make_plan(native(), plain_machine()).world_size(), 1);
}

TEST(Plan, ShowsRanksOnlyTheChosenGpus) {
  Options options = native();
  options.include = "localhost:3,1";
  const Plan plan = make_plan(options, gpu_machine(4));
  EXPECT_EQ(plan.world_size(), 2);
  EXPECT_EQ(plan.processes[0].env.at("CUDA_VISIBLE_DEVICES"), "1,3");
  Machine narrowed = gpu_machine(0);
  narrowed.devices = {"5", "7"};  // CUDA_VISIBLE_DEVICES=5,7
  options.include = "localhost:7";
  EXPECT_EQ(make_plan(options, narrowed).processes[0].env.at("CUDA_VISIBLE_DEVICES"), "7");
}

TEST(Plan, RefusesMoreRanksThanGpusUnlessTheyMayShare) {
  Options options = native();
  options.ranks_per_host = 2;
  EXPECT_THAT(message_of(options, gpu_machine(1)), HasSubstr("this machine has 1 GPU"));
  options.launcher = Launcher::mpi;
  const Machine machine = gpu_machine(1);
  if (find_program("mpirun", machine.env).empty()) GTEST_SKIP() << "there is no mpirun here";
  EXPECT_EQ(make_plan(options, machine).world_size(), 2);
}

TEST(Plan, NeedsNoSshForRanksOfThisMachineUnderMpirun) {
  Options options = native();
  options.ranks_per_host = 2;
  options.launcher = Launcher::mpi;
  const Machine machine = plain_machine();
  if (find_program("mpirun", machine.env).empty()) GTEST_SKIP() << "there is no mpirun here";
  EXPECT_THAT(make_plan(options, machine).processes[0].argv, testing::Contains("plm_rsh_agent"));
}

TEST(Plan, PassesLocalRankToPythonOnlyAndWhereUpstreamDoes) {
  Options options = native({"json.tool", "--sort"});
  options.program.python = true;
  options.program.module = true;
  const Plan plan = make_plan(options, plain_machine());
  const std::vector<std::string>& argv = plan.processes[0].argv;
  EXPECT_THAT(std::vector<std::string>(argv.begin() + 1, argv.end()),
              ElementsAre("-u", "-m", "json.tool", "--local_rank=0", "--sort"));
  options.program.local_rank_argument = false;
  EXPECT_EQ(make_plan(options, plain_machine()).processes[0].argv.size(), 5u);
}

TEST(Plan, ChoosesTheLauncherFromWhatIsThere) {
  Options options = native();
  options.launcher = Launcher::automatic;
  EXPECT_EQ(make_plan(options, plain_machine()).launcher,
            Launcher::local);  // one rank needs no MPI
  options.ranks_per_host = 2;
  const bool has_mpirun = !find_program("mpirun", plain_machine().env).empty();
  EXPECT_EQ(make_plan(options, plain_machine()).launcher,
            has_mpirun ? Launcher::mpi : Launcher::local);
  EXPECT_EQ(make_plan(options, gpu_machine(2)).launcher, Launcher::local);
  options.program.python = true;
  options.program.words = {"json.tool"};
  options.program.module = true;
  EXPECT_EQ(make_plan(options, plain_machine()).launcher, Launcher::local);
}

TEST(Plan, CarriesAnAgentToEveryHostOverSsh) {
  if (find_program("ssh", plain_machine().env).empty()) GTEST_SKIP() << "there is no ssh here";
  Options options = native();
  options.launcher = Launcher::ssh;
  options.hosts = {{"a", {"0", "1"}}, {"me", {"0"}}};
  options.ssh_port = 2222;
  options.launcher_args = {"-F", "my config"};
  options.extra_env = {{"SPECIAL", "it's"}};
  const Plan plan = make_plan(options, plain_machine());
  ASSERT_EQ(plan.processes.size(), 2u);
  EXPECT_EQ(plan.processes[0].name, "ssh a");
  const std::string line = shell_join(plan.processes[0].argv);
  EXPECT_THAT(line, HasSubstr("-p 2222 -F 'my config' -- a "));
  const std::string& script = plan.processes[0].argv.back();
  EXPECT_THAT(script, HasSubstr("cd /here && exec "));
  EXPECT_EQ(plan.processes[0].sent.at("SPECIAL"), "it's");
  EXPECT_TRUE(plan.processes[1].sent.empty());
  EXPECT_EQ(plan.processes[1].env.at("SPECIAL"), "it's");
  EXPECT_THAT(script, HasSubstr("launch-agent --pool a:0,1@me:0 --node_rank 0 --devices"));
  EXPECT_EQ(plan.processes[1].argv[0], "/opt/capstan");  // our own host needs no ssh
  EXPECT_EQ(plan.processes[1].channel, Channel::agent_on_pipe);
}

TEST(Plan, KeepsValuesOfVariablesOutOfWordsAndOutOfWhatIsShown) {
  Machine machine = plain_machine({{"HF_TOKEN", "hf-secret"}, {"WANDB_API_KEY", "wandb-secret"}});
  Options options = native();
  options.extra_env = {{"PASSWORD", "file-secret"}};
  options.hosts = {{"a", {"0"}}, {"me", {"0"}}};
  for (const auto& [launcher, program] :
       {std::pair(Launcher::ssh, "ssh"), {Launcher::mpi, "mpirun"}, {Launcher::local, "sh"}}) {
    if (find_program(program, machine.env).empty()) continue;
    options.launcher = launcher;
    if (launcher == Launcher::local) options.hosts.clear();
    const Plan plan = make_plan(options, machine);
    for (const Process& process : plan.processes) {
      EXPECT_THAT(shell_join(process.argv), testing::Not(HasSubstr("secret")));
    }
    const std::string shown = describe(plan, machine.env);
    EXPECT_THAT(shown, testing::Not(HasSubstr("secret")));
    EXPECT_THAT(shown, HasSubstr("PASSWORD"));
  }
}

TEST(Plan, UsesSrunInABatchJobButNotInsideAStep) {
  const Environment job = {{"SLURM_JOB_ID", "7"},
                           {"SLURM_JOB_NODELIST", "n[1-2]"},
                           {"SLURM_JOB_NUM_NODES", "2"},
                           {"SLURM_TASKS_PER_NODE", "3(x2)"}};
  if (find_program("srun", plain_machine().env).empty()) GTEST_SKIP() << "there is no srun here";
  Options options = native();
  options.launcher = Launcher::automatic;
  const Plan plan = make_plan(options, plain_machine(job));
  EXPECT_EQ(plan.launcher, Launcher::slurm);
  EXPECT_EQ(plan.world_size(), 6);
  const std::vector<std::string>& argv = plan.processes[0].argv;
  EXPECT_THAT(argv, Contains("--ntasks=6"));
  EXPECT_THAT(argv, Contains("--nodelist=n1,n2"));
  EXPECT_THAT(argv, Contains("--mpi=pmix"));
  Environment uneven = job;
  uneven["SLURM_TASKS_PER_NODE"] = "3,1";
  EXPECT_THAT(message_of(options, plain_machine(uneven)), HasSubstr("SLURM_TASKS_PER_NODE"));
  Environment step = job;
  step["SLURM_JOB_NUM_NODES"] = step["SLURM_STEP_NUM_NODES"] = step["SLURM_STEP_NUM_TASKS"] = "1";
  step["SLURM_PROCID"] = "0";
  EXPECT_EQ(make_plan(options, plain_machine(step)).launcher, Launcher::local);
}

TEST(Plan, StartsTheRanksOfOneHostInsideAnOuterTaskPerHost) {
  Machine machine = plain_machine({{"SLURM_PROCID", "1"},
                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_LOCALID", "0"},
                                   {"SLURM_NODEID", "1"},
                                   {"SLURM_STEP_NUM_NODES", "2"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                   {"SLURM_STEP_NODELIST", "n[1-2]"},
                                   {"SLURM_JOB_ID", "5"}});
  machine.devices = {"0", "1"};
  Options options = native();
  options.launcher = Launcher::automatic;
  const Plan plan = make_plan(options, machine);
  ASSERT_EQ(plan.processes.size(), 2u);
  EXPECT_EQ(plan.processes[1].env.at("RANK"), "3");
  EXPECT_EQ(plan.processes[1].env.at("WORLD_SIZE"), "4");
  EXPECT_EQ(plan.master_addr, "n1");
  EXPECT_GT(plan.master_port, 0);
}

TEST(Plan, KeepsItsPlaceInsideAnOuterTaskPerRank) {
  const Machine machine = plain_machine({{"OMPI_COMM_WORLD_RANK", "1"},
                                         {"OMPI_COMM_WORLD_SIZE", "2"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                         {"PMIX_RANK", "1"}});
  Options options = native();
  options.launcher = Launcher::automatic;
  const Plan plan = make_plan(options, machine);
  ASSERT_EQ(plan.processes.size(), 1u);
  EXPECT_EQ(plan.processes[0].env.at("RANK"), "1");
  EXPECT_EQ(plan.processes[0].env.at("PMIX_RANK"), "1");
  options.ranks_per_host = 4;
  EXPECT_THAT(message_of(options, machine), HasSubstr("which starts 2 ranks"));
}

TEST(Plan, StartsOneHostByHand) {
  Options options = native();
  options.launcher = Launcher::automatic;
  options.hosts = {{"a", {"0", "1"}}, {"b", {"0"}}};
  options.node_rank = 1;
  const Plan plan = make_plan(options, plain_machine());
  ASSERT_EQ(plan.processes.size(), 1u);
  EXPECT_EQ(plan.processes[0].env.at("RANK"), "2");
  EXPECT_EQ(plan.master_addr, "a");
  EXPECT_EQ(plan.master_port, 29500);
  options.node_rank = 2;
  EXPECT_THAT(message_of(options, plain_machine()),
              HasSubstr("no node rank 2: the job has 2 hosts"));
}

TEST(Plan, RefusesOptionsThatContradictEachOther) {
  const auto with = [](auto change) {
    Options options = native();
    change(options);
    return message_of(options, plain_machine());
  };
  EXPECT_THAT(with([](Options& o) { o.include = o.exclude = "a"; }), HasSubstr("both"));
  EXPECT_THAT(with([](Options& o) { o.include = "a", o.ranks_per_host = 1; }), HasSubstr("filter"));
  EXPECT_THAT(with([](Options& o) { o.include = "localhost:0"; }), HasSubstr("no visible GPU"));
  EXPECT_THAT(with([](Options& o) { o.ranks_per_host = 0; }), HasSubstr("0 ranks"));
  EXPECT_THAT(with([](Options& o) { o.host_count = 2; }), HasSubstr("2 hosts were requested"));
  EXPECT_THAT(with([](Options& o) { o.master_port = 70000; }), HasSubstr("70000"));
  EXPECT_THAT(with([](Options& o) { o.core_list = "0"; }), HasSubstr("not bound"));
  EXPECT_THAT(with([](Options& o) { o.launcher = Launcher::slurm; }), HasSubstr("not a SLURM job"));
  EXPECT_THAT(with([](Options& o) { o.hosts = {{"far", {"0"}}}; }), HasSubstr("--launcher ssh"));
  EXPECT_THAT(with([](Options& o) { o.hosts = {{"-oProxyCommand=x", {"0"}}}; }),
              HasSubstr("no name"));
  EXPECT_THAT(with([](Options& o) { o.program.words = {"/no/such"}; }), HasSubstr("no program"));
  EXPECT_THAT(with([](Options& o) { o.program.words.clear(); }), HasSubstr("no program to start"));
  EXPECT_THAT(with([](Options& o) { o.program.module = true; }), HasSubstr("--no_python"));
  EXPECT_THAT(with([](Options& o) { o.program.python = true; }), HasSubstr("add --no_python"));
}

TEST(Shares, NumberRanksHostAfterHostWithUnequalSlots) {
  const Pool pool = {{"a", {"0", "1", "2"}}, {"b", {"4"}}, {"c", {"0", "1"}}};
  EXPECT_EQ(parse_pool(format_pool(pool)), pool);
  for (int rank = 0; rank < 6; ++rank) {
    const Share share = share_of_rank(pool, rank, true);
    EXPECT_EQ(share.first_rank + share.begin, rank);
    EXPECT_EQ(share.world_size, 6);
  }
  const Share b = share_of_rank(pool, 3, true);
  EXPECT_EQ(b.node_rank, 1);
  EXPECT_EQ(b.begin, 0);
  EXPECT_THAT(b.devices, ElementsAre("4"));
  EXPECT_THROW(share_of_rank(pool, 6, true), ConfigError);
  for (const char* bad : {"", "a", "a:", ":0", "a:0@"}) EXPECT_THROW(parse_pool(bad), ConfigError);
}

TEST(Cores, AreSharedOutInEqualRuns) {
  std::vector<Core> cores(6);
  for (int i = 0; i < 6; ++i) cores[static_cast<std::size_t>(i)] = {{i, i + 6}, i / 3};
  const Pool pool = {{"a", {"0", "1"}}};
  const Share share = share_of_node(pool, 0, false);
  std::vector<Process> processes = rank_processes(share, native().program, {"/bin/true"}, {});
  bind_to_cores(processes, share, cores);
  EXPECT_THAT(processes[1].cpus, ElementsAre(3, 9, 4, 10, 5, 11));
  EXPECT_EQ(processes[1].numa_node, 1);
  EXPECT_EQ(processes[1].env.at("OMP_NUM_THREADS"), "3");
  Share second = share;  // as in a job step that starts each rank by itself
  second.begin = 1;
  std::vector<Process> alone = rank_processes(second, native().program, {"/bin/true"}, {});
  ASSERT_EQ(alone.size(), 1u);
  bind_to_cores(alone, second, cores);
  EXPECT_EQ(alone[0].cpus, processes[1].cpus);
  bind_to_cores(processes, share, pick_cores(cores, "0,2-4"));
  EXPECT_EQ(processes[0].env.at("OMP_NUM_THREADS"), "2");
  EXPECT_THROW(bind_to_cores(processes, share, pick_cores(cores, "1")), ConfigError);
  for (const char* bad : {"2,1", "0-9", "x", "1,1", "3-2", ","}) {
    EXPECT_THROW(pick_cores(cores, bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace capstan::launch
