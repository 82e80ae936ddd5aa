#include "runtime/diagnose/slow_change.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "runtime/base/median.h"

namespace megascale::diagnose {
namespace {

// This many of the newest steps are compared with the older ones.
constexpr size_t kNewest = 5;
// The job is slower than before if its steps take this many times as long.
constexpr double kStepMin = 1.1;
// A worker computes longer if it does so by this, beyond the median of the others, and in two
// thirds of the steps by the smaller one.
constexpr double kWorkMin = 1.3;
constexpr double kWorkOfStepMin = 1.15;
constexpr double kPersistentChangeMin = 2.0 / 3;
// And it stands out: its change is this many times that of any worker of another machine, up or
// down. Where other programs use all machines, changes of this size are noise.
constexpr double kTimesTheSecondChange = 2;
// Exchanges take longer if they do so by this, and by this share of a step; some of them in two
// thirds of the steps.
constexpr double kExchangeMin = 2;
constexpr double kExchangeShareMin = 0.1;
// Below this share of the largest excess an exchange only feels what slows another one.
constexpr double kOfLargestMin = 0.15;

class Comparison {
 public:
  Comparison(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
             const History& history)
      : graph_(graph),
        history_(history),
        machines_(history.machine_of.begin(), history.machine_of.end()),
        num_workers_(graph.workers().size()) {
    now_ = steps.subspan(steps.size() - std::min(steps.size(), kNewest));
  }

  SlowChange Run() {
    SlowChange change;
    if (now_.size() < kNewest || history_.before.size() < kOldStepsMin) return change;
    if (history_.machine_of.size() != num_workers_) return change;
    step_before_ = MedianSeconds(history_.before);
    const double step_now = MedianSeconds(now_);
    if (step_before_ <= 0 || step_now < kStepMin * step_before_) return change;
    change.step_times = step_now / step_before_;
    const Work work = MeasureWork();
    FindWork(work, kNoMachine, &change);
    if (change.what == Change::kNone) {
      FindExchanges(&change);
    } else {
      change.has_witnesses = HasWitnesses(work, change);
    }
    return change;
  }

 private:
  // No worker is on it.
  static constexpr int kNoMachine = -2;
  using Without = std::array<int, 2>;  // machines that do not count; kNoMachine for none
  static bool IsIn(const Without& machines, int machine) {
    return machines[0] == machine || machines[1] == machine;
  }

  // How long each worker computes in a step.
  struct Work {
    std::vector<double> before;            // by worker: the median
    std::vector<std::vector<double>> now;  // by step and worker
  };

  struct Meeting {
    std::set<int> workers;
    std::set<int> machines;
    double before = 0;  // seconds of a step
    double excess = 0;
    std::vector<bool> is_long = {};  // by step
    bool is_slow = false;
  };

  Role RoleOf(size_t operation) const {
    return graph_.kinds()[static_cast<size_t>(graph_.operations()[operation].kind)].role;
  }
  int MachineOf(int worker) const { return history_.machine_of[static_cast<size_t>(worker)]; }

  static double MedianSeconds(absl::Span<const MeasuredStep> steps) {
    std::vector<double> seconds;
    for (const MeasuredStep& step : steps) seconds.push_back(step.seconds);
    return base::UpperMedian(std::move(seconds));
  }

  // Returns how long each worker computes in a step.
  std::vector<double> WorkOf(const MeasuredStep& step) const {
    std::vector<double> work(num_workers_);
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (RoleOf(i) != Role::kCompute) continue;
      work[static_cast<size_t>(graph_.operations()[i].worker)] +=
          step.times.duration[i] + step.times.delay[i];
    }
    return work;
  }

  Work MeasureWork() const {
    std::vector<std::vector<double>> of_worker(num_workers_);
    for (const MeasuredStep& step : history_.before) {
      const std::vector<double> seconds = WorkOf(step);
      for (size_t w = 0; w < num_workers_; ++w) of_worker[w].push_back(seconds[w]);
    }
    Work work;
    for (std::vector<double>& seconds : of_worker) {
      work.before.push_back(base::UpperMedian(std::move(seconds)));
    }
    for (const MeasuredStep& step : now_) work.now.push_back(WorkOf(step));
    return work;
  }

  // What the change of a worker is if there are no others to compare it with: nothing tells it from
  // the job, or all of it.
  enum class Alone { kNoChange, kOwnChange };

