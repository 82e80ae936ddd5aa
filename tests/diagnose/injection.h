// Injections as data: a fault, its victim and its moment, drawn from a seed, and the verdicts that
// are right for it. Pure. Source: Mycroft (SOSP 2025), section 7.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megascale::injection {

enum class Fault {
  kStopWorker,   // SIGSTOP
  kLinkDown,     // of a machine
  kCutQuota,     // a machine gets less processor time than it needs
  kStopHost,     // SIGSTOP: the process that loads batches and stores checkpoints of a machine
  kSlowLink,     // of a machine: bandwidth limit
  kSlowRank,     // its device computes slowly
  kStopAgent,    // SIGSTOP
  kBusyMachine,  // other programs compute on it
  kBusyLink,     // other programs send to and from a machine
  kLateRank,     // its exchanges begin late at times
  kNothing,      // nothing may be named
  kBusyAlike,    // other programs compute on all machines; nothing may be named
  kSlowCopy,     // a rank copies memory slowly
  kFullDisk,     // a machine's loader, which stores its checkpoints, too, finds its disk full
  kSlowStorage,  // a machine's loader reads slowly
  kStopKeeper,   // SIGSTOP: the process that starts and reaps those of a machine
  kStopDriver,   // SIGSTOP
  kSlowSend,     // what a rank sends to other machines sleeps at times between its pieces
  // Both ranks of a machine, which are all ranks of a stage, compute longer.
  kStageAFifth,    // 1.2 times as long: nobody need be named
  kStageTwice,     // 2 times
  kStageTenTimes,  // 10 times
};
inline constexpr int kNumFaults = 21;

// Returns a word for programs: "link_down".
std::string Name(Fault fault);
bool IsFault(const std::string& name);
// Requires: there is a fault of this name.
Fault FaultNamed(const std::string& name);
// False where there is no fault, or one that strikes all alike.
bool HasVictim(Fault fault);
// True where there is a victim, and a verdict that names nobody is wrong. False where nobody is a
// victim, or where the fault does not touch the job for a while.
bool MustBeNamed(Fault fault);
// True where a run needs this machine for itself: its fault keeps cores or the network busy, or it
// is there to show that nothing is named where nothing is wrong.
bool LoadsMachine(Fault fault);

struct Injection {
  uint64_t seed = 0;
  Fault fault = Fault::kNothing;
  int layout = 0;        // index in Layouts()
  int rank = 0;          // the victim, or a rank on the victim's machine
  int64_t step = 0;      // it strikes once this step is completed,
  absl::Duration delay;  // and so much later
};

struct Layout {
  std::string name;
  std::vector<std::string> fields;  // of the job
  double slow_mbit;                 // a link with this bandwidth makes a step some times as long
};
// Eight ranks each, two on a machine.
const std::vector<Layout>& Layouts();

// Consecutive seeds go through all faults, then through all layouts. The rank depends on the seed
// alone, but that the victims of kSlowCopy and kSlowStorage are of a first or last stage: only
// those read and copy batches. Faults of a stage have the layout whose stages are on one machine
// each.
Injection Draw(uint64_t seed);

// Returns the first seeds of which `num_named` have a victim that must be named, `num_survived` are
// of each fault that the job survives, and `num_calm` are of each fault without a victim; in order.
struct SoakSize {
  int num_named = 100;
  int num_survived = 7;
  int num_calm = 20;
};
std::vector<uint64_t> SoakSeeds(const SoakSize& size);

// What `megascale diagnose -o json` says.
struct Said {
  std::string cause = "";
  std::string summary = "";
  int rank = -1;
  std::string node = "";
  int peer = -1;  // the other end of a link
  std::string peer_node = "";
};

enum class Judgement {
  kRight,
  kNotYet,       // names nobody
  kRightVictim,  // but not why
  kWrong,        // names another
};

// Whether a verdict blames the layout of the job, which is never at fault here.
bool BlamesThePlan(const Said& said);

// Judges a verdict on an injection whose victim is on `node`, or was on it when it struck.
Judgement Judge(const Injection& injection, const std::string& node, const Said& said);

// How long the right verdict may take: 5 s where the job stops, 30 s where it slows.
absl::Duration LimitOf(Fault fault);

}  // namespace megascale::injection
