// What one process learns about another: whether it lives, and the content of its memory.
#include "runtime/comm/host/peer_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <string>

namespace megascale::comm {
namespace {

const std::string kPrivateText = "in memory of its own";
const std::string kSharedText = "in memory that it shares";

// A child that shows its card in memory shared with this process, and sleeps until it is killed.
class PeerProcessTest : public ::testing::Test {
 protected:
  struct Board {
    ProcessCard card;
    uint64_t private_address = 0;
  };

  PeerProcessTest() {
    memory_ = base::SharedMemory::Create("board", sizeof(Board)).value();
    board_ = new (memory_->data()) Board();
    readable_ = base::SharedMemory::Create("readable", 1 << 20).value();
    std::memcpy(readable_->data() + kOffset, kSharedText.data(), kSharedText.size());
    child_ = ::fork();
    if (child_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const uint64_t word = MakeWord();
    std::string text = kPrivateText;  // on the child's stack or heap only
    board_->private_address = reinterpret_cast<uint64_t>(text.data());
    const base::SharedMemory* readable[] = {readable_.get()};
    Introduce(word, readable, board_->card);
    while (true) ::pause();
  }
  ~PeerProcessTest() override { Kill(); }

  PeerProcess MeetChild() {
    PeerProcess peer;
    while (!peer.is_met()) peer.Meet(board_->card);
    return peer;
  }
  void Kill() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    child_ = 0;
  }
  static std::string Read(PeerProcess& peer, uint64_t address, size_t num_bytes) {
    std::string text(num_bytes, '?');
    return peer.Read(address, num_bytes, reinterpret_cast<std::byte*>(text.data())) ? text : "";
  }

  static constexpr size_t kOffset = 70000;
  std::unique_ptr<base::SharedMemory> memory_;
  std::unique_ptr<base::SharedMemory> readable_;
  Board* board_ = nullptr;
  pid_t child_ = 0;
};

TEST_F(PeerProcessTest, ReadsMemoryThatIsSharedAndMemoryThatIsNot) {
  PeerProcess peer = MeetChild();
  ASSERT_TRUE(peer.can_read());
  EXPECT_FALSE(peer.HasEnded());
  EXPECT_EQ(Read(peer, board_->private_address, kPrivateText.size()), kPrivateText);
  const uint64_t shared = board_->card.memories[0].address + kOffset;
  EXPECT_EQ(Read(peer, shared, kSharedText.size()), kSharedText);
  // Shared memory is not copied: what its owner writes shows.
  const std::byte* fetched = peer.Fetch(shared, kSharedText.size());
  ASSERT_NE(fetched, nullptr);
  readable_->data()[kOffset] = std::byte{'I'};
  EXPECT_EQ(fetched[0], std::byte{'I'});
  fetched = peer.Fetch(board_->private_address, kPrivateText.size());
  ASSERT_NE(fetched, nullptr);
  EXPECT_EQ(std::memcmp(fetched, kPrivateText.data(), kPrivateText.size()), 0);
}

TEST_F(PeerProcessTest, ReadsNothingWhereThereIsNothing) {
  PeerProcess peer = MeetChild();
  EXPECT_EQ(Read(peer, 64, 8), "");
}

TEST_F(PeerProcessTest, KnowsThatAProcessHasEnded) {
  PeerProcess peer = MeetChild();
  Kill();
  EXPECT_TRUE(peer.HasEnded());
  EXPECT_EQ(Read(peer, board_->private_address, kPrivateText.size()), "");
  PeerProcess late = MeetChild();
  EXPECT_TRUE(late.HasEnded());
  EXPECT_FALSE(late.can_read());
}

TEST_F(PeerProcessTest, ReadsNobodyWhoDoesNotProveToHaveWrittenTheCard) {
  MeetChild();
  ProcessCard forged;
  forged.pid_namespace = board_->card.pid_namespace;
  forged.word = board_->card.word;
  forged.word_address = board_->private_address;
  forged.process_id = board_->card.process_id.load();
  PeerProcess peer;
  peer.Meet(forged);
  EXPECT_TRUE(peer.is_met());
  EXPECT_FALSE(peer.can_read());
}

TEST_F(PeerProcessTest, TellsNothingOfAProcessInAnotherPidNamespace) {
  MeetChild();
  ProcessCard elsewhere;
  elsewhere.pid_namespace = board_->card.pid_namespace + 1;
  elsewhere.process_id = board_->card.process_id.load();
  PeerProcess peer;
  peer.Meet(elsewhere);
  Kill();
  EXPECT_FALSE(peer.HasEnded());
  EXPECT_FALSE(peer.can_read());
}

}  // namespace
}  // namespace megascale::comm
