// The common output and exit codes of commands: data on standard output (text or JSON), errors on
// standard error, with one line for the error and one for what to do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/command_line/command_line.h"
#include "proto/control.pb.h"
#include "runtime/base/fd.h"

namespace google::protobuf {
class Message;
}

namespace megascale::cli {

// Adds -o text|json.
void AddOutputOption(Command* command, std::string* format);
// Returns true for "text" and "json"; reports an error and returns false for any other word.
bool CheckOutputFormat(const std::string& format);

// Writes "megascale: <message>" and, unless it is empty, a line of advice. Returns the exit code of
// the status.
int ReportError(const absl::Status& status, absl::string_view advice = "");
// As ReportError, for a message with a line for each mistake.
int ReportMistakes(const absl::Status& status);
int ExitCodeOf(const absl::Status& status);
// Returns kExitGood for a job that succeeded, else kExitFailed.
int ExitCodeOf(const control::v1::Job& job);

// Flushes standard output, and notes the error if that fails.
void FlushOutput();
// Flushes standard output at the program's end. Returns `exit_code`. If output could not be
// written, reports why on standard error and returns kExitFailed in place of kExitGood. A closed
// pipe is not reported, because its reader has read all it wanted.
int FinishOutput(int exit_code);
// True if standard output could not be written: following a job or a log is pointless now.
bool OutputFailed();

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

// Returns a node's state as it matters for placement: "alive", "evicted (memory errors)" …
std::string NodeStateText(const control::v1::NodeView& node);

// Returns a table with columns as wide as they need to be; the last column is not padded.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// Returns a table of where the time of steps went, with a line for each stage; "": no stages.
std::string StageTimesTable(
    const google::protobuf::RepeatedPtrField<control::v1::StageTime>& stages);

// Returns `path` as an absolute path, relative to the current directory; "" stays "".
std::string AbsolutePath(const std::string& path);

// Returns `text` so that a shell reads it as one word: quoted, if need be.
std::string ShellWord(absl::string_view text);

// Returns a path to type into a shell: relative if it is below the current directory, and never an
// option or a name that the shell looks up on the PATH.
std::string PathToType(const std::string& path);

// Opens `path` to read. A pipe must have somebody who writes into it, or get one soon.
// Blocking: on such a pipe, for seconds. Errors: DeadlineExceeded - nobody writes into the pipe;
// those of the file. No error has the path in it.
absl::StatusOr<base::UniqueFd> OpenInputFile(const std::string& path);

// Refuses an output file that is one of the inputs, which writing it would destroy; `option`: the
// name of the option that gave it.
absl::Status CheckKeepsInputs(const std::string& option, const std::string& output,
                              const std::vector<std::string>& inputs);

// A kind of file that a command writes.
struct OutputKind {
  std::string name;  // "an SVG picture"
  // Returns true if the file is of this kind: then a command may replace it by a new one.
  std::function<bool(const std::string& path)> is_of_kind;
};
// Returns the kind of files that begin with `begin`.
OutputKind KindThatBegins(std::string name, const std::string& begin);
// The pictures and the traces for ui.perfetto.dev that commands draw.
OutputKind SvgPicture();
OutputKind PerfettoFile();

// Adds --force, for output options.
void AddForceOption(Command* command, bool* force);

// Refuses an output file that exists and is not of this kind, unless `force`. An empty file holds
// nothing, and pipes, devices and "" replace nothing. `option`: the option that gave it. Check
// before anything else is done. Errors: InvalidArgument.
absl::Status CheckReplaces(const std::string& option, const std::string& path,
                           const OutputKind& kind, bool force);
// As CheckReplaces, where no existing file is replaced: what was made with it depends on it.
absl::Status CheckIsNew(const std::string& option, const std::string& path, bool force);

// True if `path` is this program's standard output: "-", or the file that it is connected to
// ("/dev/stdout"). Then a command must print nothing else, or it would be mixed with the file.
bool IsStandardOutput(const std::string& path);

// Writes `data` to `path`. Writes into standard output, pipes, devices and the target of a symbolic
// link; replaces a regular file atomically.
// Blocking: on a pipe, until somebody reads it. Errors: those of the file, with its path.
absl::Status WriteOutputFile(const std::string& path, absl::string_view data);

}  // namespace megascale::cli
