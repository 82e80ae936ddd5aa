#include "cli/view/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megascale::cli {
namespace {

constexpr int kLabelWidth = 8;

struct Bounds {
  int64_t first_step = 0;
  int64_t last_step = 0;
  double low = 0;
  double high = 0;
};

// Returns the bounds of steps of both curves, without values.
Bounds StepBounds(const std::vector<CurvePoint>& points, const std::vector<CurvePoint>& others) {
  Bounds bounds = {.first_step = std::numeric_limits<int64_t>::max(),
                   .last_step = std::numeric_limits<int64_t>::min(),
                   .low = std::numeric_limits<double>::infinity(),
                   .high = -std::numeric_limits<double>::infinity()};
  for (const auto* curve : {&points, &others}) {
    for (const CurvePoint& point : *curve) {
      bounds.first_step = std::min(bounds.first_step, point.step);
      bounds.last_step = std::max(bounds.last_step, point.step);
    }
  }
  return bounds;
}

// The mean value in each column; NaN where no step falls. Widens the bounds of values.
std::vector<double> ColumnMeans(const std::vector<CurvePoint>& points, int num_columns,
                                Bounds* bounds) {
  const double steps =
      std::max<double>(1, static_cast<double>(bounds->last_step - bounds->first_step));
  std::vector<double> means(num_columns, 0);
  std::vector<int> counts(num_columns, 0);
  for (const CurvePoint& point : points) {
    const double along = static_cast<double>(point.step - bounds->first_step) / steps;
    const int column = std::min(num_columns - 1, static_cast<int>(along * num_columns));
    means[column] += point.value;
    ++counts[column];
  }
  for (int column = 0; column < num_columns; ++column) {
    means[column] = counts[column] == 0 ? std::nan("") : means[column] / counts[column];
    if (counts[column] == 0) continue;
    bounds->low = std::min(bounds->low, means[column]);
    bounds->high = std::max(bounds->high, means[column]);
  }
  return means;
}

// Straight lines over columns without a value, between columns that have one.
void Bridge(std::vector<double>* means) {
  int before = -1;
  for (int column = 0; column < static_cast<int>(means->size()); ++column) {
    if (std::isnan((*means)[column])) continue;
    for (int between = before + 1; before >= 0 && between < column; ++between) {
      const double part = static_cast<double>(between - before) / (column - before);
      (*means)[between] = (*means)[before] + part * ((*means)[column] - (*means)[before]);
    }
    before = column;
  }
}

// A grid of dots, drawn with 2 x 4 dots a character, or one.
class Canvas {
 public:
  Canvas(int width, int height, bool braille)
      : width_(width), height_(height), braille_(braille), bits_(width * height, 0) {}

  int dot_columns() const { return braille_ ? 2 * width_ : width_; }
  int dot_rows() const { return braille_ ? 4 * height_ : height_; }

  void Set(int column, int row) {
    // Braille's dots: 1 4 / 2 5 / 3 6 / 7 8.
    static constexpr int kBits[4][2] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};
    if (braille_) {
      bits_[row / 4 * width_ + column / 2] |= kBits[row % 4][column % 2];
    } else {
      bits_[row * width_ + column] = 1;
    }
  }

  // Puts the sign of the second curve into a character.
  void Mark(int column, int row) { bits_[row * width_ + column] = kMark; }