  // Returns by worker how many times longer it computes, beyond the median of those on other
  // machines; where there is one machine, of the other workers. A worker is not slower because the
  // others have become faster. Workers on the machines `without` do not count.
  std::vector<double> ChangeOf(const std::vector<double>& work, const std::vector<double>& before,
                               const Without& without, Alone alone) const {
    std::vector<double> ratios(num_workers_, 1);
    for (size_t w = 0; w < num_workers_; ++w) {
      if (before[w] > 0) ratios[w] = work[w] / before[w];
    }
    const bool is_one_machine = machines_.size() == 1;
    std::vector<double> changes(num_workers_, 1);
    std::map<int, double> common_of;  // by machine, unless there is one
    for (size_t w = 0; w < num_workers_; ++w) {
      const auto is_other = [&](size_t o) {
        return is_one_machine ? o != w : history_.machine_of[o] != history_.machine_of[w];
      };
      const auto [at, is_new] = common_of.try_emplace(history_.machine_of[w]);
      if (is_new || is_one_machine) at->second = CommonOf(ratios, without, is_other);
      if (at->second > 0) changes[w] = std::min(ratios[w], ratios[w] / at->second);
      if (at->second <= 0 && alone == Alone::kOwnChange) changes[w] = ratios[w];
    }
    return changes;
  }

  // Returns the median of the others; 0: there are none.
  double CommonOf(const std::vector<double>& ratios, const Without& without,
                  absl::FunctionRef<bool(size_t)> is_other) const {
    std::vector<double> of_others;
    for (size_t o = 0; o < num_workers_; ++o) {
      if (!IsIn(without, history_.machine_of[o]) && is_other(o)) of_others.push_back(ratios[o]);
    }
    return of_others.empty() ? 0 : base::UpperMedian(std::move(of_others));
  }

  // Returns the changes by worker and step.
  std::vector<std::vector<double>> ChangesOf(const Work& work, const Without& without,
                                             Alone alone) const {
    std::vector<std::vector<double>> changes(num_workers_);
    for (const std::vector<double>& of_now : work.now) {
      const std::vector<double> of_step = ChangeOf(of_now, work.before, without, alone);
      for (size_t w = 0; w < num_workers_; ++w) changes[w].push_back(of_step[w]);
    }
    return changes;
  }

  static std::vector<double> MediansOf(const std::vector<std::vector<double>>& changes) {
    std::vector<double> medians;
    for (const std::vector<double>& of_steps : changes) {
      medians.push_back(base::UpperMedian(of_steps));
    }
    return medians;
  }

  // Finds workers of one machine that compute longer. Those on the machine `without` do not count.
  void FindWork(const Work& work, int without, SlowChange* change) const {
    const std::vector<std::vector<double>> changes =
        ChangesOf(work, {without, kNoMachine}, Alone::kNoChange);
    const std::vector<double> medians = MediansOf(changes);
    std::vector<size_t> slow;
    std::set<int> machines;
    double times = 1;
    for (size_t w = 0; w < num_workers_; ++w) {
      if (MachineOf(static_cast<int>(w)) == without) continue;
      const auto num = std::count_if(changes[w].begin(), changes[w].end(),
                                     [](double change) { return change >= kWorkOfStepMin; });
      if (static_cast<double>(num) < kPersistentChangeMin * static_cast<double>(now_.size()))
        continue;
      if (medians[w] < kWorkMin) continue;
      slow.push_back(w);
      machines.insert(MachineOf(static_cast<int>(w)));
      times = std::max(times, medians[w]);
    }
    if (machines.size() != 1 || *machines.begin() < 0) return;
    // In a job on one machine several ranks may as well be a stage.
    if (slow.size() > 1 && machines_.size() == 1) return;
    if (!StandsOut(work, times, slow.front(), without)) return;
    change->what = slow.size() > 1 ? Change::kMachine : Change::kWorker;
    change->worker = static_cast<int>(slow.front());
    change->num_workers = static_cast<int>(slow.size());
    change->times = times;
    for (const size_t w : slow) change->seconds = std::max(change->seconds, GrowthOf(work, w));
  }

  // Returns how much longer the worker computes in a step.
  static double GrowthOf(const Work& work, size_t worker) {
    std::vector<double> now;
    for (const std::vector<double>& of_now : work.now) now.push_back(of_now[worker]);
    return base::UpperMedian(std::move(now)) - work.before[worker];
  }

