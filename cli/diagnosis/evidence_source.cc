#include "cli/diagnosis/evidence_source.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/job_spec.h"

namespace megascale::cli {
namespace {

using control::v1::StreamEvidenceResponse;
using control::v1::StreamSpansResponse;

// The first words of a file's lines, before the JSON.
constexpr absl::string_view kJob = "job ";
constexpr absl::string_view kCluster = "cluster ";
constexpr absl::string_view kSpans = "spans ";
constexpr absl::string_view kEvidence = "evidence-";  // and the number of the kind
// A saved file has no more bytes.
constexpr size_t kBytesMax = size_t{1} << 28;
constexpr int64_t kSamplesSaved = 20;
constexpr int kEndedCallsSaved = 64;

class Live final : public EvidenceSource {
 public:
  Live(client::JobClient* client, std::string job_id)
      : client_(*client), job_id_(std::move(job_id)) {}

  absl::StatusOr<control::v1::Job> Job() override { return client_.Get(job_id_); }
  control::v1::GetClusterResponse Cluster() override {
    return client_.Cluster().value_or(control::v1::GetClusterResponse());
  }
  absl::Status Spans(int64_t first_step,
                     const std::function<void(const StreamSpansResponse&)>& add) override {
    control::v1::StreamSpansRequest request;
    request.set_job_id(job_id_);
    request.set_first_step(first_step);
    return client_.Spans(request, {add, {}});
  }
  std::vector<StreamEvidenceResponse> Evidence(telemetry::v1::EvidenceKind kind,
                                               absl::Span<const int> ranks) override {
    control::v1::StreamEvidenceRequest request;
    request.set_job_id(job_id_);
    request.set_kind(kind);
    for (const int rank : ranks) request.add_ranks(rank);
    std::vector<StreamEvidenceResponse> responses;
    const absl::Status read = client_.Evidence(
        request,
        {[&](const StreamEvidenceResponse& response) { responses.push_back(response); }, {}});
    // They come in the order of the agents' answers.
    std::stable_sort(responses.begin(), responses.end(),
                     [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
    if (!read.ok() && !ranks.empty()) {
      StreamEvidenceResponse& failed = responses.emplace_back();
      failed.set_rank(ranks[0]);
      failed.set_error(std::string(read.message()));
    }
    return responses;
  }
  void Wait(absl::Duration duration) override { absl::SleepFor(duration); }

 private:
  client::JobClient& client_;
  const std::string job_id_;
};

class Saved final : public EvidenceSource {
 public:
  absl::Status Add(absl::string_view line) {
    if (absl::ConsumePrefix(&line, kJob)) return Parse(line, &job_);
    if (absl::ConsumePrefix(&line, kCluster)) return Parse(line, &cluster_);
    if (absl::ConsumePrefix(&line, kSpans)) return Parse(line, &spans_.emplace_back());
    if (absl::ConsumePrefix(&line, kEvidence)) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      int kind = 0;
      if (absl::SimpleAtoi(parts.first, &kind)) {
        return Parse(parts.second, &evidence_[kind].emplace_back());
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("found '", base::Printable(line, 40), "'; expected a line of saved evidence"));
  }
  // Checks the job, on whose sizes an analysis relies.
  absl::Status CheckJob() {
    if (job_.job_id().empty()) {
      return absl::InvalidArgumentError(
          "holds no job; expected a file that `megascale diagnose JOB --save FILE` wrote");
    }
    auto spec = job::ResolveJobSpec(job_.spec());
    if (!spec.ok()) return base::Annotate(spec.status(), "holds a job that no driver takes");
    *job_.mutable_spec() = *std::move(spec);
    const int world_size = job::WorldSize(job_.spec());
    const int culprit = job_.has_culprit() ? job_.culprit().rank() : -1;
    if (culprit < -1 || culprit >= world_size) {
      return absl::InvalidArgumentError(absl::StrCat("names rank ", culprit, " of a job that has ",
                                                     world_size, " ranks as its culprit"));
    }
    if (job_.ranks_size() == 0 || job_.ranks_size() == world_size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("holds ", job_.ranks_size(), " ranks of a job that has ", world_size));
  }

  absl::StatusOr<control::v1::Job> Job() override { return job_; }
  control::v1::GetClusterResponse Cluster() override { return cluster_; }
  absl::Status Spans(int64_t first_step,
                     const std::function<void(const StreamSpansResponse&)>& add) override {
    if (spans_.empty()) {
      return absl::FailedPreconditionError("no spans were saved: no rank of the job ran");
    }
    for (StreamSpansResponse response : spans_) {
      auto& spans = *response.mutable_spans();
      spans.erase(std::remove_if(spans.begin(), spans.end(),
                                 [&](const auto& span) { return span.step() < first_step; }),
                  spans.end());
      add(response);
    }
    return absl::OkStatus();
  }
  std::vector<StreamEvidenceResponse> Evidence(telemetry::v1::EvidenceKind kind,
                                               absl::Span<const int> ranks) override {
    std::vector<StreamEvidenceResponse> found;
    for (const StreamEvidenceResponse& response : evidence_[kind]) {
      if (ranks.empty() || absl::c_linear_search(ranks, response.rank())) found.push_back(response);
    }
    return found;
  }
  void Wait(absl::Duration /*duration*/) override {}

 private:
  template <typename Message>
  static absl::Status Parse(absl::string_view text, Message* message) {
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;  // of a newer version
    const auto parsed =
        google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, message, options);
    if (parsed.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("a line of saved evidence is damaged: ",
                                                   base::Printable(parsed.ToString(), 300)));
  }

  control::v1::Job job_;
  control::v1::GetClusterResponse cluster_;
  std::vector<StreamSpansResponse> spans_;
  std::map<int, std::vector<StreamEvidenceResponse>> evidence_;
};

// The lines of a file, which are refused beyond kBytesMax.
class Lines {
 public:
  template <typename Message>
  void Add(absl::string_view word, const Message& message) {
    if (text_.size() > kBytesMax) return;
    std::string line;
    const auto written = google::protobuf::util::MessageToJsonString(message, &line);
    if (written.ok()) absl::StrAppend(&text_, word, line, "\n");
  }
  absl::StatusOr<std::string> Gzip() const {
    if (text_.size() > kBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("the evidence has more than ", kBytesMax,
                                                       " bytes; save fewer steps with --steps"));
    }
    constexpr int kGzipWindowBits = 15 + 16;
    z_stream stream = {};
    MEGASCALE_CHECK(::deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindowBits, 9,
                                   Z_DEFAULT_STRATEGY) == Z_OK);
    std::string packed(::deflateBound(&stream, text_.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text_.data()));
    stream.avail_in = static_cast<uInt>(text_.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    MEGASCALE_CHECK(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
    packed.resize(stream.total_out);
    ::deflateEnd(&stream);
    return packed;
  }

 private:
  std::string text_;
};

absl::StatusOr<std::string> ReadGzip(const std::string& path) {
  ASSIGN_OR_RETURN(base::UniqueFd opened, OpenInputFile(path));
  gzFile const file = ::gzdopen(opened.get(), "rb");
  if (file == nullptr) return absl::ResourceExhaustedError("no memory to read it");
  (void)opened.release();  // gzclose closes it
  std::string text;
  std::string piece(size_t{1} << 16, '\0');
  int size = 0;
  while (text.size() <= kBytesMax &&
         (size = ::gzread(file, piece.data(), static_cast<unsigned>(piece.size()))) > 0) {
    text.append(piece, 0, static_cast<size_t>(size));
  }
  ::gzclose(file);
  if (size < 0) return absl::InvalidArgumentError("the gzip data are damaged; copy the file again");
  if (text.size() > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kBytesMax, " bytes"));
  }
  return text;
}

}  // namespace

