#include "runtime/minder/recording.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/median.h"
#include "runtime/base/text/printable.h"

namespace megascale::minder {
namespace {

constexpr size_t kColumnsMax = 66;
constexpr size_t kNameBytesMax = 128;

absl::Status Malformed(size_t line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "line ", line, ": ", why, "; expected the columns machine, seconds and those of metrics"));
}

// Commas and line ends would end a cell.
std::string CsvCell(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == ',' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

absl::Status AddLine(const std::vector<absl::string_view>& cells, size_t line, Recording* recording,
                     std::map<std::string, size_t, std::less<>>* machines) {
  if (cells.size() != recording->metrics.size() + 2) {
    return Malformed(line, absl::StrCat("has ", cells.size(), " columns in place of ",
                                        recording->metrics.size() + 2));
  }
  if (!IsName(cells[0])) return Malformed(line, "the machine's name is empty or not printable");
  double seconds = 0;
  if (!absl::SimpleAtod(cells[1], &seconds) || !std::isfinite(seconds)) {
    return Malformed(line, "the time is no number of seconds");
  }
  std::vector<double> values(recording->metrics.size(), std::nan(""));
  for (size_t i = 0; i < values.size(); ++i) {
    if (cells[i + 2].empty() || absl::SimpleAtod(cells[i + 2], &values[i])) continue;
    return Malformed(line, "a value is no number");
  }
  const auto [at, is_new] =
      machines->try_emplace(std::string(cells[0]), recording->machines.size());
  if (is_new) {
    recording->machines.push_back({std::string(cells[0]), {}});
    recording->machines.back().metrics.resize(recording->metrics.size());
  }
  RecordedMachine& machine = recording->machines[at->second];
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) machine.metrics[i].push_back({seconds, values[i]});
  }
  return absl::OkStatus();
}

}  // namespace

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax && base::Printable(text) == text;
}

absl::StatusOr<Recording> ParseRecording(absl::string_view csv) {
  Recording recording;
  std::map<std::string, size_t, std::less<>> machines;
  size_t number = 0;
  int64_t num_lines = 0;
  for (absl::string_view line : absl::StrSplit(csv, '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (number == 1) {
      if (cells.size() < 3 || cells.size() > kColumnsMax || cells[0] != "machine" ||
          cells[1] != "seconds") {
        return Malformed(number, "is no header");
      }
      for (size_t i = 2; i < cells.size(); ++i) {
        if (!IsName(cells[i]))
          return Malformed(number, "a metric's name is empty or not printable");
        recording.metrics.emplace_back(cells[i]);
      }
      continue;
    }
    if (line.empty()) continue;
    ++num_lines;
    const absl::Status added = AddLine(cells, number, &recording, &machines);
    if (added.ok() || recording.num_bad_lines++ > 0) continue;
    recording.first_bad_line = std::string(added.message());
  }
  if (static_cast<double>(recording.num_bad_lines) >
      kBadLinesMax * static_cast<double>(num_lines)) {
    return absl::InvalidArgumentError(
        absl::StrCat(recording.first_bad_line, "; ", recording.num_bad_lines, " of ", num_lines,
                     " lines are malformed, and at most ", kBadLinesMax * 100, " % may be"));
  }
  return recording;
}

std::string FormatRecording(const Recording& recording) {
  std::string text = "machine,seconds";
  for (const std::string& metric : recording.metrics) absl::StrAppend(&text, ",", CsvCell(metric));
  text += '\n';
  for (const RecordedMachine& machine : recording.machines) {
    std::map<double, std::vector<std::string>> lines;  // by time
    for (size_t i = 0; i < machine.metrics.size(); ++i) {
      for (const Sample& sample : machine.metrics[i]) {
        std::vector<std::string>& cells = lines[sample.seconds];
        cells.resize(recording.metrics.size());
        cells[i] = absl::StrFormat("%.6g", sample.value);
      }
    }
    for (const auto& [seconds, cells] : lines) {
      absl::StrAppend(&text, CsvCell(machine.name), ",", absl::StrFormat("%.1f", seconds));
      for (const std::string& cell : cells) absl::StrAppend(&text, ",", cell);
      text += '\n';
    }
  }
  return text;
}

