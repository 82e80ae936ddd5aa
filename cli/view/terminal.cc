#include "cli/view/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megascale::cli {
namespace {

// The size of a terminal that does not tell it, such as a serial line.
constexpr int kUnknownWidth = 80;
constexpr int kUnknownHeight = 24;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns true if the locale is UTF-8; `unsaid` if no locale is set.
bool LocaleIsUtf8(bool unsaid) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (!value.empty())
      return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return unsaid;
}

bool ContinuesCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

Terminal DetectTerminal(int fd) {
  Terminal terminal;
  const std::string term = Environment("TERM");
  terminal.interactive = isatty(fd) == 1 && term != "dumb";
  // Fresh machines set no locale, while every terminal emulator but the kernel's console shows
  // UTF-8.
  terminal.unicode = LocaleIsUtf8(terminal.interactive && !term.empty() && term != "linux");
  terminal.color = terminal.interactive && Environment("NO_COLOR").empty();
  winsize size = {};
  if (!terminal.interactive) return terminal;
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) size = {};
  terminal.width = size.ws_col > 0 ? std::clamp<int>(size.ws_col, 20, 300) : kUnknownWidth;
  terminal.height = size.ws_row > 0 ? size.ws_row : kUnknownHeight;
  return terminal;
}

std::string Colored(const Terminal& terminal, absl::string_view code, absl::string_view text) {
  if (!terminal.color) return std::string(text);
  return absl::StrCat("\033[", code, "m", text, "\033[0m");
}

std::string WithCommas(int64_t value) {
  if (value < 0) return "-" + WithCommas(-value);
  if (value < 1000) return absl::StrCat(value);
  return absl::StrFormat("%s,%03d", WithCommas(value / 1000), value % 1000);
}

std::string ShortDuration(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  if (seconds >= 48 * 3600) {
    return absl::StrFormat("%dd%02dh", seconds / (24 * 3600), seconds / 3600 % 24);
  }
  if (seconds >= 3600) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  if (seconds >= 60) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  return absl::StrCat(seconds, "s");
}

std::string CutToWidth(absl::string_view text, int width) {
  std::string cut;
  int columns = 0;
  for (const char c : text) {
    if (!ContinuesCodePoint(c) && ++columns > width) break;
    cut += absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' ' : c;
  }
  return cut;
}

std::string ShortenToWidth(absl::string_view text, int width) {
  if (DisplayWidth(text) <= width) return CutToWidth(text, width);
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(CutToWidth(text, width - 1)), "…");
}

std::vector<std::string> WrapToWidth(absl::string_view text, int width, int lines_max) {
  std::vector<std::string> lines;
  std::string indent;
  while (DisplayWidth(indent) + DisplayWidth(text) > width &&
         static_cast<int>(lines.size()) + 1 < lines_max) {
    std::string line = CutToWidth(text, width - DisplayWidth(indent));
    const bool ends_at_space = line.size() < text.size() && text[line.size()] == ' ';
    const size_t space = ends_at_space ? line.size() : line.rfind(' ');
    if (space != std::string::npos && space > 0) line.resize(space);
    text.remove_prefix(line.size());
    text = absl::StripLeadingAsciiWhitespace(text);
    lines.push_back(absl::StrCat(indent, line));
    indent = "  ";
  }
  if (!text.empty() || lines.empty()) {
    lines.push_back(CutToWidth(absl::StrCat(indent, text), width));
  }
  return lines;
}

int DisplayWidth(absl::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return !ContinuesCodePoint(c); }));
}

}  // namespace megascale::cli
