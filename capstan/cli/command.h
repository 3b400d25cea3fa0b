// One function per command of the `capstan` program; main.cpp and engine_main.cpp are the lists of
// them.
#pragma once

namespace CLI {
class App;
}

namespace capstan::cli {

// Each adds its subcommand to `app`; when that subcommand was chosen, its callback runs inside
// app.parse() and leaves the exit code in `exit_code`, which must outlive the app.

void add_config_command(CLI::App& app,
                        int& exit_code);  // capstan config check, explain, schema, docs

// capstan checkpoint inspect, verify, convert, export, prune
void add_checkpoint_command(CLI::App& app, int& exit_code);

void add_launch_command(CLI::App& app, int& exit_code);        // capstan launch
void add_launch_agent_command(CLI::App& app, int& exit_code);  // its hand on other hosts

// capstan tune; --autotuning of capstan launch does the same.
void add_tune_command(CLI::App& app, int& exit_code);

void add_bench_command(CLI::App& app, int& exit_code);   // capstan bench io
void add_report_command(CLI::App& app, int& exit_code);  // capstan report

void add_page_command(CLI::App& app, int& exit_code);  // capstan page
void add_doctor_command(CLI::App& app, int& exit_code);  // capstan doctor

void add_pipeline_command(CLI::App& app, int& exit_code);  // capstan pipeline show
void add_estimate_command(CLI::App& app, int& exit_code);  // capstan estimate
void add_plan_command(CLI::App& app, int& exit_code);      // capstan plan

// capstan train; hands its own words on to the engine.
void add_train_command(CLI::App& app, int argc, char** argv, int& exit_code);

// capstan generate; likewise.
void add_generate_command(CLI::App& app, int argc, char** argv, int& exit_code);

// Of the engine programs: one rank of those two, and for `capstan report`.
void add_train_rank_command(CLI::App& app, int& exit_code);
void add_generate_rank_command(CLI::App& app, int& exit_code);
void add_facts_command(CLI::App& app, int& exit_code);
void add_probe_command(CLI::App& app, int& exit_code);

}  // namespace capstan::cli
