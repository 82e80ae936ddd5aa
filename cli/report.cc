#include "cli/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/terminal.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/check.h"

namespace megascale::cli {
namespace {

// The length of the UTF-8 sequence that `text` begins with; 0 where it is none.
size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

std::string JsonText(absl::string_view text) {
  std::string json = "\"";
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
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
  std::fprintf(stderr, "megascale: --output: expected text or json, found '%s'\n", format.c_str());
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
  const std::string message = CutToWidth(status.message(), 2000);
  std::fprintf(stderr, "megascale: %s\n", message.c_str());
  if (advice.empty() && absl::IsUnavailable(status)) {
    advice = "start one with `megascale driver`, or name one with --address or MEGASCALE_ADDRESS";
  }
  if (!advice.empty()) std::fprintf(stderr, "  %s\n", std::string(advice).c_str());
  return ExitCodeOf(status);
}

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
  std::fflush(stdout);
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

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<int> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string table;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&table, row[i]);
      if (i + 1 < row.size()) table.append(widths[i] + 2 - DisplayWidth(row[i]), ' ');
    }
    table += '\n';
  }
  return table;
}

std::string AbsolutePath(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

}  // namespace megascale::cli
