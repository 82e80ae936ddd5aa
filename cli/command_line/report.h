// What commands print and exit with, alike in all of them: data on standard output (text or JSON),
// mistakes on standard error in one line of what and one of what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/command_line.h"
#include "proto/control.pb.h"

namespace google::protobuf {
class Message;
}

namespace megascale::cli {

// -o text|json.
void AddOutputOption(Command* command, std::string* format);
// False, after saying so, for any other word.
bool CheckOutputFormat(const std::string& format);

// Writes "megascale: <message>" and, where there is one, a line of advice; returns the exit code
// that belongs to the status.
int ReportError(const absl::Status& status, absl::string_view advice = "");
int ExitCodeOf(const absl::Status& status);
// kExitGood for a job that succeeded, kExitFailed for one that did not.
int ExitCodeOf(const control::v1::Job& job);

enum class JsonLayout { kPretty, kOneLine };
void PrintJson(const google::protobuf::Message& message, JsonLayout layout);

// A JSON object of a few values, in the order in which they are added.
class JsonObject {
 public:
  void Add(absl::string_view name, absl::string_view text);
  void Add(absl::string_view name, double number);
  void Add(absl::string_view name, int64_t number);
  std::string Finish() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

// "alive", "evicted (memory errors)" …: what a node is to whom places jobs.
std::string NodeStateText(const control::v1::NodeView& node);

// Columns, as wide as they need to be; the last is not padded.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// A table of where the time of steps went, a line for each stage; "" of none.
std::string StageTimesTable(
    const google::protobuf::RepeatedPtrField<control::v1::StageTime>& stages);

// `path` as an absolute path, from the current directory; "" stays "".
std::string AbsolutePath(const std::string& path);

}  // namespace megascale::cli
