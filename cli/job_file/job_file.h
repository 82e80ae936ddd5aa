// Job files: YAML with exactly the shape and names of proto/job.proto. Values of enums are the
// short lower-case form ("gelu_tanh", "bf16", "rotary"), durations are "5s", "1m30s", "500ms". A
// mistake is one line: `file:line:column: what, what was found, what was expected, the nearest
// valid name`; texts of the file are shown without control characters and cut. Thread-safe: plain
// functions. The YAML library stays in job_file.cc.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::cli {

// The text of a job file as a specification, defaults not filled in. `file_name` is what messages
// call it. Limits: 1 MiB, one document, the YAML library's nesting of 500; aliases cost nothing,
// because only known fields are followed.
// Errors: InvalidArgument - the first mistake.
absl::StatusOr<job::v1::JobSpec> ParseJobText(const std::string& file_name,
                                              const std::string& text);

// Sets one field from "model.hidden_size=128"; the value is YAML ("data.files=[/a, /b]"), checked
// as in a file. Errors: InvalidArgument, beginning with "--set <assignment>: ".
absl::Status ApplyOverride(const std::string& assignment, job::v1::JobSpec* spec);

struct JobFileOptions {
  std::vector<std::string> overrides = {};   // of --set, applied in order
  std::vector<std::string> data_files = {};  // replace data.files when there are any
};

// The text of a job file as a job: applies `options`, makes the paths in data.files and
// checkpoint.directory absolute (relative ones are taken from the current directory, not from the
// file's), and resolves: what comes back is complete and valid. Rules that are
// broken are reported with the place where the field was given: in the file, or by which option.
// Errors: InvalidArgument - the first mistake.
absl::StatusOr<job::v1::JobSpec> LoadJobText(const std::string& file_name, const std::string& text,
                                             const JobFileOptions& options);

// The same for a file. Errors: InvalidArgument - also a file that cannot be read.
absl::StatusOr<job::v1::JobSpec> LoadJobFile(const std::string& path,
                                             const JobFileOptions& options);

// The inverse: YAML that ParseJobText reads back as `spec`. Fields in the order of the schema, all
// numbers shown, empty texts, lists and sections left out.
std::string ToYaml(const job::v1::JobSpec& spec);

}  // namespace megascale::cli