std::unique_ptr<EvidenceSource> LiveEvidence(client::JobClient* client, std::string job_id) {
  return std::make_unique<Live>(client, std::move(job_id));
}

absl::Status SaveEvidence(EvidenceSource* source, int64_t num_steps, const std::string& path) {
  Lines lines;
  ASSIGN_OR_RETURN(const control::v1::Job before, source->Job());
  absl::Status spans = source->Spans(std::max<int64_t>(0, before.last_step() - num_steps + 1),
                                     [&](const auto& response) { lines.Add(kSpans, response); });
  if (!spans.ok() && spans.code() != absl::StatusCode::kFailedPrecondition) return spans;
  for (const auto kind :
       {telemetry::v1::EVIDENCE_KIND_EXCHANGES, telemetry::v1::EVIDENCE_KIND_METRICS}) {
    for (StreamEvidenceResponse& response : source->Evidence(kind, {})) {
      auto& samples = *response.mutable_evidence()->mutable_samples();
      const int64_t num_old = std::max<int64_t>(0, samples.size() - kSamplesSaved);
      samples.erase(samples.begin(), samples.begin() + num_old);
      auto& ended = *response.mutable_evidence()->mutable_completed();
      ended.erase(ended.begin(), ended.begin() + std::max(0, ended.size() - kEndedCallsSaved));
      lines.Add(absl::StrCat(kEvidence, static_cast<int>(kind), " "), response);
    }
  }
  lines.Add(kCluster, source->Cluster());
  // As in a diagnosis, the job last: ranks show their life about once a second.
  ASSIGN_OR_RETURN(control::v1::Job job, source->Job());
  job.clear_directory();
  lines.Add(kJob, job);
  ASSIGN_OR_RETURN(const std::string packed, lines.Gzip());
  return WriteOutputFile(path, packed);
}

absl::StatusOr<std::unique_ptr<EvidenceSource>> SavedEvidence(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadGzip(path));
  auto saved = std::make_unique<Saved>();
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    RETURN_IF_ERROR(saved->Add(line));
  }
  RETURN_IF_ERROR(saved->CheckJob());
  return std::unique_ptr<EvidenceSource>(std::move(saved));
}

}  // namespace megascale::cli
