#include "tests/bench/minder/task_set.h"

#include <iterator>
#include <optional>

#include "absl/strings/str_format.h"

namespace megascale::minder {
namespace {

Counts CountOf(const Task& task, const std::optional<Suspect>& suspect) {
  const bool is_right = suspect.has_value() && suspect->machine == task.faulty;
  return {.right = is_right ? 1 : 0,
          .wrong = suspect.has_value() && !is_right ? 1 : 0,
          .missed = task.faulty >= 0 && !is_right ? 1 : 0};
}

std::string RatesOf(const std::string& name, const SizedCounts& counts,
                    const SizedCounts& ceiling) {
  const Counts all = counts.all();
  return absl::StrFormat("%-28s %9.3f %9.3f %9.3f %12.3f %10.3f %10.3f\n", name, all.precision(),
                         all.recall(), all.f1(), all.f1() / ceiling.all().f1(),
                         counts.small.f1() / ceiling.small.f1(),
                         counts.large.f1() / ceiling.large.f1());
}

std::string CountsOf(const std::string& name, const SizedCounts& counts) {
  std::string line = absl::StrFormat("%-28s", name);
  for (const Counts& of : {counts.all(), counts.small, counts.large}) {
    absl::StrAppendFormat(&line, " %7d %6d %6d", of.right, of.wrong, of.missed);
  }
  return line + "\n";
}

}  // namespace

Task MakeTaskOf(const TaskSet& set, int index) {
  const int num_sizes = static_cast<int>(std::size(kTaskMachines));
  // Three of four tasks of each size have a fault, as most calls in a data set of faults do.
  return MakeTask({.num_machines = kTaskMachines[index % num_sizes],
                   .has_fault = (index + index / num_sizes) % 4 != 3,
                   .seed = set.seed + static_cast<uint64_t>(index),
                   .has_all_groups = set.has_all_groups});
}

double Counts::f1() const {
  const double sum = precision() + recall();
  return sum == 0 ? 0 : 2 * precision() * recall() / sum;
}

void Counts::Add(const Counts& other) {
  right += other.right;
  wrong += other.wrong;
  missed += other.missed;
}

Counts SizedCounts::all() const {
  Counts sum = small;
  sum.Add(large);
  return sum;
}

void SizedCounts::Add(int num_machines, const Counts& counts) {
  (num_machines < kLargeTask ? small : large).Add(counts);
}

Comparer::Comparer(const TaskSet& set, const std::vector<Variant>& variants,
                   const TaskModels& models)
    : set_(set), variants_(variants), models_(models), next_(set.first) {
  so_far_.variants.resize(variants.size());
}

int Comparer::Step() {
  const Task task = MakeTaskOf(set_, next_++);
  const int num_machines = static_cast<int>(task.metrics[0].machines.size());
  so_far_.ceiling.Add(num_machines, {.right = task.is_visible ? 1 : 0,
                                     .missed = task.faulty >= 0 && !task.is_visible ? 1 : 0});
  for (size_t v = 0; v < variants_.size(); ++v) {
    const DetectorOptions& options = variants_[v].options;
    const auto suspect = FindSuspect(
        task.metrics, options.embedding == Embedding::kOneModel ? models_.one : models_.of_metrics,
        options);
    so_far_.variants[v].Add(num_machines, CountOf(task, suspect));
  }
  return num_machines;
}

Comparison Comparer::result() const {
  Comparison result = so_far_;
  result.set = set_;
  result.set.num_tasks = next_;
  return result;
}

std::string FormatTables(const Comparison& comparison, const std::vector<Variant>& variants) {
  const Counts ceiling = comparison.ceiling.all();
  std::string text = absl::StrFormat(
      "tasks %d to %d of seed %d, of 4 to 1,500 machines; %d have a fault, of which %d show in no "
      "metric or end too soon\n",
      comparison.set.first + 1, comparison.set.num_tasks, comparison.set.seed,
      ceiling.right + ceiling.missed, ceiling.missed);
  absl::StrAppendFormat(&text, "%-28s %9s %9s %9s %12s %10s %10s\n", "", "precision", "recall",
                        "F1", "of ceiling", "below 128", "from 128");
  text += RatesOf("ceiling", comparison.ceiling, comparison.ceiling);
  for (size_t v = 0; v < variants.size(); ++v) {
    text += RatesOf(variants[v].name, comparison.variants[v], comparison.ceiling);
  }
  absl::StrAppendFormat(&text, "%-28s %21s %21s %21s\n", "right, wrong, missed:", "all",
                        "below 128", "from 128");
  text += CountsOf("ceiling", comparison.ceiling);
  for (size_t v = 0; v < variants.size(); ++v) {
    text += CountsOf(variants[v].name, comparison.variants[v]);
  }
  return text;
}

}  // namespace megascale::minder
