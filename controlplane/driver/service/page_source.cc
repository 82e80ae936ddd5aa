#include "controlplane/driver/service/page_source.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/log_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/driver/service/agent_streams.h"
#include "controlplane/driver/service/driver_loop.h"
#include "controlplane/driver/service/relay_ports.h"
#include "controlplane/driver/storage/loss_history.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

// A page is read again soon: rather without one machine than late.
constexpr absl::Duration kPageFetchTimeout = absl::Seconds(1);

class LoopPageSource final : public page::PageSource {
 public:
  LoopPageSource(DriverLoop* loop, AgentStreams* agents) : loop_(*loop), agents_(*agents) {}

  absl::StatusOr<std::vector<control::Job>> Jobs() override { return loop_.ListJobs(); }
  absl::StatusOr<control::GetClusterResponse> Cluster() override { return loop_.GetCluster(); }
  absl::StatusOr<control::Job> GetJob(const std::string& job_id) override {
    return loop_.GetJob(job_id);
  }

  absl::Status Spans(
      const control::StreamSpansRequest& request,
      const std::function<bool(const control::StreamSpansResponse&)>& emit) override {
    auto ports = PortsOf<SpanStreamPorts>(request.job_id());
    ports.emit = emit;
    return StreamSpans(request, ports);
  }

  absl::StatusOr<telemetry::v1::Evidence> Evidence(const std::string& job_id, int rank,
                                                   telemetry::v1::EvidenceKind kind) override {
    control::StreamEvidenceRequest request;
    request.set_job_id(job_id);
    request.add_ranks(rank);
    request.set_kind(kind);
    auto ports = PortsOf<EvidenceStreamPorts>(job_id);
    absl::StatusOr<telemetry::v1::Evidence> evidence =
        absl::NotFoundError(absl::StrCat("the job has no rank ", rank));
    ports.emit = [&](const control::StreamEvidenceResponse& response) {
      if (response.error().empty()) {
        evidence = response.evidence();
      } else {
        evidence = absl::UnavailableError(
            absl::StrCat("machine ", response.node_id(), ": ", response.error()));
      }
      return true;
    };
    RETURN_IF_ERROR(StreamEvidence(request, ports));
    return evidence;
  }

  absl::Status Logs(const std::string& job_id, int rank,
                    const std::function<bool(const control::StreamLogsResponse&)>& emit) override {
    control::StreamLogsRequest request;
    request.set_job_id(job_id);
    request.set_rank(rank);
    auto ports = PortsOf<LogStreamPorts>(job_id);
    ports.emit = emit;
    // It would wait for agents that are away: the page does not.
    ports.wait = [](absl::Duration) { return false; };
    return StreamLogs(request, ports);
  }

  absl::StatusOr<std::vector<telemetry::v1::StepRecord>> Steps(const control::Job& job,
                                                               int64_t first_step,
                                                               int64_t steps_max) override {
    return ReadSteps(job.directory(), &RealJobFiles(), first_step, steps_max);
  }

  absl::StatusOr<std::vector<telemetry::v1::StepRecord>> SampleSteps(const control::Job& job,
                                                                     int64_t points) override {
    return driver::SampleSteps(job.directory(), &RealJobFiles(), points);
  }

 private:
  template <typename Ports>
  Ports PortsOf(const std::string& job_id) {
    return RelayPorts<Ports>(&loop_, &agents_, job_id, kPageFetchTimeout);
  }

  DriverLoop& loop_;
  AgentStreams& agents_;
};

}  // namespace

std::unique_ptr<page::PageSource> MakePageSource(DriverLoop* loop, AgentStreams* agents) {
  return std::make_unique<LoopPageSource>(loop, agents);
}

}  // namespace megascale::driver
