#include "cli/command_line/report.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/view/terminal.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/check.h"
#include "runtime/base/text/printable.h"

namespace megascale::cli {
namespace {

int output_error = 0;  // errno of the first write to standard output that failed

std::string JsonText(absl::string_view text) {
  std::string json = "\"";
  while (!text.empty()) {
    const size_t length = base::Utf8Length(text);
    const unsigned char first = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      json += "\xEF\xBF\xBD";  // a byte that is no text
    } else if (first == '"' || first == '\\') {
      absl::StrAppend(&json, "\\", text.substr(0, 1));
    } else if (first < 0x20) {
      absl::StrAppend(&json, "\\u", absl::Hex(first, absl::kZeroPad4));
    } else {
      absl::StrAppend(&json, text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return json + "\"";
}

}  // namespace

void AddOutputOption(Command* command, std::string* format) {
  command->Text("-o,--output", format, "text or json");
}

bool CheckOutputFormat(const std::string& format) {
  if (format == "text" || format == "json") return true;
  std::fprintf(stderr, "megascale: --output: expected text or json, found '%s'\n",
               base::Printable(format, 60).c_str());
  return false;
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitGood;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnauthenticated:
      return kExitUnreachable;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    default:
      return kExitFailed;
  }
}

int ExitCodeOf(const control::v1::Job& job) {
  return job.state() == control::v1::JOB_STATE_SUCCEEDED ? kExitGood : kExitFailed;
}

int ReportError(const absl::Status& status, absl::string_view advice) {
  constexpr size_t kShownMax = 2000;
  std::fprintf(stderr, "megascale: %s\n", base::Printable(status.message(), kShownMax).c_str());
  if (!advice.empty()) std::fprintf(stderr, "  %s\n", std::string(advice).c_str());
  return ExitCodeOf(status);
}

int ReportMistakes(const absl::Status& status) {
  for (const absl::string_view mistake : absl::StrSplit(status.message(), '\n')) {
    ReportError(absl::Status(status.code(), mistake));
  }
  return ExitCodeOf(status);
}

void FlushOutput() {
  if (std::fflush(stdout) != 0 && output_error == 0) output_error = errno;
}

int FinishOutput(int exit_code) {
  FlushOutput();
  // Some file systems report a full disk only when a descriptor is closed.
  const int copy = dup(STDOUT_FILENO);
  if (copy >= 0 && close(copy) != 0 && output_error == 0) output_error = errno;
  if (output_error == 0 && !OutputFailed()) return exit_code;
  pollfd reader = {STDOUT_FILENO, POLLOUT, 0};
  const bool reader_left = poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;
  if (output_error != EPIPE && !reader_left) {
    const std::string why =
        output_error == 0 ? "" : absl::StrCat(": ", std::strerror(output_error));
    std::fprintf(stderr, "megascale: cannot write to standard output%s; it is not complete\n",
                 why.c_str());
  }
  return exit_code == kExitGood ? kExitFailed : exit_code;
}

bool OutputFailed() { return std::ferror(stdout) != 0; }

void PrintJson(const google::protobuf::Message& message, JsonLayout layout) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = layout == JsonLayout::kPretty;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  json.erase(json.find_last_not_of('\n') + 1);
  std::printf("%s\n", json.c_str());
  FlushOutput();
}

void JsonObject::Add(absl::string_view name, absl::string_view text) {
  absl::StrAppend(&body_, body_.empty() ? "" : ", ", JsonText(name), ": ", JsonText(text));
}

void JsonObject::Add(absl::string_view name, double number) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), number);
  const std::string text = std::isfinite(number) ? std::string(buffer, result.ptr) : "null";
  absl::StrAppend(&body_, body_.empty() ? "" : ", ", JsonText(name), ": ", text);
}

void JsonObject::Add(absl::string_view name, int64_t number) {
  absl::StrAppend(&body_, body_.empty() ? "" : ", ", JsonText(name), ": ", number);
}

std::string NodeStateText(const control::v1::NodeView& node) {
  std::string text = node.alive() ? "alive" : "lost";
  if (node.draining()) text = node.alive() ? "draining" : "drained";
  if (node.unnamed()) {
    text = text == "alive" ? "waits to be named" : absl::StrCat("waits to be named, ", text);
  }
  if (node.pool() == control::v1::POOL_QUARANTINED) {
    text = text == "alive" ? "quarantined" : absl::StrCat("quarantined, ", text);
  }
  if (!node.evicted()) return text;
  const std::string why =
      node.evicted_why().empty() ? "" : absl::StrCat(" (", node.evicted_why(), ")");
  return absl::StrCat(node.num_jobs() > 0 ? "leaving" : "evicted",
                      text == "alive" ? "" : absl::StrCat(", ", text), why);
}

namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr int kLastColumnMin = 24;  // narrower text is hard to read
constexpr int kBelowIndent = 4;
constexpr int kLinesMax = 100;  // of one text

std::vector<int> WidthsOf(const Rows& rows) {
  std::vector<int> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  return widths;
}

// Returns where the last column begins.
int BeginOfLast(const std::vector<int>& widths) {
  const int num_before = static_cast<int>(widths.size()) - 1;
  return std::accumulate(widths.begin(), widths.end() - 1, 2 * num_before);
}