  // True if the change is found without any one of the other machines as well.
  bool HasWitnesses(const Work& work, const SlowChange& change) const {
    const int slow = MachineOf(change.worker);
    return std::all_of(machines_.begin(), machines_.end(), [&](int without) {
      if (without == slow) return true;
      SlowChange found;
      FindWork(work, without, &found);
      return found.what == change.what && found.worker == change.worker;
    });
  }

  // True if a change of `times` of the worker `slow` is large beside those of the workers on other
  // machines but `without`; where there is one machine, of the other workers.
  bool StandsOut(const Work& work, double times, size_t slow, int without) const {
    const Without left_out = {MachineOf(static_cast<int>(slow)), without};
    // Among three machines or fewer the slow one is at least half of what each other one is
    // compared with, which then seems to have become faster. So these are compared with each other.
    const bool is_compared_with_slow = machines_.size() > 3 && without == kNoMachine;
    const std::vector<double> medians = MediansOf(ChangesOf(
        work, {is_compared_with_slow ? kNoMachine : left_out[0], without}, Alone::kOwnChange));
    double second = 0;
    for (size_t w = 0; w < num_workers_; ++w) {
      const bool is_other =
          machines_.size() == 1 ? w != slow : !IsIn(left_out, MachineOf(static_cast<int>(w)));
      if (!is_other || medians[w] <= 0) continue;
      second = std::max(second, std::max(medians[w], 1 / medians[w]) - 1);
    }
    return times - 1 >= kTimesTheSecondChange * second;
  }

  // Returns by meeting how long its exchange takes once all members are there.
  std::map<int, double> ExchangesOf(const MeasuredStep& step) const {
    std::map<int, double> seconds;
    for (size_t i = 0; i < graph_.size(); ++i) {
      const Operation& operation = graph_.operations()[i];
      if (operation.meeting == kNoMeeting) continue;
      if (RoleOf(i) != Role::kTransfer && RoleOf(i) != Role::kCollective) continue;
      double& longest = seconds[operation.meeting];
      longest = std::max(longest, step.times.duration[i]);
    }
    return seconds;
  }

  // Returns the exchanges of equal members together, each with the seconds of a step.
  std::vector<Meeting> Meetings() const {
    std::map<int, std::set<int>> workers_of;  // by meeting
    for (const Operation& operation : graph_.operations()) {
      if (operation.meeting != kNoMeeting) workers_of[operation.meeting].insert(operation.worker);
    }
    const auto sums = [&](absl::Span<const MeasuredStep> steps) {
      std::map<std::set<int>, std::vector<double>> by_workers;  // by step
      for (size_t s = 0; s < steps.size(); ++s) {
        for (const auto& [meeting, seconds] : ExchangesOf(steps[s])) {
          std::vector<double>& of_steps = by_workers[workers_of[meeting]];
          of_steps.resize(steps.size());
          of_steps[s] += seconds;
        }
      }
      return by_workers;
    };
    const auto before = sums(history_.before);
    std::vector<Meeting> meetings;
    for (auto& [workers, seconds] : sums(now_)) {
      const auto old = before.find(workers);
      if (old == before.end()) continue;
      Meeting meeting = {.workers = workers, .machines = {}};
      for (const int worker : workers) meeting.machines.insert(MachineOf(worker));
      // The mean, since an exchange that is late at times is late in a part of the steps.
      double sum = 0;
      meeting.before = base::UpperMedian(old->second);
      for (const double of_step : seconds) {
        sum += of_step;
        meeting.is_long.push_back(of_step - meeting.before >= kExchangeShareMin * step_before_);
      }
      meeting.excess = sum / static_cast<double>(now_.size()) - meeting.before;
      meetings.push_back(std::move(meeting));
    }
    return meetings;
  }

  void FindExchanges(SlowChange* change) const {
    std::vector<Meeting> meetings = Meetings();
    double largest = 0;
    for (const Meeting& meeting : meetings) {
      if (meeting.workers.size() < num_workers_) largest = std::max(largest, meeting.excess);
    }
    bool is_within_machine = false;
    std::vector<const Meeting*> slow;
    for (Meeting& meeting : meetings) {
      // An exchange of all workers tells nothing about one of them.
      meeting.is_slow = meeting.workers.size() < num_workers_ &&
                        meeting.excess + meeting.before >= kExchangeMin * meeting.before &&
                        meeting.excess >= kExchangeShareMin * step_before_ &&
                        meeting.excess >= kOfLargestMin * largest;
      if (!meeting.is_slow) continue;
      slow.push_back(&meeting);
      change->seconds = std::max(change->seconds, meeting.excess);
      is_within_machine = is_within_machine || meeting.machines.size() == 1;
      change->times =
          std::max(change->times,
                   meeting.before > 0 ? (meeting.excess + meeting.before) / meeting.before : 1);
    }
    if (!IsPersistent(slow)) {
      change->times = 1;
      change->seconds = 0;
      return;
    }
    const int worker = slow.size() > 1 ? OnlyIn(slow, &Meeting::workers) : -1;
    const auto is_well_without_worker = [&](const Meeting& meeting) {
      return !meeting.is_slow && meeting.workers.size() > 1 && meeting.workers.count(worker) == 0;
    };
    if (worker >= 0 && std::any_of(meetings.begin(), meetings.end(), is_well_without_worker)) {
      change->what = Change::kLateWorker;
      change->worker = worker;
    } else if (!is_within_machine) {
      NameMachine(meetings, slow, change);
    }
  }

