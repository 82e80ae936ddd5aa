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
std::string Cell(std::string text) {
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
  const auto [at, is_new] =
      machines->try_emplace(std::string(cells[0]), recording->machines.size());
  if (is_new) {
    recording->machines.push_back({std::string(cells[0]), {}});
    recording->machines.back().metrics.resize(recording->metrics.size());
  }
  RecordedMachine& machine = recording->machines[at->second];
  for (size_t i = 0; i < recording->metrics.size(); ++i) {
    if (cells[i + 2].empty()) continue;
    double value = 0;
    if (!absl::SimpleAtod(cells[i + 2], &value)) return Malformed(line, "a value is no number");
    if (std::isfinite(value)) machine.metrics[i].push_back({seconds, value});
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
    if (const absl::Status added = AddLine(cells, number, &recording, &machines); !added.ok()) {
      return added;
    }
  }
  return recording;
}

std::string FormatRecording(const Recording& recording) {
  std::string text = "machine,seconds";
  for (const std::string& metric : recording.metrics) absl::StrAppend(&text, ",", Cell(metric));
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
      absl::StrAppend(&text, Cell(machine.name), ",", absl::StrFormat("%.1f", seconds));
      for (const std::string& cell : cells) absl::StrAppend(&text, ",", cell);
      text += '\n';
    }
  }
  return text;
}

CommonTime CommonTimeOf(const Recording& recording, int seconds_max) {
  double begin = -std::numeric_limits<double>::infinity();
  double end = std::numeric_limits<double>::infinity();
  for (const RecordedMachine& machine : recording.machines) {
    double first = std::numeric_limits<double>::infinity();
    double last = -first;
    for (const std::vector<Sample>& samples : machine.metrics) {
      for (const Sample& sample : samples) {
        if (!std::isfinite(sample.seconds)) continue;
        first = std::min(first, sample.seconds);
        last = std::max(last, sample.seconds);
      }
    }
    if (first > last) continue;
    begin = std::max(begin, first);
    end = std::min(end, last);
  }
  CommonTime common;
  if (!std::isfinite(begin) || !std::isfinite(end) || end < begin) return common;
  common.num_seconds = static_cast<int>(std::min<double>(std::floor(end - begin) + 1, seconds_max));
  common.begin = end - (common.num_seconds - 1);
  return common;
}

}  // namespace megascale::minder
