#include "controlplane/trace/evidence_file.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/job_spec.h"

namespace megascale::trace {
namespace {

// The first words of a file's lines, before the JSON.
constexpr absl::string_view kJob = "job ";
constexpr absl::string_view kCluster = "cluster ";
constexpr absl::string_view kSpans = "spans ";
constexpr absl::string_view kLog = "log ";
constexpr absl::string_view kEvidence = "evidence-";  // and the number of the kind
constexpr int kGzipWindowBits = 15 + 16;
constexpr absl::string_view kGzipMagic = "\x1f\x8b";

template <typename Message>
void AddLine(absl::string_view word, const Message& message, size_t bytes_max, std::string* text) {
  if (text->size() > bytes_max) return;
  std::string line;
  const auto written = google::protobuf::util::MessageToJsonString(message, &line);
  if (written.ok()) absl::StrAppend(text, word, line, "\n");
}

std::string Gzip(absl::string_view text) {
  z_stream stream = {};
  MEGASCALE_CHECK(::deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindowBits, 9,
                                 Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  MEGASCALE_CHECK(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

absl::StatusOr<std::string> Gunzip(absl::string_view packed, size_t bytes_max) {
  z_stream stream = {};
  MEGASCALE_CHECK(::inflateInit2(&stream, kGzipWindowBits) == Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  std::string piece(size_t{1} << 16, '\0');
  int result = Z_OK;
  while (result == Z_OK && text.size() <= bytes_max) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    result = ::inflate(&stream, Z_NO_FLUSH);
    text.append(piece, 0, piece.size() - stream.avail_out);
  }
  ::inflateEnd(&stream);
  if (text.size() > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", bytes_max, " bytes"));
  }
  if (result != Z_STREAM_END) {
    return absl::InvalidArgumentError("the gzip data are damaged; copy the file again");
  }
  return text;
}

template <typename Message>
absl::Status Parse(absl::string_view text, Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // of a newer version
  const auto parsed =
      google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, message, options);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a line of saved evidence is damaged: ",
                                                 base::Printable(parsed.ToString(), 300)));
}

absl::Status AddTo(absl::string_view line, EvidenceFile* file) {
  if (absl::ConsumePrefix(&line, kJob)) return Parse(line, &file->job);
  if (absl::ConsumePrefix(&line, kCluster)) return Parse(line, &file->cluster);
  if (absl::ConsumePrefix(&line, kLog)) return Parse(line, &file->logs.emplace_back());
  if (absl::ConsumePrefix(&line, kSpans)) return Parse(line, &file->spans.emplace_back());
  if (absl::ConsumePrefix(&line, kEvidence)) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int kind = 0;
    if (absl::SimpleAtoi(parts.first, &kind)) {
      return Parse(parts.second, &file->evidence[kind].emplace_back());
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("found '", base::Printable(line, 40), "'; expected a line of saved evidence"));
}

// Checks the job, on whose sizes an analysis relies.
absl::Status CheckJob(megascale::control::v1::Job* job) {
  if (job->job_id().empty()) {
    return absl::InvalidArgumentError(
        "holds no job; expected a file that `megascale diagnose JOB --save FILE` wrote");
  }
  auto spec = job::ResolveJobSpec(job->spec());
  if (!spec.ok()) return base::Annotate(spec.status(), "holds a job that no driver would accept");
  *job->mutable_spec() = *std::move(spec);
  const int world_size = job::WorldSize(job->spec());
  const int culprit = job->has_culprit() ? job->culprit().rank() : -1;
  if (culprit < -1 || culprit >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "names rank ", culprit, " as the culprit of a job that has ", world_size, " ranks"));
  }
  if (job->ranks_size() == 0 || job->ranks_size() == world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("holds ", job->ranks_size(), " ranks, but the job has ", world_size));
}

}  // namespace

absl::StatusOr<std::string> PackEvidence(const EvidenceFile& file, size_t bytes_max) {
  std::string text;
  for (const auto& response : file.spans) AddLine(kSpans, response, bytes_max, &text);
  for (const auto& [kind, responses] : file.evidence) {
    for (const auto& response : responses) {
      AddLine(absl::StrCat(kEvidence, kind, " "), response, bytes_max, &text);
    }
  }
  for (const auto& log : file.logs) AddLine(kLog, log, bytes_max, &text);
  AddLine(kCluster, file.cluster, bytes_max, &text);
  AddLine(kJob, file.job, bytes_max, &text);
  if (text.size() > bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat("the evidence has more than ", bytes_max,
                                                     " bytes; save fewer steps with --steps"));
  }
  return Gzip(text);
}

absl::StatusOr<EvidenceFile> UnpackEvidence(absl::string_view content, size_t bytes_max) {
  std::string unpacked;
  if (absl::StartsWith(content, kGzipMagic)) {
    ASSIGN_OR_RETURN(unpacked, Gunzip(content, bytes_max));
    content = unpacked;
  }
  EvidenceFile file;
  for (const absl::string_view line : absl::StrSplit(content, '\n', absl::SkipEmpty())) {
    RETURN_IF_ERROR(AddTo(line, &file));
  }
  RETURN_IF_ERROR(CheckJob(&file.job));
  return file;
}

}  // namespace megascale::trace
