// The parts of control_benchmark. Each starts the driver that it measures, as a process with its
// own state directory, and prints a table that compares its figures with those of the bare machine
// or of another program. Blocking: for a minute or two each.
#pragma once

#include <string>

namespace megascale::bench {

// Measures, `kills` times, the time from `kill -9` of a worker to the next completed step, and its
// parts. The job of `job_file` runs on two agents with two slots each. Returns false, with a line
// on standard error, if the job did not go on; so do the other functions that train.
bool MeasureRecovery(const std::string& job_file, int kills);

// Measures the time from the start of a killed driver's successor until it has all agents and ranks
// back.
bool MeasureDriverRestart(const std::string& job_file, int restarts);

// Measures the time from a submit to its acknowledgement, with 1 and with 100 clients, compared
// with a synced write of RocksDB.
void MeasureSubmit(int submits_per_client);

// Measures the time from a step's report to its arrival at `watchers` watchers.
void MeasureWatch(int watchers, int steps);

// Measures a driver whose `agents` agents with `slots` ranks each run one job and report every
// second.
void MeasureFleet(int agents, int slots, int seconds);

}  // namespace megascale::bench
