#include "controlplane/driver/service/driver_loop.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

constexpr size_t kInputsPerRound = 1024;
// From the beginning of a round to that of the next one, if only reports of agents wait: with 1,000
// jobs a round costs more than a report.
constexpr absl::Duration kReportGap = absl::Milliseconds(4);

absl::Status Stopping() {
  return absl::UnavailableError("the driver is stopping; ask again when it is back");
}

}  // namespace

DriverLoop::DriverLoop(std::unique_ptr<DriverShell> shell, const base::Clock* clock)
    : shell_(std::move(shell)), clock_(*clock) {}

absl::StatusOr<std::unique_ptr<DriverLoop>> DriverLoop::Create(DriverShell::Options options) {
  const base::Clock* clock = options.clock;
  ASSIGN_OR_RETURN(std::unique_ptr<DriverShell> shell, DriverShell::Create(std::move(options)));
  return std::unique_ptr<DriverLoop>(new DriverLoop(std::move(shell), clock));
}

DriverLoop::~DriverLoop() { Stop(); }

void DriverLoop::Start() {
  shell_->Begin();
  thread_ = std::thread([this] { Run(); });
}

void DriverLoop::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  // A loop that was never started still has inputs: their callers learn that nobody will answer.
  std::deque<Input> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(inputs_);
}

absl::Status DriverLoop::WaitForFailure(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  failed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return !failure_.ok(); });
  return failure_;
}

// --- inputs -----------------------------------------------------------------------------------

bool DriverLoop::Post(Input input, bool is_urgent) {
  bool wakes = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
    wakes = is_urgent || inputs_.empty();
    is_urgent_ = is_urgent_ || is_urgent;
    inputs_.push_back(std::move(input));
  }
  if (wakes) wake_.notify_one();
  return true;
}

template <typename T>
absl::StatusOr<T> DriverLoop::Call(std::function<absl::Status()> decide,
                                   std::function<absl::StatusOr<T>()> answer) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::future<absl::StatusOr<T>> future = promise->get_future();
  const bool posted = Post([promise = std::move(promise), decide = std::move(decide),
                            answer = std::move(answer)]() -> Output {
    if (absl::Status status = decide(); !status.ok()) {
      return [promise, status] { promise->set_value(status); };
    }
    return [promise, answer] { promise->set_value(answer()); };
  });
  if (!posted) return Stopping();
  if (future.wait_for(absl::ToChronoMilliseconds(kAnswerTimeout)) != std::future_status::ready) {
    return absl::DeadlineExceededError(
        "the driver did not answer in time and may still carry out the request; send it again");
  }
  try {
    return future.get();
  } catch (const std::future_error&) {
    return Stopping();
  }
}

absl::Status DriverLoop::Carry(std::function<absl::Status()> decide) {
  return Call<bool>(std::move(decide), [] { return absl::StatusOr<bool>(true); }).status();
}

absl::StatusOr<control::Job> DriverLoop::Submit(const megascale::driver::v1::JobSubmitted& submit) {
  RETURN_IF_ERROR(Carry([this, submit] { return shell_->Submit(submit); }));
  return GetJob(submit.job_id());
}

absl::StatusOr<control::Job> DriverLoop::Cancel(
    const megascale::driver::v1::CancelRequested& cancel) {
  RETURN_IF_ERROR(Carry([this, cancel] { return shell_->Cancel(cancel); }));
  return GetJob(cancel.job_id());
}

absl::StatusOr<control::NodeView> DriverLoop::NodeAfter(const std::string& node_id,
                                                        const absl::Status& status) const {
  RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(const auto view, View());
  return view->Node(node_id);
}

absl::StatusOr<control::NodeView> DriverLoop::Evict(
    const megascale::driver::v1::NodeEvicted& evicted) {
  return NodeAfter(evicted.node_id(), Carry([this, evicted] { return shell_->Evict(evicted); }));
}

absl::StatusOr<control::NodeView> DriverLoop::Uncordon(const std::string& node_id) {
  return NodeAfter(node_id, Carry([this, node_id] { return shell_->Uncordon(node_id); }));
}

absl::StatusOr<control::NodeView> DriverLoop::SetSpare(
    const megascale::driver::v1::NodeSpareSet& spare_set) {
  return NodeAfter(spare_set.node_id(),
                   Carry([this, spare_set] { return shell_->SetSpare(spare_set); }));
}

