// The plugin's tables, called as NCCL calls them.
#include "gpu/comm/profiler_plugin.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

namespace megascale::cuda {
namespace {

class Board : public comm::CallProgress {
 public:
  int Register(absl::string_view name) override {
    group = std::string(name);
    return 3;
  }
  void Begin(int channel, const comm::CallEvent& call) override {
    EXPECT_EQ(channel, 3);
    running = call.instruction_id;
    peers.clear();
  }
  void Update(int /*channel*/, absl::Span<const comm::PeerProgress> shown) override {
    for (const comm::PeerProgress& peer : shown) peers[peer.world_rank] = peer;
  }
  void End(int /*channel*/, const comm::CallEvent& call) override {
    ended.push_back(call.instruction_id);
    running = 0;
  }

  std::string group;
  uint64_t running = 0;  // instruction id; 0: no call runs
  std::map<int, comm::PeerProgress> peers;
  std::vector<uint64_t> ended;
};

class ProfilerPluginTest : public ::testing::Test {
 protected:
  ProfilerPluginTest()
      : progress_(std::make_unique<NcclProgress>(NcclProgress::Options{
            .progress = &board_, .name = "dp0", .rank = 0, .world_ranks = {4, 6}})) {
    int events = 0;
    EXPECT_EQ(ncclProfiler_v5.init(&context_, 9, &events, "dp0", 2, 2, 0, nullptr), ncclSuccess);
    EXPECT_EQ(events, (1 << 1) | (1 << 2) | (1 << 3) | (1 << 4));
  }
  ~ProfilerPluginTest() override { ncclProfiler_v5.finalize(context_); }

  void* Start(ProfilerEvent event) const {
    void* handle = nullptr;
    EXPECT_EQ(ncclProfiler_v5.start_event(context_, &handle, &event), ncclSuccess);
    return handle;
  }
  static ProfilerEvent EventOf(uint64_t type, void* parent) {
    ProfilerEvent event = {};
    event.type = type;
    event.parent = parent;
    return event;
  }
  void* Launch(uint64_t instruction) {
    progress_->Launch({.operation = comm::Operation::kAllReduce, .instruction_id = instruction});
    void* call = Start(EventOf(profiler_event::kCollective, nullptr));
    ncclProfiler_v5.stop_event(call);
    return call;
  }
  static ProfilerEvent TransportOf(void* call, bool is_send) {
    ProfilerEvent event = EventOf(profiler_event::kTransport, call);
    event.transport.pid = ::getpid();
    event.transport.peer = 1;
    event.transport.num_steps = 2;
    event.transport.step_bytes = 1000;
    event.transport.is_send = is_send ? 1 : 0;
    return event;
  }
  void* StartStep(void* transport) const {
    return Start(EventOf(profiler_event::kStep, transport));
  }
  static void Record(void* step, ProfilerState state, size_t bytes = 0) {
    ProfilerStateArgs args = {.bytes = bytes};
    ncclProfiler_v5.record_state(step, static_cast<int>(state), &args);
  }
  static void Stop(void* handle) { ncclProfiler_v5.stop_event(handle); }