  std::string Row(int row) const {
    std::string text;
    for (int column = 0; column < width_; ++column) {
      const int bits = bits_[row * width_ + column];
      if (bits == kMark) {
        text += braille_ ? "○" : "o";
      } else if (bits == 0) {
        text += ' ';
      } else if (!braille_) {
        text += '*';
      } else {
        // U+2800 + bits in UTF-8.
        text += '\xE2';
        text += static_cast<char>(0xA0 | (bits >> 6));
        text += static_cast<char>(0x80 | (bits & 0x3F));
      }
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

 private:
  static constexpr int kMark = 1 << 8;

  const int width_;
  const int height_;
  const bool braille_;
  std::vector<int> bits_;
};

void Draw(const std::vector<double>& means, const Bounds& bounds, Canvas* canvas) {
  const double range = bounds.high - bounds.low;
  int previous = -1;
  for (int column = 0; column < static_cast<int>(means.size()); ++column) {
    if (std::isnan(means[column])) continue;
    const double height = range > 0 ? (bounds.high - means[column]) / range : 0.5;
    const int row = static_cast<int>(std::lround(height * (canvas->dot_rows() - 1)));
    // A steep step is a line, not two dots.
    const int toward = previous < 0 || previous == row ? row : previous + (row > previous ? 1 : -1);
    for (int dot = std::min(row, toward); dot <= std::max(row, toward); ++dot)
      canvas->Set(column, dot);
    previous = row;
  }
}

void MarkSecond(const std::vector<double>& means, const Bounds& bounds, int num_rows,
                Canvas* canvas) {
  const double range = bounds.high - bounds.low;
  for (int column = 0; column < static_cast<int>(means.size()); ++column) {
    if (std::isnan(means[column])) continue;
    const double height = range > 0 ? (bounds.high - means[column]) / range : 0.5;
    canvas->Mark(column, static_cast<int>(std::lround(height * (num_rows - 1))));
  }
}

std::vector<CurvePoint> FiniteOf(const std::vector<CurvePoint>& points) {
  std::vector<CurvePoint> finite;
  for (const CurvePoint& point : points) {
    if (std::isfinite(point.value)) finite.push_back(point);
  }
  return finite;
}

std::string ValueLabel(double value) { return absl::StrFormat("%*.4g", kLabelWidth, value); }

std::string StepLabels(const Bounds& bounds, int width) {
  const std::string first = absl::StrCat(bounds.first_step);
  const std::string last = absl::StrCat(bounds.last_step);
  const int gap = width - static_cast<int>(first.size() + last.size());
  const std::string indent(kLabelWidth + 2, ' ');
  if (gap < 1) return absl::StrCat(indent, first);
  return absl::StrCat(indent, first, std::string(gap, ' '), last);
}

}  // namespace

std::vector<std::string> DrawCurve(const std::vector<CurvePoint>& points,
                                   const CurveOptions& options) {
  const std::vector<CurvePoint> finite = FiniteOf(points);
  const std::vector<CurvePoint> others = FiniteOf(options.second);
  if (finite.empty()) return {"(no step was recorded)"};
  const int width = std::max(2, options.width);
  const int height = std::max(2, options.height);
  Canvas canvas(width, height, options.unicode);
  Bounds bounds = StepBounds(finite, others);
  std::vector<double> means = ColumnMeans(finite, canvas.dot_columns(), &bounds);
  const std::vector<double> marks = ColumnMeans(others, width, &bounds);
  Bridge(&means);
  Draw(means, bounds, &canvas);
  MarkSecond(marks, bounds, height, &canvas);
  const char* tick = options.unicode ? " ┤" : " +";
  const char* side = options.unicode ? " │" : " |";
  std::vector<std::string> lines;
  const double range = bounds.high - bounds.low;
  for (int row = 0; row < height; ++row) {
    const bool labelled = (range > 0 && (row == 0 || row == height - 1)) || row == height / 2;
    const double value = range > 0 ? bounds.high - range * row / (height - 1) : bounds.high;
    lines.push_back(absl::StrCat(labelled ? ValueLabel(value) : std::string(kLabelWidth, ' '),
                                 labelled ? tick : side, canvas.Row(row)));
  }
  std::string floor = absl::StrCat(std::string(kLabelWidth, ' '), options.unicode ? " └" : " +");
  for (int column = 0; column < width; ++column) floor += options.unicode ? "─" : "-";
  lines.push_back(floor);
  lines.push_back(StepLabels(bounds, width));
  return lines;
}

}  // namespace megascale::cli
