// The made-up tasks on which Minder is measured, and the counts of what a detector finds in them.
// A set has an order, and a task depends on its place alone: the counts of the first tasks and of
// those after them add up to the counts of all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/minder/detector.h"
#include "runtime/minder/lstm_vae.h"
#include "runtime/minder/testing/fault_generator.h"

namespace megascale::minder {

inline constexpr int kTaskMachines[] = {4,  6,  8,   12,  16,  24,  32,  48,
                                        64, 96, 128, 192, 256, 384, 600, 1500};
inline constexpr int kLargestTask = 1500;  // machines
inline constexpr int kLargeTask = 128;     // machines, and from there on

struct TaskSet {
  uint64_t seed = 1;
  int first = 0;      // tasks to skip
  int num_tasks = 0;  // with those to skip
  bool has_all_groups = false;
};

// Returns task `index` of the set, from 0.
Task MakeTaskOf(const TaskSet& set, int index);

struct Counts {
  int right = 0;
  int wrong = 0;   // suspects that are not at fault
  int missed = 0;  // faults without the right suspect
  double precision() const { return right == 0 ? 0 : static_cast<double>(right) / (right + wrong); }
  double recall() const { return right == 0 ? 0 : static_cast<double>(right) / (right + missed); }
  double f1() const;
  void Add(const Counts& other);
  friend bool operator==(const Counts&, const Counts&) = default;
};

// Counts of tasks below kLargeTask machines, and of the others.
struct SizedCounts {
  Counts small;
  Counts large;
  Counts all() const;
  void Add(int num_machines, const Counts& counts);
};

struct Variant {
  std::string name;
  DetectorOptions options;
};

struct TaskModels {
  std::vector<LstmVae> of_metrics;
  std::vector<LstmVae> one;  // for all metrics
};

struct Comparison {
  TaskSet set;  // the tasks so far
  SizedCounts ceiling;
  std::vector<SizedCounts> variants;
};

// Runs each variant on each task of the set that is not skipped.
class Comparer {
 public:
  // `variants` and `models` outlive it.
  Comparer(const TaskSet& set, const std::vector<Variant>& variants, const TaskModels& models);
  bool is_done() const { return next_ >= set_.num_tasks; }
  // Runs the next task. Returns its number of machines.
  int Step();
  Comparison result() const;

 private:
  TaskSet set_;
  const std::vector<Variant>& variants_;
  const TaskModels& models_;
  int next_;
  Comparison so_far_;
};

// Returns two tables: rates beside the ceiling's, and the counts that they are made of.
std::string FormatTables(const Comparison& comparison, const std::vector<Variant>& variants);

}  // namespace megascale::minder