  Board board_;
  std::unique_ptr<NcclProgress> progress_;
  void* context_ = nullptr;
};

TEST_F(ProfilerPluginTest, AStepPassesTheMarksOfASend) {
  void* const send = Start(TransportOf(Launch(7), /*is_send=*/true));
  EXPECT_EQ(board_.group, "dp0");
  EXPECT_EQ(board_.running, 7u);
  void* step = StartStep(send);
  Record(step, ProfilerState::kSendWaitsForGpu);
  EXPECT_TRUE(board_.peers.empty()) << "the GPU has made nothing";
  Record(step, ProfilerState::kSendWaitsForPeer);
  EXPECT_EQ(board_.peers.at(6).send_bytes, 1000) << "of world rank 6";
  EXPECT_EQ(board_.peers.at(6).transmitted_bytes, 0) << "not transmitted";
  Record(step, ProfilerState::kSendPosted, 1000);
  EXPECT_EQ(board_.peers.at(6).transmitted_bytes, 1000);
  EXPECT_EQ(board_.peers.at(6).delivered_bytes, 0) << "not delivered";
  Stop(step);
  EXPECT_EQ(board_.peers.at(6).delivered_bytes, 1000);
  step = StartStep(send);
  Record(step, ProfilerState::kSendWaitsForPeer);
  Record(step, ProfilerState::kSendPosted, 600);
  EXPECT_EQ(board_.peers.at(6).send_bytes, 1600) << "the last step is smaller than was announced";
  Stop(step);
  EXPECT_TRUE(board_.ended.empty());
  Stop(send);
  EXPECT_EQ(board_.ended, std::vector<uint64_t>{7});
}

TEST_F(ProfilerPluginTest, AReceiveShowsWhatIsStillToCome) {
  void* const receive = Start(TransportOf(Launch(7), /*is_send=*/false));
  void* const step = StartStep(receive);
  Record(step, ProfilerState::kReceivePosted);
  EXPECT_EQ(board_.peers.at(6).receive_bytes, 1000);
  EXPECT_EQ(board_.peers.at(6).received_bytes, 0);
  Record(step, ProfilerState::kReceived, 1000);
  Record(step, ProfilerState::kReceiveWaitsForGpu);
  EXPECT_EQ(board_.peers.at(6).received_bytes, 1000);
}

TEST_F(ProfilerPluginTest, TheOldestOfSeveralCallsIsShownUntilItEnds) {
  void* const first = Start(TransportOf(Launch(7), true));
  void* const second = Start(TransportOf(Launch(8), true));
  EXPECT_EQ(board_.running, 7u);
  Stop(first);
  EXPECT_EQ(board_.running, 8u);
  Stop(second);
  EXPECT_EQ(board_.ended, (std::vector<uint64_t>{7, 8}));
}

TEST_F(ProfilerPluginTest, VersionFourHasTheTypeInOneByte) {
  void* context = nullptr;
  int events = 0;
  ncclProfiler_v4.init(&context, &events, "dp0", 9, 2, 2, 0, nullptr);
  ASSERT_NE(events, 0);
  progress_->Launch({.operation = comm::Operation::kSend, .instruction_id = 5});
  ProfilerEvent event = EventOf(0xabcd00 | profiler_event::kMessage, nullptr);
  void* call = nullptr;
  ncclProfiler_v4.start_event(context, &call, &event);
  ASSERT_NE(call, nullptr);
  ncclProfiler_v4.stop_event(call);
  event = TransportOf(call, true);
  event.type |= 0xabcd00;
  void* send = nullptr;
  ncclProfiler_v4.start_event(context, &send, &event);
  EXPECT_EQ(board_.running, 5u);
  ncclProfiler_v4.stop_event(send);
  ncclProfiler_v4.finalize(context);
}

TEST_F(ProfilerPluginTest, OtherProcessesAndCommunicatorsAndBrokenEventsAreLeftAlone) {
  void* context = this;
  int events = 1;
  EXPECT_EQ(ncclProfiler_v5.init(&context, 9, &events, "torch", 2, 2, 0, nullptr), ncclSuccess);
  EXPECT_EQ(events, 0) << "somebody else's communicator";
  EXPECT_EQ(ncclProfiler_v5.init(&context, 9, &events, nullptr, 2, 2, 0, nullptr), ncclSuccess);
  EXPECT_EQ(events, 0);
  ncclProfiler_v5.finalize(context);
  ProfilerEvent remote = TransportOf(Launch(7), true);
  remote.transport.pid = ::getpid() + 1;  // its parent is a pointer of another process
  EXPECT_EQ(Start(remote), nullptr);
  ProfilerEvent far = TransportOf(Launch(7), true);
  far.transport.peer = 2;
  EXPECT_EQ(Start(far), nullptr);
  EXPECT_EQ(StartStep(nullptr), nullptr);
  Stop(nullptr);
  Record(nullptr, ProfilerState::kSendPosted, 1);
  EXPECT_EQ(board_.running, 0u);
}

TEST_F(ProfilerPluginTest, NothingIsWrittenOnceTheCommunicatorIsGone) {
  void* const send = Start(TransportOf(Launch(7), true));
  progress_.reset();
  Stop(StartStep(send));
  Stop(send);
  EXPECT_TRUE(board_.ended.empty());
}

}  // namespace
}  // namespace megascale::cuda