namespace {

bool AreAtTheSameTimes(const std::vector<Sample>& a, const std::vector<Sample>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Sample& x, const Sample& y) { return x.seconds == y.seconds; });
}

// Ascending times of a machine's samples, whatever they measured. An agent measures all metrics at
// the same times, in order: they are taken once, and need no sorting.
std::vector<double> TimesOf(const RecordedMachine& machine) {
  std::vector<double> times;
  for (const std::vector<Sample>& samples : machine.metrics) {
    const bool is_first = &samples == &machine.metrics.front();
    if (!is_first && AreAtTheSameTimes(samples, machine.metrics.front())) continue;
    for (const Sample& sample : samples) {
      if (std::isfinite(sample.seconds)) times.push_back(sample.seconds);
    }
  }
  if (!std::is_sorted(times.begin(), times.end())) std::sort(times.begin(), times.end());
  return times;
}

// The machines that still share a common time, by index, with the times of their samples.
using Shared = std::map<size_t, std::vector<double>>;

void LeaveOut(const std::map<size_t, std::string>& why, Shared* shared, CommonTime* common) {
  for (const auto& [machine, reason] : why) {
    shared->erase(machine);
    common->left_out.push_back({machine, reason});
  }
}

void LeaveOutOtherTimes(const CommonTimeOptions& options, Shared* shared, CommonTime* common) {
  std::vector<double> ends;
  for (const auto& [machine, times] : *shared) ends.push_back(times.back());
  const double end = base::UpperMedian(ends);
  std::map<size_t, std::string> why;
  for (const auto& [machine, times] : *shared) {
    const double away = times.back() - end;
    if (std::abs(away) <= options.gap_seconds) continue;
    why[machine] = absl::StrCat("its newest sample is ", std::floor(std::abs(away)), " s ",
                                away < 0 ? "older" : "newer", " than those of the others");
  }
  LeaveOut(why, shared, common);
}

void LeaveOutShortSeries(const CommonTimeOptions& options, Shared* shared, CommonTime* common) {
  std::map<size_t, std::string> why;
  for (const auto& [machine, times] : *shared) {
    const double seconds = std::floor(times.back() - times.front()) + 1;
    if (seconds >= options.seconds_needed) continue;
    why[machine] =
        absl::StrCat("has samples of ", seconds, " s; ", options.seconds_needed, " s are needed");
  }
  if (shared->size() - why.size() >= 3) LeaveOut(why, shared, common);
}

// Returns the end of the newest gap that most machines have; -infinity without one.
double EndOfSharedGap(const CommonTimeOptions& options, const Shared& shared) {
  std::vector<double> ends;
  for (const auto& [machine, times] : shared) {
    for (size_t i = times.size() - 1; i > 0; --i) {
      if (times[i] - times[i - 1] <= options.gap_seconds) continue;
      ends.push_back(times[i]);
      break;
    }
  }
  double end = -std::numeric_limits<double>::infinity();
  if (2 * ends.size() <= shared.size()) return end;
  const double middle = base::UpperMedian(ends);
  for (const double each : ends) {
    if (std::abs(each - middle) <= options.gap_seconds) end = std::max(end, each);
  }
  return end;
}

}  // namespace

CommonTime CommonTimeOf(const Recording& recording, const CommonTimeOptions& options) {
  CommonTime common;
  Shared shared;
  for (size_t m = 0; m < recording.machines.size(); ++m) {
    std::vector<double> times = TimesOf(recording.machines[m]);
    if (!times.empty()) shared[m] = std::move(times);
  }
  if (shared.empty()) return common;
  LeaveOutOtherTimes(options, &shared, &common);
  LeaveOutShortSeries(options, &shared, &common);
  double begin = EndOfSharedGap(options, shared);
  double end = std::numeric_limits<double>::infinity();
  for (const auto& [machine, times] : shared) {
    begin = std::max(begin, times.front());
    end = std::min(end, times.back());
  }
  if (end < begin) return common;
  common.num_seconds =
      static_cast<int>(std::min<double>(std::floor(end - begin) + 1, options.seconds_max));
  common.begin = end - (common.num_seconds - 1);
  return common;
}

}  // namespace megascale::minder