void AppendRow(const std::vector<std::string>& row, const std::vector<int>& widths,
               std::string* table) {
  for (size_t i = 0; i < row.size(); ++i) {
    absl::StrAppend(table, row[i]);
    if (i + 1 < row.size()) table->append(widths[i] + 2 - DisplayWidth(row[i]), ' ');
  }
  table->erase(table->find_last_not_of(' ') + 1);
  *table += '\n';
}

std::vector<std::string> FitText(const std::string& text, int width, LongText long_text) {
  if (long_text == LongText::kCut) return {ShortenToWidth(text, width)};
  return WrapToWidth(text, width, kLinesMax);
}

}  // namespace

std::string FormatTable(const Rows& rows) {
  const std::vector<int> widths = WidthsOf(rows);
  std::string table;
  for (const std::vector<std::string>& row : rows) AppendRow(row, widths, &table);
  return table;
}

std::string FitTable(Rows rows, int width, LongText long_text) {
  for (std::vector<std::string>& row : rows) {
    for (std::string& text : row) text = CutToWidth(text, std::numeric_limits<int>::max());
  }
  if (width <= 0) return FormatTable(rows);
  std::vector<int> widths = WidthsOf(rows);
  Rows below(rows.size());  // lines below each row
  const auto room = [&] { return width - BeginOfLast(widths); };
  while (widths.size() > 1 && widths.back() > room() && room() < kLastColumnMin) {
    const std::string name = absl::AsciiStrToLower(rows[0].back());
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string text = std::move(rows[i].back());
      rows[i].pop_back();
      if (i == 0 || text.empty() || text == "-") continue;
      const std::vector<std::string> lines =
          FitText(absl::StrCat(name, ": ", text), width - kBelowIndent, long_text);
      below[i].insert(below[i].begin(), lines.begin(), lines.end());
    }
    widths.pop_back();
  }
  const bool is_name = widths.size() == 1;  // which must stay whole
  std::string table;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> lines = {rows[i].back()};
    if (!is_name) lines = FitText(rows[i].back(), room(), long_text);
    rows[i].back() = lines[0];
    AppendRow(rows[i], widths, &table);
    for (size_t line = 1; line < lines.size(); ++line) {
      absl::StrAppend(&table, std::string(BeginOfLast(widths), ' '), lines[line], "\n");
    }
    for (const std::string& line : below[i]) {
      absl::StrAppend(&table, std::string(kBelowIndent, ' '), line, "\n");
    }
  }
  return table;
}

int OutputWidth() {
  const Terminal terminal = DetectTerminal(STDOUT_FILENO);
  return terminal.interactive ? terminal.width : 0;
}

std::string StageTimesTable(
    const google::protobuf::RepeatedPtrField<control::v1::StageTime>& stages) {
  if (stages.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"STAGE", "RANKS", "STEP", "COMPUTE", "OPTIMIZER",
                                                 "TENSOR PARALLEL", "PIPELINE", "DATA PARALLEL",
                                                 "DATA WAIT", "BUBBLE"}};
  for (const control::v1::StageTime& stage : stages) {
    const auto share = [&](double seconds) {
      return absl::StrFormat("%.1f %%", 100 * seconds / std::max(1e-9, stage.step_seconds()));
    };
    rows.push_back({absl::StrCat(stage.stage()), absl::StrCat(stage.num_ranks()),
                    absl::StrFormat("%.3f ms", 1e3 * stage.step_seconds()),
                    share(stage.compute_seconds()), share(stage.optimizer_seconds()),
                    share(stage.tensor_parallel_seconds()), share(stage.pipeline_seconds()),
                    share(stage.data_parallel_seconds()), share(stage.data_wait_seconds()),
                    share(stage.bubble_seconds())});
  }
  return FormatTable(rows);
}

bool HasScheme(absl::string_view path) {
  const size_t end = path.find("://");
  return end != absl::string_view::npos && end + 1 == path.find('/');
}

std::string AbsolutePath(const std::string& path) {
  if (path.empty() || HasScheme(path)) return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

std::string ShellWord(absl::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x80 || absl::ascii_isalnum(byte) ||
           absl::StrContains("/._-+=:@%,", absl::string_view(&c, 1));
  });
  if (plain && !text.empty()) return std::string(text);
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string PathToType(const std::string& path) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  const std::string relative =
      error ? "" : std::filesystem::path(path).lexically_relative(here).string();
  const bool below = !relative.empty() && relative != "." && relative != ".." &&
                     !absl::StartsWith(relative, "../");
  std::string typed = below ? relative : path;
  if (!absl::StrContains(typed, '/') || absl::StartsWith(typed, "-")) typed.insert(0, "./");
  return ShellWord(typed);
}

std::string ProgramToType(const std::string& path) {
  const auto is_this = [&](const std::string& candidate) {
    std::error_code error;
    return std::filesystem::equivalent(candidate, path, error) && !error;
  };
  const char* search = std::getenv("PATH");
  for (const absl::string_view directory : absl::StrSplit(search == nullptr ? "" : search, ':')) {
    const std::string found = absl::StrCat(directory.empty() ? "." : directory, "/megascale");
    if (::access(found.c_str(), X_OK) != 0) continue;
    if (is_this(found)) return "megascale";
    break;  // a shell runs the first one
  }
  constexpr char kBuilt[] = "bazel-bin/cli/megascale";
  return is_this(kBuilt) ? kBuilt : PathToType(path);
}

}  // namespace megascale::cli
