// The parts of control_benchmark. Each starts the driver that it measures, as a process with a
// state directory of its own, prints a table, and beside its figures what the machine or a peer
// needs for the same. Blocking: for a minute or two each.
#pragma once

#include <string>

namespace megascale::bench {

// `kill -9` of a worker of the job in `job_file`, on two agents with two slots each, to the next
// completed step, `kills` times; with what the time went into. False, and a line on standard error,
// when the job did not go on; so for all that train.
bool MeasureRecovery(const std::string& job_file, int kills);

// From the start of a killed driver's successor to all agents and ranks taken back.
bool MeasureDriverRestart(const std::string& job_file, int restarts);

// A submit to its acknowledgement, from 1 and from 100 clients, beside RocksDB's synced write.
void MeasureSubmit(int submits_per_client);

// A step's report to its arrival at `watchers` watchers.
void MeasureWatch(int watchers, int steps);

// A driver whose `agents` agents of `slots` ranks run one job and report every second.
void MeasureFleet(int agents, int slots, int seconds);

}  // namespace megascale::bench
