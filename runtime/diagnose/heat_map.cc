#include "runtime/diagnose/heat_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/text/printable.h"

namespace megascale::diagnose {
namespace {

constexpr int kLeft = 80;
constexpr int kTop = 48;
constexpr int kCellWidth = 84;
constexpr int kCellHeight = 44;

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(base::Printable(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string ColorOf(double heat) {
  const double part = std::clamp(heat, 0.0, 1.0);
  return absl::StrFormat("#%02x%02x%02x", 255, static_cast<int>(255 - 150 * part),
                         static_cast<int>(255 - 175 * part));
}

}  // namespace

std::string HeatMapSvg(const std::string& title, absl::Span<const HeatMapCell> cells) {
  int rows = 0;
  int columns = 0;
  for (const HeatMapCell& cell : cells) {
    rows = std::max(rows, cell.row + 1);
    columns = std::max(columns, cell.column + 1);
  }
  const int width = std::max(640, kLeft + columns * kCellWidth + 20);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
      "<text x=\"16\" y=\"26\" font-size=\"14\">%s</text>\n",
      width, kTop + rows * kCellHeight + 20, Escape(title));
  for (int row = 0; row < rows; ++row) {
    absl::StrAppendFormat(&svg, "<text x=\"16\" y=\"%d\">stage %d</text>\n",
                          kTop + row * kCellHeight + kCellHeight / 2 + 4, row);
  }
  for (const HeatMapCell& cell : cells) {
    const int x = kLeft + cell.column * kCellWidth;
    const int y = kTop + cell.row * kCellHeight;
    absl::StrAppendFormat(
        &svg,
        "<g><title>%s</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" "
        "stroke=\"#8a8f98\"/><text x=\"%d\" y=\"%d\">%s</text><text x=\"%d\" y=\"%d\" "
        "font-weight=\"bold\">%s</text></g>\n",
        Escape(cell.note), x, y, kCellWidth - 4, kCellHeight - 4, ColorOf(cell.heat), x + 6, y + 16,
        Escape(cell.label), x + 6, y + 33, Escape(cell.value));
  }
  return svg + "</svg>\n";
}

}  // namespace megascale::diagnose
