#include "tests/chaos/fault.h"

#include <signal.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"

namespace megascale::chaos {
namespace {

constexpr double kTwoAtOnce = 0.2;
constexpr absl::Duration kAgentFollows = absl::Milliseconds(400);
constexpr absl::Duration kLongestAbsence = absl::Seconds(2);
// Below and above fault.heartbeat_timeout (5 s).
constexpr absl::Duration kShortPause = absl::Seconds(2);
constexpr absl::Duration kLongPause = absl::Seconds(9);

// What is hit is not one process.
std::string OfMany(const Strike& strike) {
  if (strike.blow.victim == Victim::kDirectory) return "another driver's claim of the checkpoints";
  return absl::StrCat("SIGKILL to all agents, and the file system of the ",
                      strike.of_data ? "data" : "checkpoints", " is away");
}

bool IsOfMany(const Strike& strike) {
  return strike.blow.victim == Victim::kStorage || strike.blow.victim == Victim::kDirectory;
}

std::string SignalName(int signal) {
  switch (signal) {
    case SIGKILL:
      return "SIGKILL";
    case SIGTERM:
      return "SIGTERM";
    default:
      return "SIGSTOP";
  }
}

bool IsSameProcess(const Strike& a, const Strike& b) {
  if (a.blow.victim != b.blow.victim) return false;
  if (a.blow.victim == Victim::kDriver || a.blow.victim == Victim::kStore) return true;
  if (a.blow.victim == Victim::kStorage || a.blow.victim == Victim::kDirectory) return true;
  return a.blow.victim == Victim::kWorker ? a.rank == b.rank : a.agent == b.agent;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // Below `count`. Plain arithmetic, so that a seed means the same with every standard library.
  int Pick(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool Chance(double probability) { return Pick(1000) < static_cast<int>(probability * 1000); }

 private:
  std::mt19937_64 random_;
};

}  // namespace

const std::vector<Blow>& AllBlows() {
  static const auto* const blows = new std::vector<Blow>{
      {Victim::kWorker, SIGKILL, absl::ZeroDuration()},
      {Victim::kDriver, SIGKILL, absl::ZeroDuration()},
      {Victim::kHost, SIGKILL, absl::ZeroDuration()},
      {Victim::kWorker, SIGSTOP, absl::InfiniteDuration()},
      {Victim::kAgent, SIGKILL, absl::ZeroDuration()},
      {Victim::kDriver, SIGSTOP, kLongPause},
      {Victim::kHost, SIGSTOP, absl::InfiniteDuration()},
      {Victim::kWorker, SIGTERM, absl::ZeroDuration()},
      {Victim::kAgent, SIGSTOP, kShortPause},
      {Victim::kDriver, SIGTERM, absl::ZeroDuration()},
      {Victim::kAgent, SIGSTOP, kLongPause},
      {Victim::kHost, SIGTERM, absl::ZeroDuration()},
      {Victim::kAgent, SIGTERM, absl::ZeroDuration()},
      {Victim::kStore, SIGKILL, absl::ZeroDuration()},
      {Victim::kStore, SIGSTOP, kShortPause},
      {Victim::kStore, SIGTERM, absl::ZeroDuration()},
      {Victim::kWorker, SIGSTOP, absl::InfiniteDuration(), true},
      {Victim::kStorage, SIGKILL, absl::ZeroDuration()},
      {Victim::kDirectory, 0, absl::ZeroDuration()},
  };
  return *blows;
}

std::vector<Fault> DrawFaults(uint64_t seed, int count, int num_ranks, int num_agents) {
  Draw draw(seed);
  const std::vector<Blow>& blows = AllBlows();
  std::vector<Fault> faults;
  for (int i = 0; i < count; ++i) {
    const uint64_t number = seed * static_cast<uint64_t>(count) + static_cast<uint64_t>(i);
    Fault fault;
    fault.aim = static_cast<Aim>(number % kNumAims);
    const auto add = [&](const Blow& blow) {
      Strike strike;
      strike.blow = blow;
      strike.rank = draw.Pick(num_ranks);
      strike.agent = draw.Pick(num_agents);
      strike.of_data = strike.rank % 2 == 1;
      strike.absence = kLongestAbsence * draw.Pick(1000) / 1000;
      if (!fault.strikes.empty() && IsSameProcess(fault.strikes[0], strike)) return;
      fault.strikes.push_back(strike);
    };
    add(blows[number % blows.size()]);
    Strike agent = fault.strikes[0];
    const bool two_at_once = draw.Chance(kTwoAtOnce);
    if (agent.blow.before_agent) {
      agent.blow = {Victim::kAgent, SIGKILL, absl::ZeroDuration()};
      agent.agent = agent.rank / (num_ranks / num_agents);
      agent.delay = kAgentFollows;
      fault.strikes.push_back(agent);
    } else if (two_at_once) {
      add(blows[static_cast<size_t>(draw.Pick(4))]);
    }
    faults.push_back(std::move(fault));
  }
  return faults;
}

Setting SettingOf(uint64_t seed, const std::vector<Fault>& faults) {
  bool sees_sockets = false;
  for (const Fault& fault : faults) {
    sees_sockets = sees_sockets || fault.aim == Aim::kSockets;
    for (const Strike& strike : fault.strikes) {
      if (strike.blow.victim == Victim::kStore) return Setting::kRedis;
    }
  }
  // Four seeds at a time, because consecutive ones have different layouts.
  return sees_sockets || seed / 4 % 2 == 0 ? Setting::kDefault : Setting::kMutualTls;
}

std::string Describe(Setting setting) {
  switch (setting) {
    case Setting::kDefault:
      return "Unix sockets and the driver's store";
    case Setting::kMutualTls:
      return "TCP with mutual TLS and the driver's store";
    case Setting::kRedis:
      return "Unix sockets and a redis-server";
  }
  return "";
}

std::string Describe(Aim aim) {
  switch (aim) {
    case Aim::kAnyTime:
      return "at any time";
    case Aim::kStarting:
      return "while processes start";
    case Aim::kSockets:
      return "as the first tensor socket appears";
    case Aim::kLoading:
      return "while weights load";
    case Aim::kFirstStep:
      return "in the first step";
    case Aim::kForward:
      return "inside forward";
    case Aim::kBackward:
      return "inside backward";
    case Aim::kCollective:
      return "inside a collective";
    case Aim::kSnapshot:
      return "in a snapshot";
    case Aim::kShardWrite:
      return "in a checkpoint's write";
    case Aim::kCommit:
      return "before a commit";
    case Aim::kRecovery:
      return "in a recovery";
  }
  return "";
}

std::string Describe(const Strike& strike) {
  if (IsOfMany(strike)) return OfMany(strike);
  const Blow& blow = strike.blow;
  std::string text = absl::StrCat(SignalName(blow.signal), " to ");
  switch (blow.victim) {
    case Victim::kWorker:
      absl::StrAppend(&text, "rank ", strike.rank);
      break;
    case Victim::kHost:
      absl::StrAppend(&text, "the host of n", strike.agent);
      break;
    case Victim::kAgent:
      absl::StrAppend(&text, "agent n", strike.agent);
      break;
    case Victim::kDriver:
      absl::StrAppend(&text, "the driver");
      break;
    case Victim::kStore:
      absl::StrAppend(&text, "the store");
      break;
    case Victim::kStorage:
    case Victim::kDirectory:
      break;
  }
  if (blow.signal == SIGSTOP && blow.pause < absl::InfiniteDuration()) {
    absl::StrAppend(&text, " for ", absl::FormatDuration(blow.pause));
  }
  if (blow.before_agent) absl::StrAppend(&text, " before its agent");
  if (strike.delay > absl::ZeroDuration()) {
    absl::StrAppend(&text, " after ", absl::FormatDuration(strike.delay));
  }
  return text;
}

bool IsAtAStart(Aim aim) {
  return aim == Aim::kStarting || aim == Aim::kSockets || aim == Aim::kLoading ||
         aim == Aim::kFirstStep || aim == Aim::kRecovery;
}

bool IsSurvived(const Fault& fault) {
  if (IsAtAStart(fault.aim)) return false;
  return std::all_of(fault.strikes.begin(), fault.strikes.end(), [](const Strike& strike) {
    const Blow& blow = strike.blow;
    return blow.victim == Victim::kHost || blow.victim == Victim::kDriver ||
           blow.victim == Victim::kStore || blow.victim == Victim::kDirectory ||
           (blow.victim == Victim::kAgent && blow.signal == SIGSTOP && blow.pause <= kShortPause);
  });
}

}  // namespace megascale::chaos