absl::StatusOr<control::Job> DriverLoop::Suspect(const std::string& job_id,
                                                 const control::Suspicion& suspicion) {
  megascale::driver::v1::SuspectFound found;
  found.set_job_id(job_id);
  *found.mutable_suspicion() = suspicion;
  RETURN_IF_ERROR(Carry([this, found] { return shell_->Suspect(found); }));
  return GetJob(job_id);
}

absl::StatusOr<control::Job> DriverLoop::Report(const megascale::driver::v1::SuspectFound& found) {
  RETURN_IF_ERROR(Carry([this, found] { return shell_->Report(found); }));
  return GetJob(found.job_id());
}

absl::StatusOr<std::vector<std::string>> DriverLoop::EndedJobs(absl::Duration age_max) const {
  ASSIGN_OR_RETURN(const auto view, View());
  return view->EndedSince(clock_.Wall() - age_max);
}

// --- reads ------------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<const DriverView>> DriverLoop::View() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return Stopping();
  }
  return shell_->view();
}

absl::StatusOr<control::Job> DriverLoop::GetJob(const std::string& job_id) const {
  ASSIGN_OR_RETURN(const auto view, View());
  return view->Job(job_id, clock_.Wall());
}

absl::StatusOr<std::vector<control::Job>> DriverLoop::ListJobs() const {
  ASSIGN_OR_RETURN(const auto view, View());
  return view->Jobs(clock_.Wall());
}

absl::StatusOr<control::ListJobsResponse> DriverLoop::ListJobs(
    const control::ListJobsRequest& request) const {
  ASSIGN_OR_RETURN(const auto view, View());
  return view->List(request, clock_.Wall());
}

absl::StatusOr<control::GetClusterResponse> DriverLoop::GetCluster() const {
  ASSIGN_OR_RETURN(const auto view, View());
  return view->Nodes();
}

// --- agents -----------------------------------------------------------------------------------

void DriverLoop::OnHello(const agent::Hello& hello, std::shared_ptr<AgentLink> link,
                         std::function<void()> done) {
  Post([this, hello, link = std::move(link), done = std::move(done)]() -> Output {
    if (!shell_->OnHello(hello, link)) return [] {};
    return done;
  });
}

void DriverLoop::OnReport(const std::string& node_id, agent::ActualState report,
                          std::function<void()> done) {
  Post(
      [this, node_id, report = std::move(report), done = std::move(done)]() mutable -> Output {
        shell_->OnReport(node_id, std::move(report));
        return done;
      },
      /*is_urgent=*/false);
}

void DriverLoop::OnGone(const std::string& node_id, const AgentLink* link) {
  Post([this, node_id, link]() -> Output {
    shell_->OnGone(node_id, link);
    return [] {};
  });
}

void DriverLoop::OnDataFiles(agent::DataFiles files) {
  Post([this, files = std::move(files)]() -> Output {
    shell_->OnDataFiles(files);
    return [] {};
  });
}

void DriverLoop::OnFetchDataFiles(const agent::FetchDataFiles& fetch,
                                  std::shared_ptr<AgentLink> link) {
  Post([this, fetch, link = std::move(link)]() -> Output {
    shell_->OnFetchDataFiles(fetch, link.get());
    return [] {};
  });
}

// --- the loop ---------------------------------------------------------------------------------

void DriverLoop::Run() {
  absl::Duration reports_at;
  while (const auto inputs = AwaitInputs(reports_at)) {
    reports_at = clock_.Monotonic() + kReportGap;
    const absl::Status status = shell_->Round(*inputs);
    if (status.ok()) continue;
    base::LogError(absl::StrCat("the driver stops; agents and workers go on: ", status.ToString()));
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = status;
    stopping_ = true;
    break;
  }
  std::deque<Input> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(inputs_);
  }
  failed_.notify_all();
}

std::optional<std::vector<DriverShell::Input>> DriverLoop::AwaitInputs(absl::Duration reports_at) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && !is_urgent_) {
    const absl::Duration tick = shell_->next_tick();
    const absl::Duration begin = inputs_.empty() ? tick : std::min(tick, reports_at);
    const absl::Duration now = clock_.Monotonic();
    if (now >= begin) break;
    wake_.wait_for(lock, absl::ToChronoMicroseconds(begin - now));
  }
  if (stopping_) return std::nullopt;
  const size_t count = std::min(inputs_.size(), kInputsPerRound);
  std::vector<Input> taken(std::make_move_iterator(inputs_.begin()),
                           std::make_move_iterator(inputs_.begin() + count));
  inputs_.erase(inputs_.begin(), inputs_.begin() + count);
  is_urgent_ = !inputs_.empty();
  return taken;
}

}  // namespace megascale::driver