  // True if in most of the steps one of them at least takes long.
  bool IsPersistent(const std::vector<const Meeting*>& slow) const {
    size_t num_long = 0;
    for (size_t step = 0; step < now_.size(); ++step) {
      num_long += std::any_of(slow.begin(), slow.end(),
                              [&](const Meeting* meeting) { return meeting->is_long[step]; })
                      ? 1
                      : 0;
    }
    return static_cast<double>(num_long) >= kPersistentChangeMin * static_cast<double>(now_.size());
  }

  // Returns the only element that all have in common; -1: there is no such.
  static int OnlyIn(const std::vector<const Meeting*>& meetings, std::set<int> Meeting::*members) {
    std::set<int> common = meetings.front()->*members;
    for (const Meeting* meeting : meetings) {
      std::set<int> both;
      std::set_intersection(common.begin(), common.end(), (meeting->*members).begin(),
                            (meeting->*members).end(), std::inserter(both, both.begin()));
      common = std::move(both);
    }
    return common.size() == 1 ? *common.begin() : -1;
  }

  int FirstWorkerOf(int machine) const {
    const auto found = std::find(history_.machine_of.begin(), history_.machine_of.end(), machine);
    return static_cast<int>(std::distance(history_.machine_of.begin(), found));
  }

  // Names the machine that all slow exchanges have in common, if machines exchange without it and
  // are not slow. If two have, one is exonerated by an exchange with a third machine that is not
  // slow.
  void NameMachine(const std::vector<Meeting>& meetings, const std::vector<const Meeting*>& slow,
                   SlowChange* change) const {
    int machine = OnlyIn(slow, &Meeting::machines);
    if (machine < 0) {
      const std::set<int>& pair = slow.front()->machines;
      const bool is_pair =
          pair.size() == 2 && std::all_of(slow.begin(), slow.end(), [&](const Meeting* meeting) {
            return meeting->machines == pair;
          });
      if (!is_pair) return;
      const int first = *pair.begin();
      const int second = *pair.rbegin();
      const bool is_first_well = IsWellElsewhere(meetings, first, second);
      const bool is_second_well = IsWellElsewhere(meetings, second, first);
      if (is_first_well == is_second_well) {
        change->what = Change::kLink;
        change->worker = FirstWorkerOf(first);
        change->peer = FirstWorkerOf(second);
        return;
      }
      machine = is_first_well ? second : first;
    } else {
      const bool is_told_apart =
          std::any_of(meetings.begin(), meetings.end(), [&](const Meeting& meeting) {
            return !meeting.is_slow && meeting.machines.size() > 1 &&
                   meeting.machines.count(machine) == 0;
          });
      if (!is_told_apart) return;
    }
    change->what = Change::kMachineLink;
    change->worker = FirstWorkerOf(machine);
  }

  // True if the machine has exchanges with others than `peer`, and none of them is slow.
  bool IsWellElsewhere(const std::vector<Meeting>& meetings, int machine, int peer) const {
    bool is_well = false;
    for (const Meeting& meeting : meetings) {
      if (meeting.machines.count(machine) == 0 || meeting.machines.size() < 2) continue;
      if (meeting.machines.count(peer) > 0) continue;
      if (meeting.is_slow) return false;
      is_well = true;
    }
    return is_well;
  }

  const OperationGraph& graph_;
  const History& history_;
  const std::set<int> machines_;
  const size_t num_workers_;
  absl::Span<const MeasuredStep> now_;
  double step_before_ = 0;
};

}  // namespace

SlowChange FindChange(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                      const History& history) {
  return Comparison(graph, steps, history).Run();
}

}  // namespace megascale::diagnose
