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

// Flushes standard output. If that fails, records the error for OutputFailed and FinishOutput.
void FlushOutput();
// Flushes standard output at the program's end. Returns `exit_code`. If output could not be
// written, reports why on standard error and returns kExitFailed instead of kExitGood. A closed
// pipe is not reported, because its reader has read as much as it wanted.
int FinishOutput(int exit_code);
// True if standard output could not be written. Then it is pointless to follow a job or a log.
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

// Returns a node's state as far as placement depends on it: "alive", "evicted (memory errors)" …
std::string NodeStateText(const control::v1::NodeView& node);

// Returns a table with columns as wide as they need to be. No line ends in spaces.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// What becomes of text that is wider than its column.
enum class LongText { kCut, kWrapped };
// As FormatTable, for a terminal of `width` columns; 0: no limit. If a line would be wider, the
// text of the last column is cut or wrapped. If too little room is left for it, its column goes:
// each row's text stands below the row, after the column's name, and the next column is the last.
// Control characters become spaces.
std::string FitTable(std::vector<std::vector<std::string>> rows, int width, LongText long_text);
// Returns the width for FitTable: of the terminal to which standard output is connected, else 0.
int OutputWidth();

// Returns a table of how the steps' time was spent, with a line for each stage; "": no stages.
std::string StageTimesTable(
    const google::protobuf::RepeatedPtrField<control::v1::StageTime>& stages);

// True if `path` begins with a scheme, such as "s3://": then it is no path of a file system, and
// job::CheckPath refuses it.
bool HasScheme(absl::string_view path);

// Returns `path` as an absolute path, relative to the current directory; "" stays "", and what has
// a scheme such as "s3://" stays as it is, to be refused.
std::string AbsolutePath(const std::string& path);

// Returns `text`, quoted if necessary, so that a shell reads it as one word.
std::string ShellWord(absl::string_view text);

// Returns a path to type into a shell: relative if it is below the current directory. A shell never
// takes it for an option or for a name that it looks up on the PATH.
std::string PathToType(const std::string& path);

// Returns what to type to run the program at `path`: "megascale" if the shell finds it by that
// name; "bazel-bin/cli/megascale" where it was built; else its PathToType.
std::string ProgramToType(const std::string& path);

// Opens `path` to read. If it is a pipe, a process must write into it, or begin to do so soon.
// Blocking: for seconds if no process writes into the pipe yet. Errors: DeadlineExceeded - no
// process writes into the pipe; those of the file. Error messages do not have the path.
absl::StatusOr<base::UniqueFd> OpenInputFile(const std::string& path);

// Refuses an output file that is also an input file, because writing would destroy the input.
// `option`: the name of the option that gave the output file.
absl::Status CheckKeepsInputs(const std::string& option, const std::string& output,
                              const std::vector<std::string>& inputs);

// A kind of file that a command writes.
struct OutputKind {
  std::string name;  // "an SVG picture"
  // Returns true if the file is of this kind, so that a command may replace it by a new one.
  std::function<bool(const std::string& path)> is_of_kind;
};
// Returns the kind of files that begin with `begin`.
OutputKind KindThatBegins(std::string name, const std::string& begin);
// The pictures, and the traces for ui.perfetto.dev, that commands write.
OutputKind SvgPicture();
OutputKind PerfettoFile();

// Adds --force, for output options.
void AddForceOption(Command* command, bool* force);

// Refuses an output file that exists and is not of this kind, unless `force`. Accepts an empty
// file, pipes, devices and "", because nothing would be lost. `option`: the option that gave the
// file. Call it before anything else is done. Errors: InvalidArgument.
absl::Status CheckReplaces(const std::string& option, const std::string& path,
                           const OutputKind& kind, bool force);
// As CheckReplaces, but refuses every existing file, because other files may depend on it.
absl::Status CheckIsNew(const std::string& option, const std::string& path, bool force);

// True if `path` is this program's standard output: "-", or the file to which standard output is
// connected ("/dev/stdout"). Then a command must print nothing else, because it would be mixed with
// the file.
bool IsStandardOutput(const std::string& path);

// Writes `data` to `path`. Writes into standard output, pipes, devices and the target of a symbolic
// link; replaces a regular file atomically.
// Blocking: on a pipe, until a process reads it. Errors: those of the file, with its path.
absl::Status WriteOutputFile(const std::string& path, absl::string_view data);

}  // namespace megascale::cli
