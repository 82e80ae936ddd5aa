// The parts of control_benchmark. Each starts the driver that it measures, as a process with its
// own state directory, and prints a table that compares its figures with those of the bare machine
// or of another program. Blocking: for a minute or two each.
#pragma once

#include <string>
#include <vector>

namespace megascale::bench {

// Measures, `kills` times, the time from `kill -9` of a worker to the next completed step, and its
// parts. The job of `job_file` runs on two agents with two slots each. Returns false, with a line
// on standard error, if the job did not go on; so do the other functions that train.
bool MeasureRecovery(const std::string& job_file, int kills);

// Measures, `losses` times, the time from the loss of a machine (its agent is killed, with all its
// processes) to the next completed step, and its parts. A spare, which has passed the quick machine
// tests, replaces it; what the lost ranks had in memory comes from storage.
bool MeasureLostMachine(const std::string& job_file, int losses);

// Measures the time from the start of a killed driver's successor until it has all agents and ranks
// back.
bool MeasureDriverRestart(const std::string& job_file, int restarts);

// Measures the time from a submit to its acknowledgement, compared with a synced write of RocksDB:
// with 1 and with 100 clients that submit one job after the other, and with 100 clients that submit
// 500 jobs a second in all; the time of each counts from when it was due, also if its client still
// waits for the one before.
void MeasureSubmit(int submits_per_client);

// Measures the time from a step's report to its arrival at `watchers` watchers.
void MeasureWatch(int watchers, int steps);

// What a driver is measured with.
struct FleetLoad {
  int agents = 1536;
  int slots = 8;           // ranks of each agent
  int seconds = 30;        // for which it is measured
  int retained = 0;        // jobs that have ended
  int running = 0;         // jobs of one agent each; the other agents run one large job
  int watchers = 0;        // of the large job
  int watched_ranks = 16;  // in each of their messages, as `megascale watch` asks for; 0: all
  // Between two reads of the metrics of all machines, as `megascale minder watch` reads them.
  int metrics_seconds = 480;  // 0: nobody reads
  // The agents of each job store a checkpoint after so many steps; 0: never.
  int checkpoint_steps = 10;
  // A small job fails each time that this many seconds have passed, and recovers; 0: none fails.
  int seconds_between_failures = 0;
};
// Measures a driver whose agents report every second, as production ones do: the agents that the
// driver asks report completed steps until they are acknowledged, and each its checkpoints on
// storage. Closes with the loss of a machine: when the others of its job are told.
void MeasureFleet(const FleetLoad& load);

// Measures how long the ranks of a job need to find each other through the driver's store and
// through Redis, for each of these numbers of ranks; up to `barrier_ranks_max`, also how long a
// store takes that answers one request at a time, and Redis, with a barrier of all ranks after each
// group. Closes with the streams of one rank. Prints what was opened and what was not.
void MeasureStartup(const std::vector<int>& num_ranks, int barrier_ranks_max);

}  // namespace megascale::bench
