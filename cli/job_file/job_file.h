// Job files: YAML with exactly the shape and names of proto/job.proto. Enum values have the short
// lower-case form ("gelu_tanh", "bf16", "rotary"); durations are "5s", "1m30s", "500ms". An error
// has a line for each mistake: `file:line:column:`, then the mistake, the value found, the value
// expected and the most similar valid name. Text quoted from the file is cut and has no control
// characters. Thread-safe: plain functions. Only job_file.cc sees the YAML library.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::cli {

struct JobFileOptions {
  std::vector<std::string> overrides = {};   // values of --set, applied in order
  std::vector<std::string> data_files = {};  // replace data.files and weights unless empty
  std::string tokenizer = {};                // replaces data.tokenizer unless empty
  std::string json_field = {};               // replaces data.json_field unless empty
  bool skip_bad = false;                     // sets data.skip_bad if true
};

// Parses the text of a job file into a complete, valid specification. Applies `options`, makes
// paths absolute (they are relative to the current directory, not to the file's directory), fills
// in the defaults and checks the rules. An error names the place where the field was given: in the
// file, or by an option. Errors: InvalidArgument - all mistakes; rules about several fields are
// checked only if each field is valid by itself.
absl::StatusOr<job::v1::JobSpec> LoadJobText(const std::string& file_name, const std::string& text,
                                             const JobFileOptions& options);

// As LoadJobText, for a file. Errors: InvalidArgument - also if the file cannot be read.
absl::StatusOr<job::v1::JobSpec> LoadJobFile(const std::string& path,
                                             const JobFileOptions& options);

// Returns YAML that LoadJobText reads back as `spec`. The fields are in the order of the schema,
// with all numbers, but without empty texts, lists and sections.
std::string ToYaml(const job::v1::JobSpec& spec);

}  // namespace megascale::cli
