// Reads the text of a job file, and values of --set, into a specification, without filling in
// defaults or checking rules about values. Only job_text.cc includes the YAML library. Private to
// this folder.
//
//   JobFileFindings findings;
//   ASSIGN_OR_RETURN(JobSpec spec, ParseJobText("job.yaml", text, &findings));
//   RETURN_IF_ERROR(MistakesError(std::move(findings.mistakes)));
//
// Threads: any; plain functions.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::cli {

inline constexpr size_t kJobFileBytesMax = 1 << 20;

// What reading a text finds besides the specification.
struct JobFileFindings {
  // By a field's path: the place where the field was given ("job.yaml:3:5" or "--set
  // train.steps=9"). Has only fields whose value could be read.
  std::map<std::string, std::string> given;
  std::vector<std::string> mistakes;  // in the order of the text
};

// Parses the text of a job file. `file_name` is the name in messages. Fields that cannot be read
// become mistakes of `findings`, at most 20, and stay unset. Limits: 1 MiB, one document, the YAML
// library's nesting of 500. Nested aliases cannot use much memory, because only known fields are
// followed. Errors: InvalidArgument - the text is not YAML of this form, so that nothing could be
// read.
absl::StatusOr<job::v1::JobSpec> ParseJobText(const std::string& file_name, const std::string& text,
                                              JobFileFindings* findings);

// Sets one field from "model.hidden_size=128"; the value is YAML ("data.files=[/a, /b]"), checked
// as in a file. Errors: InvalidArgument - the first mistake, after "--set <assignment>: "; if the
// value is a section, further mistakes go to `findings`.
absl::Status ApplyOverride(const std::string& assignment, job::v1::JobSpec* spec,
                           JobFileFindings* findings);

// Returns InvalidArgument with all mistakes, one a line; OK if there are none.
absl::Status MistakesError(std::vector<std::string> mistakes);

}  // namespace megascale::cli
